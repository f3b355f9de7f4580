"""Random access points: the packets from which on a stream decodes without anything before them.

The container's keyframe flag is not enough: it may mark a picture of an open GOP, after which frames still refer to earlier
pictures. So the first bytes of the packet itself are read. A codec that is not listed here is decoded from its beginning."""

from collections.abc import Iterator

import av

H264_IDR = 5
HEVC_STARTS = range(16, 22)
"""IDR, BLA and CRA pictures: no picture shown after them may refer to one before them."""


def is_random_access_point(packet: av.Packet) -> bool:
    """Whether decoding may begin with this packet and give, from its own picture on, the same bits as a whole pass."""
    context = packet.stream.codec_context
    header = context.extradata or b""
    data = bytes(packet)
    if not packet.is_keyframe or not data:
        return False
    match context.codec.canonical_name:
        case "h264":
            kinds = [unit[0] & 31 for unit in _units(data, header[4] & 3)] if _is_mp4_style(header, 7) else []
            return H264_IDR in kinds
        case "hevc":
            kinds = [unit[0] >> 1 & 63 for unit in _units(data, header[21] & 3)] if _is_mp4_style(header, 23) else []
            pictures = [kind for kind in kinds if kind < 32]
            return bool(pictures) and all(kind in HEVC_STARTS for kind in pictures)
        case "vp8":
            return data[0] & 1 == 0
        case "vp9":
            return _is_vp9_keyframe(data[0])
        case "mpeg4":
            at = data.find(b"\0\0\1\xb6")
            return 0 <= at < len(data) - 4 and data[at + 4] >> 6 == 0
        case "mjpeg" | "prores" | "dnxhd":
            return True
    return False


def _is_mp4_style(header: bytes, least: int) -> bool:
    """Whether packets are units with their lengths before them (as in MP4 and Matroska), not start codes."""
    return len(header) >= least and header[0] == 1


def _units(data: bytes, length_minus_one: int) -> Iterator[bytes]:
    """The first bytes of every unit of a packet; nothing more once the lengths stop making sense."""
    at, size = 0, length_minus_one + 1
    while at + size < len(data):
        length = int.from_bytes(data[at : at + size], "big")
        at += size
        if length == 0 or at + length > len(data):
            return
        yield data[at : at + 2]
        at += length


def _is_vp9_keyframe(first: int) -> bool:
    """The bits: marker 10, two bits of profile (3 has one more), show an existing frame, not a keyframe."""
    profile = (first >> 5 & 1) | (first >> 3 & 2)
    shift = 1 if profile == 3 else 0
    return first >> 6 == 2 and not first >> (3 - shift) & 1 and not first >> (2 - shift) & 1
