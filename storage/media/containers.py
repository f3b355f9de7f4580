"""Opening a media file safely: only a local regular file, only containers that hold their own data, and a sentence for
every way in which that can go wrong."""

import os
import stat
import struct
from pathlib import Path

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from storage.errors import BadMedia

MAX_PIXELS = 89_478_485
"""The most pixels of one picture (Pillow's own limit): a header that promises more is an attack or an accident."""
MIN_SIDE = 2
"""The fewest pixels of a side: a picture of one pixel marks a visit to a web page and shows nothing."""

# Playlists, network and device demuxers are left out: they open what the file names, not what it holds.
DEMUXERS = (
    *("mov", "mp4", "matroska", "webm", "avi", "asf", "flv", "gif", "ogg", "mpeg", "mpegts", "mpegvideo", "mxf", "nut"),
    *("rm", "wtv", "dv", "ivf", "m4v", "h264", "hevc", "vc1", "mjpeg", "yuv4mpegpipe", "wav", "mp3", "aac", "flac"),
)

_LOCAL = {"protocol_whitelist": "file", "format_whitelist": ",".join(DEMUXERS), "enable_drefs": "0"}
_PLAYLISTS = {
    b"#extm3u": "an HLS playlist",
    b"ffconcat": "a concat playlist",
    b"[playlist]": "a PLS playlist",
    b"[reference]": "an ASX reference",
    b"<asx": "an ASX playlist",
    b"<mpd": "a DASH manifest",
    b"<smoothstreamingmedia": "a Smooth Streaming manifest",
    b"v=0": "an SDP session",
    **dict.fromkeys((b"http://", b"https://", b"rtsp://", b"rtsptext"), "an address on the web"),
}

_PICTURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}

# What lies under the names of videos after a download that went wrong, in lower case.
_ARCHIVES = {b"pk\x03\x04": "ZIP", b"rar!": "RAR", b"7z\xbc\xaf": "7-Zip", b"\x1f\x8b": "gzip"}
_WEB_PAGE = "a web page, as failed downloads leave behind; download the video again"
_FOREIGN = {
    **{b"<!doctype html": _WEB_PAGE, b"<html": _WEB_PAGE, b"%pdf": "a PDF document; give the video itself"},
    b"version https://git-lfs": "a Git LFS pointer to a video that was not fetched; run 'git lfs pull'",
    **{opening: f"a {name} archive; unpack it" for opening, name in _ARCHIVES.items()},
}


def read_header(path: Path) -> bytes:
    """The first bytes of a local regular file, after making sure that it is one, is not empty and is no playlist."""
    try:
        str(path).encode()
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadMedia("not_media", f"{path} is a folder; name the video inside it")
        if not stat.S_ISREG(status.st_mode):
            what = "is not a regular file (a pipe, socket or device)"
            raise BadMedia("unsafe", f"{path} {what}; copy the video to a file")
        if status.st_size == 0:
            raise BadMedia("empty", f"{path} is empty (0 bytes); copy or download it again")
        with path.open("rb") as file:
            header = file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        raise BadMedia("missing", f"{path} does not exist; check the data set's folder") from None
    except (UnicodeEncodeError, ValueError):
        raise BadMedia("unreadable", f"{os.fsencode(path)!r} is not a valid file name; rename the file") from None
    except OSError as error:
        raise BadMedia("unreadable", f"{path} cannot be read: {error.strerror}") from error
    text = header.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for opening, name in _PLAYLISTS.items():
        if text.startswith(opening) or (text.startswith(b"<?xml") and opening.startswith(b"<") and opening in text):
            raise BadMedia("unsafe", f"{path} is {name}, which points to other files; give the video itself")
    return header


def picture_format(header: bytes) -> str | None:
    """The still-image format that a file's first bytes announce, or None."""
    if header[:4] == b"RIFF" and header[8:12] == b"WEBP":
        return "WEBP"
    if header[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    if header[:2] in (b"P5", b"P6") and header[2:3].isspace():
        return "PPM"
    return next((name for magic, name in _PICTURES.items() if header.startswith(magic)), None)


def open_media(path: Path) -> InputContainer:
    """Open a local file for demuxing. Nothing but the file itself can be reached from here."""
    header = read_header(path)
    try:
        return av.open(f"file:{path.absolute()}", metadata_errors="replace", container_options=_LOCAL)
    except av.error.FFmpegError as error:
        raise _explain_unopened(path, header, error) from error


def video_stream(container: InputContainer, path: Path) -> VideoStream:
    """The main video stream, set to decode in one thread (the same frames from the same bytes, even damaged ones)."""
    if not len(container.streams):
        raise BadMedia("undecodable", f"{path} has a damaged header: no stream in it can be read; copy it again")
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream):
        kinds = ", ".join(sorted({other.type for other in container.streams}))
        raise BadMedia("no_video", f"{path} has no video stream (it holds {kinds}); give a file with pictures")
    if stream.disposition & av.stream.Disposition.attached_pic:
        raise BadMedia("no_video", f"{path} has a cover picture but no video (it is sound); give a file with pictures")
    if stream.codec_context is None:
        raise BadMedia("undecodable", f"{path} has a video stream of a codec that no decoder here knows; convert it")
    if stream.width * stream.height > MAX_PIXELS:
        raise BadMedia("too_large", f"{path} announces frames of {stream.width}x{stream.height} pixels; scale it down")
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # for frames larger than their container says
    return stream


def _explain_unopened(path: Path, header: bytes, error: av.error.FFmpegError) -> BadMedia:
    if header[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return _explain_mp4(path)
    if header.startswith(b"\x1a\x45\xdf\xa3") or header[:4] == b"RIFF":
        name = "an AVI" if header[:4] == b"RIFF" else "a Matroska"
        return BadMedia("truncated", f"{path} begins as {name} file but breaks off in its header; copy it again")
    text = header.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    foreign = next((words for opening, words in _FOREIGN.items() if text.startswith(opening)), None)
    if foreign is not None:
        return BadMedia("not_media", f"{path} is no video but {foreign}")
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        return BadMedia("unreadable", f"{path} cannot be opened: {error.strerror}; copy or convert it")
    begins = header[:16].decode("latin-1")
    readable = begins.isascii() and begins.isprintable()
    shown = f"it begins with '{begins}'" if readable else "its first bytes fit no format"
    return BadMedia("not_media", f"{path} is no video that Longtake knows ({shown}); convert or remove it")


def _explain_mp4(path: Path) -> BadMedia:
    """Walk the top level of an MP4 file and say where it breaks."""
    size, position = path.stat().st_size, 0
    reason = "it ends before its index (moov)"
    with path.open("rb") as file:
        while position + 8 <= size:
            file.seek(position)
            length, name = struct.unpack(">I4s", file.read(8))
            if length == 1:
                length = int.from_bytes(file.read(8), "big")
            label = name.decode("latin-1")
            if not (label.isascii() and label.isprintable()):
                what = f"from byte {position} on it makes no sense: it is encrypted or damaged"
                return BadMedia("undecodable", f"{path} begins as an MP4 file, but {what}; copy or download it again")
            if (end := position + length) > size:
                reason = f"it ends after {size} bytes inside its '{label}' part, which should reach byte {end}"
                break
            if name == b"moov":
                reason = "its index (moov) makes no sense"
            if name == b"moov" or length < 8:
                break
            position = end
    return BadMedia("truncated", f"{path} is an MP4 file, but {reason}; copy or download it again")
