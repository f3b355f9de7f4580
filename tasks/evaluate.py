"""Evaluate: the captions of a split against its references."""

from __future__ import annotations

from models.scores.corpus import score_corpus
from models.scores.java import JavaFailed
from models.scores.meteor import Meteor
from storage.atomic import write_json
from storage.errors import BadInput
from storage.options import Options
from storage.records import ArtifactRef, Split
from storage.references import References
from storage.results import read_captions
from tasks.stage import Made, Work, stage

SCORES = ("CIDEr", "BLEU-4", "ROUGE-L", "BLEU-1", "BLEU-2", "BLEU-3")  # in the order people look at them


class EvaluationOptions(Options):
    """What is scored."""

    split: Split = "test"
    """the split whose captions are made and scored"""
    meteor: bool = True
    """whether METEOR is computed; it needs Java, which pip brings, and some seconds to load"""


@stage(version=1)
def evaluate(work: Work, options: EvaluationOptions, captions: ArtifactRef, text: ArtifactRef) -> Made:
    references = References(work.path(text)).sentences(options.split)
    hypotheses = {row.video_id: row.caption for row in read_captions(work.path(captions)) if row.video_id in references}
    if not hypotheses:
        raise BadInput(
            f"no captioned video of the '{options.split}' split has references; there is nothing to compare with"
        )
    scores = score_corpus(hypotheses, references)
    unscored = sorted(references.keys() - hypotheses.keys())
    figures = {name: round(scores.corpus[name], 6) for name in SCORES}
    not_computed = {}
    if options.meteor:
        try:
            with Meteor() as meteor:
                figures["METEOR"] = round(meteor.score(hypotheses, references)[0], 6)
        except JavaFailed as error:  # every other metric does without Java
            not_computed["METEOR"] = str(error)
    result = {"split": options.split, "videos": len(hypotheses), "corpus": figures, "not_computed": not_computed}
    write_json(work.folder / "scores.json", result | {"not_captioned": unscored, "per_video": scores.per_video})
    return Made(len(hypotheses), figures)
