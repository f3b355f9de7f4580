"""The JSON that the HTTP API answers with, and the limits that it keeps."""

from typing import Literal

from pydantic import BaseModel, Field

from storage.options import Options
from storage.text.caption_writers import Format

MOST_CAPTIONS = 10
"""per clip"""
TEXT_FORMATS: dict[Format, str] = {
    "text": "text/plain",
    "csv": "text/csv",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
}
"""what answers can be besides JSON, and their media types"""
AnswerFormat = Literal["json", "text", "csv", "srt", "vtt"]


class Limits(Options):
    """What one visitor may ask for."""

    megabytes: float = Field(200, gt=0)
    """the largest upload"""
    seconds: float = Field(120, gt=0)
    """the longest that one upload is worked on"""
    waiting: int = Field(16, ge=0)
    """uploads that wait while one is worked on; more are asked to come again"""
    stalled: float = Field(30, gt=0)
    """seconds after which an upload that sends nothing is given up"""

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)


class RankedCaption(BaseModel):
    """One caption: its words, its log-probability, and the attention of each word."""

    caption: str
    log_prob: float
    attention: list[list[float]] | None = Field(description="for each word its weight on each position; null: none")


class FrameThumbnail(BaseModel):
    """A small picture of the video."""

    time: float = Field(description="seconds from the start")
    image: str = Field(description="a data: URL of a JPEG")


class ClipAnswer(BaseModel):
    """The captions of a file, or of one of its shots."""

    start: float = Field(description="seconds")
    end: float
    caption: str = Field(description="what the run's own search finds, as in its evaluation")
    n_best: list[RankedCaption] = Field(description="the caption and others, the likeliest first")
    times: list[float] | None = Field(description="seconds of the positions that attention is spread over, where known")
    frames: list[FrameThumbnail]


class CaptionAnswer(BaseModel):
    """The captions of an upload."""

    file: str = Field(description="the name that came with it")
    duration: float = Field(description="seconds")
    clips: list[ClipAnswer] = Field(description="the whole file, or its shots")
    problems: list[str] = Field(description="why parts of it have no caption")
    texts: dict[str, str] = Field(description="the same captions as text, csv, srt and vtt")
    seconds: float = Field(description="how long the work took")


class SampleClip(BaseModel):
    """A clip to try the captioner on: GET /api/sample."""

    name: str
    about: str = Field(description="where it is from")
    captions: list[str] = Field(description="what people wrote of it")


class Refusal(BaseModel):
    """Why there is no caption."""

    reason: str


class RunMetadata(BaseModel):
    """Which run captions here, and what it accepts."""

    run: str
    recipe: str
    dataset: str
    trained_at: str
    megabytes: float
    seconds: float
    n_best: int
    sample: SampleClip
