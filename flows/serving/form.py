"""The file of a form (multipart/form-data, as 'curl -F file=@video.mp4' and browsers send it), taken out of the request's body
block by block: it is never in memory as a whole, and its name stays a text."""

import re
from collections.abc import AsyncIterator

HEAD_BYTES = 8192
"""of what comes before the file"""
_ADVICE = "send one file, as 'curl -F file=@video.mp4' does"


class BadForm(Exception):
    """The body is no form with one file; the message is for people."""


class FormFile:
    """The only part of a form. `name` is what the sender calls the file, without folders; known once its first byte is."""

    def __init__(self, content_type: str) -> None:
        found = re.search(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))\s*(?:;|$)', content_type, re.IGNORECASE)
        if not found:
            raise BadForm(f"the form does not say how its parts are divided; {_ADVICE}")
        self._delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1", "replace")
        self.name = ""

    async def read(self, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes of the file, in blocks."""
        kept = b"\r\n"  # so that the first delimiter is like the others
        while (end := kept.find(b"\r\n\r\n", len(self._delimiter))) < 0:
            if len(kept) > HEAD_BYTES:
                raise BadForm(f"the form does not begin with a file; {_ADVICE}")
            kept += await _next(blocks)
        self.name = self._name_in(kept[:end])
        kept = kept[end + 4 :]
        while (end := kept.find(self._delimiter)) < 0:
            whole = max(0, len(kept) - len(self._delimiter) + 1)  # the rest may be the beginning of a delimiter
            yield kept[:whole]
            kept = kept[whole:] + await _next(blocks)
        yield kept[:end]
        rest = kept[end + len(self._delimiter) :]
        while len(rest) < 2:
            rest += await _next(blocks)
        if not rest.startswith(b"--"):
            raise BadForm(f"the form has more than a file; {_ADVICE}, and options in the address ('?n_best=3')")

    def _name_in(self, head: bytes) -> str:
        text = head.removeprefix(self._delimiter + b"\r\n").decode("utf-8", "replace")
        found = re.search(r'(?im)^content-disposition:\s*form-data\s*;[^\r\n]*?\bfilename="([^"\r\n]*)"', text)
        if not head.startswith(self._delimiter + b"\r\n") or not found:
            raise BadForm(f"the form does not begin with a file; {_ADVICE}")
        return found[1].replace("\\", "/").rpartition("/")[2][:200]


async def _next(blocks: AsyncIterator[bytes]) -> bytes:
    block = await anext(blocks, None)
    if block is None:
        raise BadForm(f"the form ends in the middle; {_ADVICE}")
    return block
