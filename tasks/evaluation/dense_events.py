"""ActivityNet's way of scoring: captions of events against those of both validation files that overlap them in time."""

from collections.abc import Mapping, Sequence

from models.metrics.dense_events import Event, ScoreMeteor, dense_scores
from storage.catalogue import Catalogue
from storage.datasets.activitynet import video_of
from storage.errors import UsageError
from storage.records import SPLITS
from storage.text.references import References

ANNOTATED: tuple[str, ...] = tuple(split for split in SPLITS if split != "train")
"""the splits whose annotations are references: those of both validation files"""


def score_events(
    catalogue: Catalogue,
    references: References,
    captions: Mapping[str, str],
    tious: Sequence[float],
    meteor: ScoreMeteor | None,
) -> dict[str, dict[str, float]]:
    """captions of segments by id -> the scores at each tIoU, and their mean. References are all annotated segments of a video."""
    spans = {id: record.segment for id, record in catalogue.records.items()}
    if untimed := [id for id in captions if spans.get(id) is None]:
        reason = f"evaluation.dense_events matches captions by time, but {untimed[0]} is no segment of a video"
        raise UsageError(f"{reason}; leave it out for this data set")

    def events(texts: Mapping[str, Sequence[str]]) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for id, sentences in sorted(texts.items()):
            if span := spans.get(id):
                found.setdefault(video_of(id), []).extend(Event(*span, sentence) for sentence in sentences)
        return found

    truth: dict[str, Sequence[str]] = {}
    for split in ANNOTATED:
        truth |= references.sentences(split)
    return dense_scores(events({id: [text] for id, text in captions.items()}), events(truth), tious, meteor)
