"""More than thirty kinds of broken and hostile files, each with what a person should be told about it."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from PIL import Image

from tests.storage.canaries import Canary
from tests.storage.clips import make_clip, make_sound, numbered_image


@dataclass(frozen=True)
class Broken:
    """`kind` is the word in the quarantine, empty for a file that is used all the same; `words` are part of the reason;
    `damaged`: used, but reported as damaged."""

    kind: str
    words: str = ""
    damaged: bool = False


USED = Broken("")
DAMAGED = Broken("", "promises more than it holds", damaged=True)


def write_broken_files(folder: Path, canary: Canary) -> dict[str, Broken]:
    """Write them all; file name -> what to expect. Only kinds that show in a file's bytes: for names, links, pipes and the
    like see `write_odd_entries`."""
    expected: dict[str, Broken] = {}
    for name, data, broken in (
        *_cut_short(folder),
        *_not_videos(),
        *_lying_headers(folder, canary),
        *_playlists(canary),
        *_pictures(),
        *_strange_streams(folder),
    ):
        assert name not in expected
        (folder / name).write_bytes(data)
        expected[name] = broken
    return expected


def write_odd_entries(folder: Path, canary: Canary) -> dict[str, Broken]:
    """Entries of a folder that are no plain files with plain names. The words are those of the reader of folders."""
    (folder / "link-out.mp4").symlink_to(canary.file)
    (folder / "link-nowhere.mp4").symlink_to(folder / "gone")
    (folder / "link-circle.mp4").symlink_to(folder / "link-circle.mp4")
    (folder / "folder.mp4").mkdir()
    os.mkfifo(folder / "pipe.mp4")
    os.mknod(folder / "socket.mp4", stat.S_IFSOCK | 0o600)
    Path(os.fsdecode(os.fsencode(folder) + b"/na\xffme.mp4")).write_bytes(b"x")
    return {
        "link-out.mp4": Broken("outside_root", "leaves the data folder"),
        "link-nowhere.mp4": Broken("broken_link", "leads nowhere"),
        "link-circle.mp4": Broken("broken_link", "leads nowhere"),
        "folder.mp4": Broken("no_video", "no video file"),
        "pipe.mp4": Broken("no_video", "no video file"),
        "socket.mp4": Broken("no_video", "no video file"),
        "na\\udcffme.mp4": Broken("unsafe_id", "not valid Unicode"),
    }


Entry = tuple[str, bytes, Broken]


def _clip(folder: Path, name: str, count: int = 20, **how: object) -> bytearray:
    path = make_clip(folder / f".{name}", count, **how)  # type: ignore[arg-type]
    data = path.read_bytes()
    path.unlink()
    return bytearray(data)


def _cut_short(folder: Path) -> Iterator[Entry]:
    good = {"g": "10", "crf": "4"}
    plain = _clip(folder, "a.mp4", 60, options=good)
    front = _clip(folder, "a.mp4", 60, options=good, muxing={"movflags": "faststart"})
    matroska = _clip(folder, "a.mkv", 60, options=good)
    avi = _clip(folder, "a.avi", 60, codec="mpeg4", options={"g": "10", "b": "2M"})
    yield "zero-bytes.mp4", b"", Broken("empty", "0 bytes")
    yield "one-byte.mp4", b"\0", Broken("not_media", "no video that Longtake knows")
    yield "no-index.mp4", bytes(plain[: plain.index(b"moov") - 4]), Broken("truncated", "index (moov)")
    yield "cut-in-data.mp4", bytes(plain[: len(plain) // 2]), Broken("truncated", "'mdat' part")
    yield "cut-behind-index.mp4", bytes(front[: len(front) * 2 // 3]), DAMAGED
    yield "only-index.mp4", bytes(front[: front.index(b"mdat") + 4]), Broken("truncated", "shows none")
    yield "half.mkv", bytes(matroska[: len(matroska) * 2 // 3]), DAMAGED
    yield "header.mkv", bytes(matroska[:60]), Broken("truncated", "breaks off in its header")
    yield "half.avi", bytes(avi[: len(avi) * 2 // 3]), DAMAGED
    yield "header.avi", bytes(avi[:40]), Broken("truncated", "breaks off in its header")


def _not_videos() -> Iterator[Entry]:
    noise = np.random.default_rng(0).bytes(20_000)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("video.mkv", noise)
    foreign = Broken("not_media", "no video that Longtake knows")
    yield "noise.mp4", noise, foreign
    yield "noise.mkv", noise[::-1], foreign
    yield "notes.mp4", b"Dear diary, this is no film.\n" * 200, Broken("not_media", "Dear diary")
    yield "archive.mkv", archive.getvalue(), Broken("not_media", "ZIP archive")
    yield "page.mp4", b"<!DOCTYPE html>\n<title>Video unavailable</title>", Broken("not_media", "a web page")
    yield "pointer.mp4", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", Broken("not_media", "Git LFS")
    box = struct.pack(">I8sI", 24, b"ftypisom", 0) + b"isomavc1"
    yield "encrypted.mp4", box + noise, Broken("undecodable", "encrypted or damaged")


def _lying_headers(folder: Path, canary: Canary) -> Iterator[Entry]:
    plain = _clip(folder, "a.mp4", options={"g": "10", "bf": "0"})

    def patched(*patches: tuple[bytes, int, bytes]) -> bytes:
        """Each patch: the name of a box, how far behind it, and the bytes to put there."""
        data = bytearray(plain)
        for name, offset, value in patches:
            at = data.index(name, data.index(b"moov")) + 4 + offset
            data[at : at + len(value)] = value
        return bytes(data)

    def word(value: int) -> bytes:
        return struct.pack(">I", value)

    billion, most = word(10**9), word(2**32 - 2)
    yield "billion-times.mp4", patched((b"stts", 8, billion)), USED
    yield (
        "billion-frames.mp4",
        patched((b"stsz", 4, word(1) + billion), (b"stts", 8, billion)),
        Broken("truncated", "1,000,000,000 frames and shows none"),
    )
    yield "absurd-duration.mp4", patched((b"mvhd", 16, most), (b"mdhd", 16, most)), USED
    yield "zero-fps.mp4", patched((b"stts", 12, word(0))), USED
    yield "zero-clock.mp4", patched((b"mdhd", 12, word(0))), USED
    yield "huge-header.mp4", patched((b"avc1", 24, b"\xff" * 4), (b"tkhd", 76, b"\xff\xff\0\0" * 2)), USED
    yield "unknown-codec.mp4", patched((b"avc1", -4, b"zzzz"), (b"avcC", -4, b"zzzC")), Broken("undecodable", "codec")
    yield "elsewhere.mp4", _elsewhere(plain, canary), Broken("truncated", "lie in another file")
    start, end = plain.index(b"mdat") + 4, plain.index(b"moov") - 4
    yield "all-corrupt.mp4", bytes(plain[:start]) + bytes(end - start) + bytes(plain[end:]), Broken("undecodable", "")
    hidden = (b"elst", 8, struct.pack(">Ii", 1, 0x7FFFFF00))
    yield "all-hidden.mp4", patched(hidden), Broken("truncated", "hidden by its edit list")
    vp8 = _clip(folder, "a.webm", codec="libvpx")
    for at in _places(vp8, b"\x9d\x01\x2a"):
        vp8[at + 3 : at + 7] = struct.pack("<HH", 16_000, 16_000)
    yield "huge-frames.webm", bytes(vp8), Broken("undecodable", "89,478,485 pixels")
    jpeg = _clip(folder, "a.avi", codec="mjpeg", pixels="yuvj420p")
    for at in _places(jpeg, b"\xff\xc0"):
        jpeg[at + 5 : at + 9] = struct.pack(">HH", 65_500, 65_500)
    yield "huge-frames.avi", bytes(jpeg), Broken("undecodable", "")
    lossless = _clip(folder, "a.mkv", 2, codec="ffv1", size=(400, 300))
    for tag, side in ((b"\xb0\x82", 400), (b"\xba\x82", 300)):
        at = lossless.index(tag + struct.pack(">H", side))
        lossless[at + 2 : at + 4] = struct.pack(">H", 16_000)
    yield "huge-frames.mkv", bytes(lossless), Broken("too_large", "16000x16000 pixels")


def _elsewhere(plain: bytearray, canary: Canary) -> bytes:
    """Say that the frames lie in another file, as old QuickTime films may."""
    place = os.fsencode(canary.file)
    record = bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16) + b"\xff" * 4 + bytes(16)
    record += struct.pack(">HH", 2, len(place)) + place + bytes(len(place) % 2) + struct.pack(">HH", 0xFFFF, 0)
    entry = struct.pack(">I4sI", 12 + len(record), b"alis", 0) + record
    data = bytearray(plain)
    at = data.index(b"url \0\0\0\x01") - 4
    data[at : at + 12] = entry
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        head = data.index(box, data.index(b"moov")) - 4
        data[head : head + 4] = struct.pack(">I", struct.unpack(">I", data[head : head + 4])[0] + len(entry) - 12)
    return bytes(data)


def _places(data: bytearray, needle: bytes) -> list[int]:
    found = [data.find(needle)]
    while found[-1] >= 0:
        found.append(data.find(needle, found[-1] + 1))
    return found[:-1]


def _playlists(canary: Canary) -> Iterator[Entry]:
    hls = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{}\n#EXT-X-ENDLIST\n"
    dash = '<?xml version="1.0"?>\n<MPD profiles="urn:mpeg:dash:profile:isoff-live:2011"><BaseURL>{}</BaseURL></MPD>'
    texts = {
        "list.mp4": hls.format(canary.file),
        "list-url.ts": hls.format(canary.url),
        "list-data.mp4": hls.format("data:video/mp2t;base64,R0BBEA=="),
        "concat.mp4": f"ffconcat version 1.0\nfile '{canary.file}'\nfile '{canary.url}'\n",
        "session.mp4": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5000 RTP/AVP 96\n",
        "dash.mp4": dash.format(canary.url),
        "list.asf": f"[playlist]\nFile1={canary.url}\n",
        "reference.wmv": f'<asx version="3.0"><entry><ref href="{canary.url}"/></entry></asx>',
        "address.mp4": f"{canary.url}\n",
    }
    for name, text in texts.items():
        yield name, text.encode(), Broken("unsafe", "points to other files")
    yield "names.mp4", f"{canary.file}\n".encode(), Broken("not_media", "no video that Longtake knows")


def _pictures() -> Iterator[Entry]:
    def saved(image: Image.Image, kind: str, **how: object) -> bytearray:
        data = io.BytesIO()
        image.save(data, kind, **how)
        return bytearray(data.getvalue())

    picture = Image.fromarray(numbered_image(3))
    yield "photograph.mp4", bytes(saved(picture, "JPEG")), USED
    png = saved(picture, "PNG")
    broken = bytearray(png)
    broken[png.index(b"IDAT") + 10] ^= 255
    yield "broken-chunk.png", bytes(broken), Broken("truncated", "broken PNG picture")
    yield "cut.jpg", bytes(saved(picture, "JPEG")[:-200]), Broken("truncated", "broken JPEG picture")
    at = png.index(b"IHDR")
    bomb = bytearray(png)
    bomb[at + 4 : at + 12] = struct.pack(">II", 60_000, 60_000)
    bomb[at + 17 : at + 21] = struct.pack(">I", zlib.crc32(bomb[at : at + 17]))
    yield "bomb.png", bytes(bomb), Broken("too_large", "scale it down")
    yield "dot.png", bytes(saved(picture.resize((1, 1)), "PNG")), Broken("too_small", "1x1 pixels")
    moving = [Image.fromarray(numbered_image(n)) for n in range(4)]
    yield "moving.webp", bytes(saved(moving[0], "WEBP", save_all=True, append_images=moving[1:])), USED
    yield "moving.gif", bytes(saved(moving[0], "GIF", save_all=True, append_images=moving[1:])), USED
    yield "dot.gif", bytes(saved(picture.resize((1, 1)), "GIF")), Broken("too_small", "1x1 pixels")


def _strange_streams(folder: Path) -> Iterator[Entry]:
    def written(name: str, write: Callable[[Path], object]) -> bytes:
        path = folder / f".{name}"
        write(path)
        data = path.read_bytes()
        path.unlink()
        return data

    yield "sound.mp4", written("a.mp4", lambda p: make_sound(p, 440.0, 0.5)), Broken("no_video", "it holds audio")
    yield "cover.mp4", written("a.mp4", _sound_with_cover), Broken("no_video", "cover picture")
    yield "subtitles.mkv", written("a.mkv", _subtitles), Broken("no_video", "it holds subtitle")
    yield "no-frames.avi", written("a.avi", _no_frames), Broken("no_frames", "without a single frame")
    yield "8k.mp4", bytes(_clip(folder, "a.mp4", 1, size=(7680, 4320), options={"preset": "ultrafast"})), USED
    named = _clip(folder, "a.mp4", metadata={"title": "Zuerich"})
    at = named.rindex(b"Zuerich")
    named[at : at + 7] = b"Z\xfcrich\xff"
    yield "latin1-title.mp4", bytes(named), USED
    avi = _clip(folder, "a.avi", codec="mpeg4")
    at = avi.rindex(b"idx1") + 8
    avi[at:] = b"\xaa" * (len(avi) - at)
    yield "broken-index.avi", bytes(avi), USED
    small, large = _clip(folder, "a.ts", 10), _clip(folder, "a.ts", 10, size=(192, 128), delay=10)
    yield "changing-size.ts", bytes(small + large), Broken("", "promises more than it holds", damaged=True)


def _sound_with_cover(path: Path) -> None:
    make_sound(path, 440.0, 0.5)
    other = path.with_name(f"{path.stem}-cover{path.suffix}")
    with av.open(str(path)) as given, av.open(str(other), "w") as made:
        sound = given.streams.audio[0]
        copy = made.add_stream_from_template(sound)
        cover = made.add_stream("mjpeg", rate=1)
        assert isinstance(cover, av.VideoStream)
        cover.width, cover.height, cover.pix_fmt = 96, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.VideoFrame.from_ndarray(numbered_image(1), format="rgb24")
        made.mux([*cover.encode(frame), *cover.encode(None)])
        for packet in given.demux(sound):
            if packet.size:
                packet.stream = copy
                made.mux(packet)
    other.replace(path)


def _subtitles(path: Path) -> None:
    text = path.with_suffix(".srt")
    text.write_text("1\n00:00:00,000 --> 00:00:01,000\nwords\n\n")
    with av.open(str(text)) as given, av.open(str(path), "w") as made:
        copy = made.add_stream_from_template(given.streams.subtitles[0])
        for packet in given.demux():
            if packet.size:
                packet.stream = copy
                made.mux(packet)
    text.unlink()


def _no_frames(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.start_encoding()
