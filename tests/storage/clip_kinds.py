"""The kinds of clips on which frame accuracy is shown: codecs, containers, frame rates, shapes and turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

COUNT = 90
UNEVEN = np.cumsum([0, *([20, 40, 120, 40] * COUNT)])[:COUNT].tolist()
HEVC = "log-level=none:pools=none"
OPEN = "open-gop=1:keyint=20:scenecut=0"
B12 = {"bf": "2", "g": "12"}


@dataclass(frozen=True)
class Kind:
    """A kind of clip: the reader that must be chosen to read all of it, whether unwanted frames may be jumped over, and
    how exact its container's clock is."""

    file: str
    reader: str
    jumps: bool = False
    quick: bool = False
    count: int = COUNT
    within: float = 1e-6
    how: dict[str, Any] = field(default_factory=dict)


def kind(file: str, reader: str, *marks: str, count: int = COUNT, within: float = 1e-6, **how: Any) -> Kind:
    return Kind(file, reader, "jumps" in marks, "quick" in marks, count, within, how)


MILLISECOND = 1e-3
KINDS = {
    "h264, B-frames, one long GOP": kind("a.mp4", "decord", "quick", options={"bf": "3", "g": "250", "sc_threshold": "0"}),
    "h264, short GOPs": kind("a.mp4", "decord", "jumps", "quick", options={"bf": "3", "g": "12"}),
    "h264, short GOPs, MKV": kind("a.mkv", "decord", "jumps", options={"bf": "3", "g": "12"}),
    "h264, open GOPs": kind("a.mp4", "decord", "quick", options={"bf": "3", "x264-params": OPEN}),
    "h264, open GOPs, MKV": kind("a.mkv", "decord", options={"bf": "3", "x264-params": OPEN}),
    "h264, pyramid, no edit list": kind(
        "a.mp4",
        "decord",
        "jumps",
        options={"bf": "5", "g": "20", "x264-params": "b-pyramid=normal:ref=5"},
        muxing={"use_editlist": "0"},
    ),
    "h264, intra refresh": kind("a.mp4", "decord", options={"x264-params": "intra-refresh=1:keyint=20:scenecut=0"}),
    "h264, interlaced": kind("a.mp4", "decord", "jumps", options={**B12, "x264-params": "interlaced=1"}),
    "h264, 10 bit": kind("a.mp4", "pyav", "jumps", pixels="yuv420p10le", options=B12),
    "h264, 4:2:2": kind("a.mp4", "pyav", "jumps", pixels="yuv422p", options=B12),
    "h264, 4:4:4, odd size": kind("a.mp4", "pyav", "jumps", size=(97, 65), pixels="yuv444p", options=B12),
    "h264, full range": kind("a.mp4", "decord", "jumps", pixels="yuvj420p", options=B12),
    "hevc as x265 makes it": kind("a.mp4", "decord", "quick", codec="libx265", options={"x265-params": HEVC}),
    "hevc, open GOPs": kind("a.mp4", "decord", "jumps", codec="libx265", options={"x265-params": f"{HEVC}:keyint=30"}),
    "hevc, open GOPs, MKV": kind("a.mkv", "decord", "jumps", codec="libx265", options={"x265-params": f"{HEVC}:keyint=30"}),
    "hevc, closed GOPs, 10 bit": kind(
        "a.mkv", "pyav", "jumps", codec="libx265", pixels="yuv420p10le", options={"x265-params": f"{HEVC}:keyint=20:open-gop=0"}
    ),
    "mpeg4 with B-frames in AVI": kind("a.avi", "pyav", "quick", codec="mpeg4", options=B12),
    "mpeg4 with B-frames in MP4": kind("a.mp4", "decord", "jumps", codec="mpeg4", options=B12),
    "mpeg4 with B-frames in MKV": kind("a.mkv", "decord", "jumps", codec="mpeg4", options=B12),
    "h264 with B-frames in AVI": kind("a.avi", "pyav", "quick", options=B12),
    "msmpeg4 in AVI": kind("a.avi", "pyav", codec="msmpeg4v2"),
    "mjpeg in AVI": kind("a.avi", "pyav", codec="mjpeg", pixels="yuvj420p"),
    "huffyuv in AVI": kind("a.avi", "pyav", codec="huffyuv", pixels="yuv422p"),
    "vp9": kind("a.webm", "decord", "jumps", "quick", codec="libvpx-vp9", options={"cpu-used": "8", "g": "20"}),
    "vp9 with hidden frames": kind(
        "a.webm",
        "decord",
        "jumps",
        codec="libvpx-vp9",
        options={"cpu-used": "8", "g": "30", "auto-alt-ref": "1", "lag-in-frames": "16"},
    ),
    "vp9, odd size": kind("a.webm", "decord", "quick", codec="libvpx-vp9", size=(97, 65), options={"cpu-used": "8"}),
    "vp8 with hidden frames": kind(
        "a.webm", "decord", "jumps", codec="libvpx", options={"auto-alt-ref": "1", "lag-in-frames": "16", "b": "500k", "g": "20"}
    ),
    "vp8 in Ogg": kind("a.ogv", "pyav", codec="libvpx"),
    "vp9 in IVF": kind("a.ivf", "pyav", codec="libvpx-vp9", options={"cpu-used": "8"}),
    "av1": kind("a.mp4", "pyav", codec="libsvtav1", options={"preset": "8", "crf": "10", "g": "20"}),
    "av1 in WebM": kind("a.webm", "pyav", codec="libsvtav1", options={"preset": "8", "crf": "10", "g": "20"}),
    "MPEG transport stream": kind("a.ts", "pyav", "quick", options=B12),
    "MPEG transport stream, hevc": kind("a.ts", "pyav", codec="libx265", options={"x265-params": f"{HEVC}:keyint=30"}),
    "MPEG transport stream, mpeg2": kind("a.ts", "pyav", codec="mpeg2video", options=B12),
    "MPEG program stream": kind("a.mpg", "pyav", "quick", codec="mpeg2video", options={"bf": "2"}),
    "MPEG program stream, mpeg1": kind("a.mpg", "pyav", codec="mpeg1video", options={"bf": "2"}),
    "mpeg2, interlaced": kind("a.mpg", "pyav", codec="mpeg2video", options={"flags": "+ildct+ilme", "bf": "2"}),
    "mpeg2 without a container": kind("a.m2v", "pyav", codec="mpeg2video", options={"bf": "2"}),
    "h264 without a container": kind("a.h264", "pyav", "quick", options={"bf": "2"}),
    "hevc without a container": kind("a.hevc", "pyav", codec="libx265", options={"x265-params": HEVC}),
    "WMV": kind("a.wmv", "pyav", "quick", codec="wmv2"),
    "FLV": kind("a.flv", "pyav", options=B12),
    "FLV, Sorenson": kind("a.flv", "pyav", codec="flv1"),
    "GIF": kind("a.gif", "pyav", codec="gif", pixels="rgb8"),
    "MXF": kind("a.mxf", "pyav", codec="mpeg2video", options=B12),
    "RealMedia": kind("a.rm", "pyav", codec="rv20", size=(176, 144), within=MILLISECOND),
    "3GP": kind("a.3gp", "pyav", codec="h263", size=(176, 144)),
    "NUT": kind("a.nut", "pyav", options=B12),
    "ProRes": kind("a.mov", "pyav", "jumps", codec="prores_ks", pixels="yuv422p10le"),
    "mjpeg in MOV": kind("a.mov", "pyav", "jumps", codec="mjpeg", pixels="yuvj420p"),
    "ffv1": kind("a.mkv", "pyav", codec="ffv1"),
    "fragments": kind("a.mp4", "decord", options=B12, muxing={"movflags": "dash+frag_keyframe+global_sidx"}),
    "a fragment for every GOP": kind("a.mp4", "decord", options=B12, muxing={"movflags": "frag_keyframe+empty_moov"}),
    "variable frame rate": kind("a.mp4", "pyav", "jumps", "quick", times=UNEVEN, options=B12),
    "variable frame rate, MKV": kind("a.mkv", "pyav", "jumps", times=UNEVEN, options=B12),
    "29.97 frames a second": kind("a.mp4", "decord", "jumps", fps=Fraction(30000, 1001), options=B12),
    "29.97 in MKV": kind("a.mkv", "decord", "jumps", fps=Fraction(30000, 1001), options=B12, within=MILLISECOND),
    "1 frame a second": kind("a.mp4", "decord", "jumps", fps=1, options=B12),
    "240 frames a second": kind("a.mp4", "decord", "jumps", fps=240, options=B12),
    "240 in MKV": kind("a.mkv", "decord", "jumps", fps=240, options=B12, within=MILLISECOND),
    "turned by 90": kind("a.mp4", "pyav", "jumps", "quick", rotation=90, options=B12),
    "turned by 180": kind("a.mkv", "pyav", "jumps", rotation=180, options=B12),
    "turned by 270": kind("a.mp4", "pyav", "jumps", rotation=270, options=B12),
    "mirrored": kind("a.mp4", "pyav", "jumps", mirrored=True, options=B12),
    "turned by 90 and mirrored": kind("a.mp4", "pyav", "jumps", "quick", rotation=90, mirrored=True, options=B12),
    "pixels that are not square": kind("a.mp4", "decord", "jumps", aspect=Fraction(4, 3), options=B12),
    "48 pixels wide": kind("a.mp4", "decord", "jumps", "quick", size=(48, 64), options=B12),
    "2 pixels wide": kind("a.mp4", "decord", "jumps", size=(2, 128), options=B12),
    "2 pixels high": kind("a.mp4", "decord", "jumps", size=(128, 2), options=B12),
    "a late start": kind("a.mp4", "decord", "jumps", "quick", delay=40, options=B12),
    "a late start, MKV": kind("a.mkv", "decord", "jumps", delay=40, options=B12),
    "a late start, TS": kind("a.ts", "pyav", delay=40, options=B12),
    "with sound": kind("a.mp4", "decord", "jumps", tone=440.0, options=B12),
    "sound longer than the film": kind("a.mp4", "decord", "jumps", tone=440.0, sound=6.0, options=B12),
    "sound longer than the film, MKV": kind("a.mkv", "decord", "jumps", tone=440.0, sound=6.0, options=B12),
    "one frame": kind("a.mp4", "decord", "quick", count=1),
    "one frame, AVI": kind("a.avi", "pyav", count=1, codec="mpeg4"),
    "0.2 seconds": kind("a.mp4", "decord", "quick", count=5),
    "0.2 seconds, TS": kind("a.ts", "pyav", count=5),
}
