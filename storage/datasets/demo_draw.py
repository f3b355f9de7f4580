"""One scene of the demo world as arrays: its frames and its sound, drawn with numpy from signed distances.

A signed distance says how far a point is from an edge (negative inside), so one formula gives an anti-aliased shape at
any size and angle for all frames at once. Lengths are fractions of the frame's width."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.datasets.demo_scene import Bystander, Scene

SOUND_RATE = 16_000

Floats = NDArray[np.floating[Any]]  # float32 wherever a whole clip is held

_PAINT = {"red": (225, 38, 48), "green": (48, 178, 82), "blue": (46, 110, 240)}
_PAINT |= {"yellow": (250, 222, 62), "purple": (160, 72, 222), "orange": (252, 134, 24)}
_WIDTH = {"small": 0.27, "big": 0.48}
# Radius of each shape for a width of 1, chosen so that the four look equally large.
_REACH = {"circle": 0.5, "square": 0.45, "triangle": 0.62, "star": 0.62}
_TURN = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def draw_frames(scene: Scene, size: int, fps: int) -> NDArray[np.uint8]:
    """The whole clip, uneventful frames included: (frames, size, size, 3) RGB."""
    rng = np.random.Generator(np.random.PCG64(scene.grain))
    if scene.competing:
        before, after = (_standing(scene, other, size) for other in scene.competing)
        before, after = np.repeat(before, scene.start, axis=0), np.repeat(after, scene.frames - scene.end, axis=0)
    else:
        before = _dull(rng, scene.before, scene.start, size)
        after = _dull(rng, scene.after, scene.frames - scene.end, size)
    clip = np.concatenate([before, _event(scene, size, fps), after])
    return np.rint(np.clip(clip, 0, 1) * 255).astype(np.uint8)


def draw_sound(scene: Scene, fps: int) -> Floats:
    """The clip's sound track, mono from -1 to 1 at SOUND_RATE: (samples,). It is silent outside the event."""
    total, start, end = (n * SOUND_RATE // fps for n in (scene.frames, scene.start, scene.end))
    track = np.zeros(total, np.float32)
    time = np.arange(end - start) / SOUND_RATE
    wave: Floats
    if scene.sound == "low":
        base = 2 * np.pi * (90 + 40 * scene.pitch) * time
        wave = 0.3 * np.sin(base) + 0.15 * np.sin(2 * base) + 0.08 * np.sin(3 * base)
    elif scene.sound == "high":
        beeping = (time * (3 + scene.pitch)) % 1 < 0.6
        wave = 0.3 * beeping * np.sin(2 * np.pi * (1100 + 400 * scene.pitch) * time)
    elif scene.sound == "noise":
        wave = np.random.Generator(np.random.PCG64(scene.grain)).uniform(-0.3, 0.3, len(time))
    else:
        return track
    fade = np.minimum(1, np.minimum(time, time[::-1]) / 0.03)  # 30 ms, so that no click betrays the cut
    track[start:end] = wave * fade
    return track


def _event(scene: Scene, size: int, fps: int) -> Floats:
    """The frames in which something happens: (T, size, size, 3) from 0 to 1."""
    length = scene.end - scene.start
    x, y = _pixels(size)
    position, angle, scale, visibility = _action(scene, length, fps)
    turn = np.deg2rad(angle + scene.tilt).astype(np.float32)[:, None, None]
    dx, dy = x - position[:, 0, None, None], y - position[:, 1, None, None]
    u, v = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
    reach = (_WIDTH[scene.size] * _REACH[scene.shape] * scale)[:, None, None]
    distance = _SHAPES[scene.shape](u, v, reach)

    light = 1.12 - 0.24 * y  # the background is lit from above
    frames: Floats = np.repeat((light * np.ones_like(x))[None, :, :, None] * _vector(scene.shade), length, axis=0)
    paint = _vector(_PAINT[scene.colour]) / 255
    glow = 1.06 - 0.2 * np.clip(dy / np.maximum(reach, 1e-3), -1, 1)
    frames = _lay(frames, glow[..., None] * paint, _cover(distance, size) * visibility[:, None, None])
    if scene.detail != "none":
        cx, cy = scene.corner
        mark = _cover(_DETAILS[scene.detail](x - np.float32(cx), y - np.float32(cy)), size)
        frames = _lay(frames, _vector((0.97, 0.97, 0.97)), np.broadcast_to(mark, frames.shape[:3]))
    return frames


def _standing(scene: Scene, other: Bystander, size: int) -> Floats:
    """One frame of the scene with a bystander in place of its subject: (1, size, size, 3) from 0 to 1. Background and detail are
    the event's, so that nothing but the missing motion tells it from one."""
    subject = replace(scene, colour=other.colour, shape=other.shape, size=other.size, at=other.at, tilt=other.tilt)
    return _event(replace(subject, action="stands", start=0, end=1), size, fps=1)


def _action(scene: Scene, length: int, fps: int) -> tuple[Floats, Floats, Floats, Floats]:
    """The subject in each of `length` frames: position (T, 2), angle (T,) in degrees, scale (T,), visibility (T,)."""
    done: Floats = np.linspace(0, 1, length, dtype=np.float32)
    seconds: Floats = np.arange(length, dtype=np.float32) / fps
    position = np.tile(_vector(scene.at), (length, 1))
    angle, scale, visibility = np.zeros_like(done), np.ones_like(done), np.ones_like(done)
    if scene.action == "stands":
        return position, angle, scale, visibility
    if scene.action in _TURN:
        travel = 0.55 + 0.13 * scene.pace
        position += (done - 0.5)[:, None] * _vector(_TURN[scene.action]) * travel
    elif scene.action == "spins":
        # At most 34 degrees in two frames at 12 per second: a star looks the same every 72 and must not seem to stand.
        angle = seconds * (150 + 50 * scene.pace) * (1 if scene.clockwise else -1)
    elif scene.action == "grows":
        scale = 0.45 + (0.65 + 0.15 * scene.pace) * done
    elif scene.action == "bounces":
        hop = (seconds * (1.3 + 0.4 * scene.pace)) % 1
        height = 0.3 + 0.08 * scene.pace
        position[:, 1] += height / 2 - height * 4 * hop * (1 - hop)
    elif scene.action == "blinks":
        visibility = ((seconds * (1.7 + 0.5 * scene.pace)) % 1 < 0.5).astype(np.float32)
    else:
        raise ValueError(f"no action '{scene.action}' in the demo world")
    return position, angle, scale, visibility


def _dull(rng: np.random.Generator, kind: str, length: int, size: int) -> Floats:
    """Frames without any event: (length, size, size, 3) in grey."""
    x, y = _pixels(size)
    time = np.arange(length, dtype=np.float32)[:, None, None]
    level, angle, phase = rng.uniform(0.3, 0.5), rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi)
    along = x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))
    if kind == "bars":
        grey = level + 0.08 * np.tanh(3 * np.sin(2 * np.pi * 3 * along + 0.35 * time + phase))
    elif kind == "gradient":
        grey = level + 0.2 * (along - along.mean()) * np.cos(0.08 * time + phase)
    else:
        cells = rng.uniform(-0.09, 0.09, (length, 24, 24))
        index = np.arange(size) * 24 // size
        grey = level + cells[:, index][:, :, index]
    return np.repeat(np.broadcast_to(grey, (length, size, size))[..., None], 3, axis=-1).astype(np.float32)


