"""The JSON that the HTTP API answers with, and the limits that it keeps."""

from pydantic import BaseModel, Field

from storage.options import Options

MOST_CAPTIONS = 10
"""per upload"""


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


class CaptionAnswer(BaseModel):
    """The captions of an upload."""

    caption: str
    n_best: list[RankedCaption] = Field(description="the caption, then others, the likeliest first")
    times: list[float] | None = Field(description="seconds of the positions that attention is spread over, where known")
    duration: float = Field(description="seconds")
    frames: list[FrameThumbnail]
    seconds: float = Field(description="how long the work took")


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
