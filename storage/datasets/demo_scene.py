"""The demo world's scene grammar: which scenes exist, which split each belongs to, and its captions.

Everything here is a pure function of the seed and the counts; nothing is drawn. A scene is one subject that does one
thing (the event) between two dull stretches that have nothing to do with it. Combinations of (colour, shape, action)
are disjoint across splits, words are shared. Some scenes have a near duplicate, alike in all but one property. Some captions
are lazy or wrong on purpose; `DemoCaption.kind` keeps the truth about them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, field_validator

from storage.datasets.dataset import DatasetName, TrainShareOptions
from storage.records import SPLITS, Split

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "star")
SIZES = ("small", "big")
ACTIONS = ("left", "right", "up", "down", "spins", "grows", "bounces", "blinks")
DETAILS = ("none", "cross", "dot", "ring")
SOUNDS = ("none", "low", "high", "noise")
DULL = ("bars", "gradient", "static")
CORNERS = ((0.12, 0.12), (0.88, 0.12), (0.12, 0.88), (0.88, 0.88))

NEAR_DUPLICATE_EVERY = 5  # one scene in five is drawn twice, so a third of all clips has a near duplicate
LAZY_SHARE = 0.2
WRONG_SHARE = 0.1
DETAIL_SHARE = 0.3

Triple = tuple[str, str, str]
CaptionKind = Literal["good", "lazy", "wrong"]


@dataclass(frozen=True, slots=True)
class Bystander:
    """Another subject outside the event: it only stands there, and no caption speaks of it."""

    colour: str
    shape: str
    size: str
    at: tuple[float, float]
    tilt: float


@dataclass(frozen=True, slots=True)
class Scene:
    """All that decides the pixels and the sound of one clip. Places are fractions of the width, x right and y down;
    the event fills the frames `start` <= n < `end` of `frames`."""

    colour: str
    shape: str
    size: str
    action: str
    detail: str
    sound: str
    corner: tuple[float, float]
    at: tuple[float, float]
    """Where the subject is in the middle of its action."""
    pace: float
    """0 (calm) to 1 (brisk): how far it travels, how fast it spins, hops or blinks."""
    clockwise: bool
    tilt: float
    """Degrees that the shape leans from upright."""
    shade: tuple[float, float, float]
    """Background, red green blue from 0 to 1."""
    pitch: float
    """0 to 1 within the range of its kind of sound."""
    before: str
    after: str
    frames: int
    start: int
    end: int
    grain: int
    """Seed of everything grainy: the dull stretches and the noise."""
    competing: tuple[Bystander, ...] = ()
    """Who stands before and after the event, in place of the dull stretches; nobody by default."""


@dataclass(frozen=True, slots=True)
class DemoCaption:
    """One caption and its kind: good, lazy or wrong."""

    text: str
    kind: CaptionKind


@dataclass(frozen=True, slots=True)
class DemoClip:
    """A scene with a name, a split, captions, and the near duplicate that differs from it in `differs`."""

    id: str
    split: Split
    scene: Scene
    captions: tuple[DemoCaption, ...]
    near_duplicate: str | None = None
    differs: str | None = None


class DemoOptions(TrainShareOptions):
    """What the demo world looks like."""

    kind: Literal["demo"] = "demo"
    """Which reader understands the data set."""
    name: DatasetName = "demo"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """Folder of the world; without it, the caller chooses one."""
    seed: int = Field(default=0, ge=0)
    """Another seed gives another world."""
    train: int = Field(default=320, ge=1, le=9999)
    """Clips to train on."""
    val: int = Field(default=40, ge=0, le=9999)
    """Clips to choose a model by."""
    test: int = Field(default=60, ge=0, le=9999)
    """Clips to score the model on."""
    size: int = Field(default=96, ge=32, le=1024)
    """Width and height of a clip in pixels; even."""
    fps: int = Field(default=12, ge=6, le=60)
    """Frames per second."""
    seconds: float = Field(default=3.0, ge=1, le=60)
    """Length of a clip."""
    event: tuple[float, float] = (0.5, 0.73)
    """The least and the largest part of a clip that its event takes. Below a half, events can miss the middle of their clips."""
    competing: bool = False
    """Whether other subjects stand before and after the event; captions speak of the one that moves, in the event."""
    captions: int = Field(default=10, ge=1, le=100)
    """Captions of each clip."""
    detail_share: float = Field(default=DETAIL_SHARE, ge=0, le=0.7)
    """Part of the captions that speak of the small detail in the corner, where there is one."""

    @field_validator("size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:
            raise ValueError(f"size {size} is odd; H.264 stores colour for pairs of pixels, so use an even number")
        return size

    @field_validator("event")
    @classmethod
    def _a_part(cls, event: tuple[float, float]) -> tuple[float, float]:
        if not 0.2 <= event[0] <= event[1] <= 0.9:
            raise ValueError(f"event {list(event)} must be two parts of a clip, from 0.2 to 0.9, the smaller one first")
        return event

    @property
    def frames(self) -> int:
        """Frames of each clip."""
        return round(self.seconds * self.fps)

    def drawn(self) -> dict[str, Any]:
        """What decides the bytes of a world; `competing` only where it is set, so that older worlds stay what they are."""
        unsaid = {"kind", "name", "path", "train_share"} | (set() if self.competing else {"competing"})
        return self.model_dump(mode="json", exclude=unsaid)

    def plan(self) -> list[DemoClip]:
        """All clips in their order. A clip does not change when only the counts grow, and its pixels do not change with
        `detail_share`."""
        clips: list[DemoClip] = []
        seed = self.seed
        for split, triples in scenes_by_split(seed).items():
            done, scenes, count = 0, 0, getattr(self, split)
            while done < count:
                rng = random.Random(f"{seed}/{split}/{scenes}")
                scene = _draw_scene(rng, triples[scenes % len(triples)], self.frames, self.event)
                if self.competing:
                    scene = _with_bystanders(random.Random(f"{seed}/{split}/{scenes}/competing"), scene)
                pair, differs = [scene], None
                if scenes % NEAR_DUPLICATE_EVERY == 0 and count - done >= 2:
                    differs = ("detail", "sound", "size")[scenes // NEAR_DUPLICATE_EVERY % 3]
                    pair.append(_other(rng, scene, differs))
                ids = [f"{split}-{done + n + 1:04d}" for n in range(len(pair))]
                for id, other, one in zip(ids, reversed(ids), pair, strict=True):
                    rng = random.Random(f"{seed}/captions/{id}")
                    written = write_captions(rng, one, self.captions, self.detail_share)
                    clips.append(DemoClip(id, split, one, written, other if differs else None, differs))
                done += len(pair)
                scenes += 1
        return clips


def scenes_by_split(seed: int) -> dict[Split, list[Triple]]:
    """Every possible (colour, shape, action) in exactly one split, each split shuffled.

    A Latin square over the three: of the six colours of any shape and action, one goes to val, one to test and four to
    train, so that training sees every pair of properties and only their combination is new later."""
    rng = random.Random(f"{seed}/triples")
    colours, shapes, actions = (rng.sample(names, len(names)) for names in (COLOURS, SHAPES, ACTIONS))
    found: dict[Split, list[Triple]] = {split: [] for split in SPLITS}
    for c, colour in enumerate(colours):
        for s, shape in enumerate(shapes):
            for a, action in enumerate(actions):
                if possible(shape, action):
                    remainder = (c + s + a) % len(COLOURS)
                    split: Split = "test" if remainder == 0 else "val" if remainder == 1 else "train"
                    found[split].append((colour, shape, action))
    return {split: rng.sample(found[split], len(found[split])) for split in SPLITS}


def possible(shape: str, action: str) -> bool:
    """Whether the action can be seen: a plain circle does not seem to spin."""
    return (shape, action) != ("circle", "spins")


def _draw_scene(rng: random.Random, triple: Triple, frames: int, event: tuple[float, float]) -> Scene:
    colour, shape, action = triple
    length = max(1, round(frames * rng.uniform(*event)))
    start = rng.randint(min(2, frames - length), max(frames - length - 2, min(2, frames - length)))
    light = rng.uniform(0.08, 0.26)
    across, along = rng.uniform(0.32, 0.68), rng.uniform(0.46, 0.54)
    positions = {"left": (along, across), "right": (along, across), "up": (across, along), "down": (across, along)}
    # In the order of Scene's fields: another order would draw other values.
    size, detail, sound = (rng.choice(values) for values in (SIZES, DETAILS, SOUNDS))
    corner, at = rng.choice(CORNERS), positions.get(action, (across, rng.uniform(0.36, 0.64)))
    pace, clockwise, tilt = rng.random(), rng.random() < 0.5, rng.uniform(-6, 6)
    shade = (light * rng.uniform(0.8, 1.0), light * rng.uniform(0.9, 1.1), light * rng.uniform(1.1, 1.5))
    pitch, before, after = rng.random(), rng.choice(DULL), rng.choice(DULL)
    place = (corner, at, pace, clockwise, tilt, shade, pitch, before, after, frames, start, start + length)
    return Scene(colour, shape, size, action, detail, sound, *place, grain=rng.getrandbits(32))


def _with_bystanders(rng: random.Random, scene: Scene) -> Scene:
    """The scene with one bystander before the event and one after it, both unlike its subject in colour and shape."""
    colours = rng.sample([colour for colour in COLOURS if colour != scene.colour], 2)
    shapes = rng.sample([shape for shape in SHAPES if shape != scene.shape], 2)
    at = [(rng.uniform(0.32, 0.68), rng.uniform(0.36, 0.64)) for _ in colours]
    drawn = [
        Bystander(colour, shape, rng.choice(SIZES), place, rng.uniform(-6, 6))
        for colour, shape, place in zip(colours, shapes, at, strict=True)
    ]
    return replace(scene, competing=tuple(drawn))


def _other(rng: random.Random, scene: Scene, differs: str) -> Scene:
    """The same scene with one property changed."""
    values = {"detail": DETAILS, "sound": SOUNDS, "size": SIZES}[differs]
    return _replace(scene, differs, rng.choice([x for x in values if x != getattr(scene, differs)]))


def _replace(scene: Scene, name: str, value: Any) -> Scene:
    return replace(scene, **{name: value})


# The first word or phrase of each row is what most people say.
_SHAPE_WORDS = {"circle": ["circle", "ball"], "square": ["square", "box"], "triangle": ["triangle"], "star": ["star"]}
_SIZE_WORDS = {"small": ("small", "little"), "big": ("big", "large")}
# (what it does, what it is doing)
_ACTION_WORDS = {
    "left": (("moves left", "moving left"), ("slides to the left", "sliding to the left")),
    "right": (("moves right", "moving right"), ("slides to the right", "sliding to the right")),
    "up": (("moves up", "moving up"), ("rises", "rising")),
    "down": (("moves down", "moving down"), ("falls", "falling")),
    "spins": (("spins", "spinning"), ("turns around", "turning around")),
    "grows": (("grows", "growing"), ("gets bigger", "getting bigger")),
    "bounces": (("bounces", "bouncing"), ("jumps", "jumping")),
    "blinks": (("blinks", "blinking"), ("flashes", "flashing")),
}
_SOUND_WORDS = {"low": ("low hum", "deep hum"), "high": ("high beep",), "noise": ("loud noise", "hissing noise")}
_SENTENCES = (
    *("{one} {does}", "{one} is {doing}", "the {subject} is {doing}", "the {subject} {does}"),
    *("there is {one} {doing}", "we see {one} {doing}", "a video of {one} {doing}", "{one} {does} on the screen"),
)
_DETAIL_ENDINGS = (
    *("near a white {thing} in the corner", "with a white {thing} in the corner"),
    *("next to a tiny white {thing}", "and there is a white {thing} in the corner"),
)
_SOUND_ENDINGS = ("while a {thing} plays", "with a {thing}", "and we hear a {thing}")
_SILENT_ENDINGS = ("without any sound", "in silence")
# None begins like a good sentence: what a model says first must not already commit it to saying nothing.
_LAZY = (
    *("something happens on the screen", "something is on the screen", "something is in the video", "something moves"),
    *("some shape does something", "some shape is on the screen", "some shape is in the video"),
    *("the screen shows some shape", "the screen shows something", "the video shows something"),
)


def write_captions(rng: random.Random, scene: Scene, count: int, detail_share: float) -> tuple[DemoCaption, ...]:
    """`count` captions of a scene in a fixed order, all different as long as the grammar allows."""
    lazy, wrong = (int(count * share + rng.random()) for share in (LAZY_SHARE, WRONG_SHARE))
    planned: dict[CaptionKind, int] = {"lazy": lazy, "wrong": wrong, "good": count}
    kinds = [kind for kind, times in planned.items() for _ in range(times)][:count]
    rng.shuffle(kinds)
    captions: list[DemoCaption] = []
    for kind in kinds:
        for _ in range(20):
            described = _mistaken(rng, scene) if kind == "wrong" else scene
            text = rng.choice(_LAZY) if kind == "lazy" else _sentence(rng, described, detail_share)
            if all(text != earlier.text for earlier in captions):
                break
        captions.append(DemoCaption(text, kind))
    return tuple(captions)


def _mistaken(rng: random.Random, scene: Scene) -> Scene:
    """The scene with a wrong colour, shape or action: the subject of a wrong caption."""
    name, values = rng.choice((("colour", COLOURS), ("shape", SHAPES), ("action", ACTIONS)))
    others = [_replace(scene, name, value) for value in values if value != getattr(scene, name)]
    return rng.choice([other for other in others if possible(other.shape, other.action)])


def _sentence(rng: random.Random, scene: Scene, detail_share: float) -> str:
    words = [scene.colour, _usual(rng, _SHAPE_WORDS[scene.shape])]
    if rng.random() < 0.5:
        words.insert(0, _usual(rng, _SIZE_WORDS[scene.size]))
    subject = " ".join(words)
    one = f"an {subject}" if subject[0] in "aeiou" else f"a {subject}"
    does, doing = _ACTION_WORDS[scene.action][0 if rng.random() < 0.65 else 1]
    sentence = rng.choice(_SENTENCES).format(one=one, subject=subject, does=does, doing=doing)
    return f"{sentence} {_ending(rng, scene, detail_share)}".strip()


def _ending(rng: random.Random, scene: Scene, detail_share: float) -> str:
    """`detail_share` of the captions end with the detail, three in ten with the sound, if there is one; fewer notice silence."""
    chance = rng.random()
    if chance < detail_share:
        return "" if scene.detail == "none" else rng.choice(_DETAIL_ENDINGS).format(thing=scene.detail)
    if chance < detail_share + 0.3 and scene.sound != "none":
        return rng.choice(_SOUND_ENDINGS).format(thing=_usual(rng, _SOUND_WORDS[scene.sound]))
    if chance < detail_share + 0.15 and scene.sound == "none":
        return rng.choice(_SILENT_ENDINGS)
    return ""


def _usual(rng: random.Random, words: Sequence[str]) -> str:
    return words[0] if rng.random() < 0.65 else rng.choice(words)