def _vector(values: tuple[float, ...]) -> Floats:
    return np.array(values, np.float32)


def _pixels(size: int) -> tuple[Floats, Floats]:
    """The centres of all pixels: x and y, each (size, size) from 0 to 1."""
    line = (np.arange(size, dtype=np.float32) + 0.5) / size
    x, y = np.meshgrid(line, line)
    return x, y


def _cover(distance: Floats, size: int) -> Floats:
    """How much of each pixel lies inside, from its centre's distance to the edge; same shape, 0 to 1."""
    return np.clip(0.5 - distance * size, 0, 1)


def _lay(frames: Floats, paint: Floats, cover: Floats) -> Floats:
    """frames (T, H, W, 3), paint (3,) or (T, H, W, 3), cover (T, H, W) -> painted frames (T, H, W, 3)."""
    return frames + (paint - frames) * cover[..., None]


def _triangle(u: Floats, v: Floats, reach: Floats) -> Floats:
    side = np.float32(np.sqrt(3) / 2)
    # between its centroid and the middle of its height, so that it neither wobbles nor hangs too high
    low = v - reach / 8
    return np.maximum(low, side * np.abs(u) - low / 2) - reach / 2


def _star(u: Floats, v: Floats, reach: Floats) -> Floats:
    """Five points: every tenth of the turn is folded onto the one edge between a tip and the dent beside it."""
    tenth = np.float32(np.pi / 5)
    radius = np.hypot(u, v)
    folded = np.abs((np.arctan2(u, -v) + tenth) % (2 * tenth) - tenth)
    dent = 0.45  # of the tip's radius
    along = np.array([1 - dent * np.cos(tenth), -dent * np.sin(tenth)], np.float32)  # from the dent to the tip
    nx, ny = -along[1] / np.hypot(*along), along[0] / np.hypot(*along)
    return radius * np.cos(folded) * nx + radius * np.sin(folded) * ny - reach * nx


def _cross(u: Floats, v: Floats) -> Floats:
    long, short = np.maximum(np.abs(u), np.abs(v)), np.minimum(np.abs(u), np.abs(v))
    return np.maximum(long - 0.085, short - 0.024)


_SHAPES: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "circle": lambda u, v, reach: np.hypot(u, v) - reach,
    "square": lambda u, v, reach: np.maximum(np.abs(u), np.abs(v)) - reach,
    **{"triangle": _triangle, "star": _star},
}
_DETAILS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "cross": _cross,
    "dot": lambda u, v: np.hypot(u, v) - np.float32(0.05),
    "ring": lambda u, v: np.abs(np.hypot(u, v) - np.float32(0.068)) - np.float32(0.018),
}
