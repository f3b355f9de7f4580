"""Prepare text: tokenise the captions, number the words of the training split, choose the words the tagger learns."""

from __future__ import annotations

from pathlib import Path

from storage.catalogue import Catalogue
from storage.fingerprints import digest
from storage.records import SPLITS, ArtifactRef
from storage.references import write_references
from storage.vocabulary import TextOptions
from storage.workspace import Workspace
from tasks.stage import Foresight, Made, Work, stage

VERSION = 1


def _foresee(workspace: Workspace, data: Path, options: TextOptions, captions: ArtifactRef) -> Foresight:
    """Every split's references depend on the vocabulary (training captions) and on that split's own captions."""
    base = digest(VERSION, options.model_dump(mode="json"), captions.parts["captions/train"])
    return Foresight(parts={split: digest(base, captions.parts[f"captions/{split}"]) for split in SPLITS})


@stage(version=VERSION, foresee=_foresee)
def prepare_text(work: Work, options: TextOptions, captions: ArtifactRef) -> Made:
    catalogue = Catalogue(work.path(captions), work.data)
    records = catalogue.records
    columns = (catalogue.captions[name].to_pylist() for name in ("video_id", "n", "text"))
    rows = [(id, n, records[id].split, text) for id, n, text in zip(*columns, strict=True) if id in records]
    vocabulary = write_references(work.folder, rows, options)
    return Made(len(rows), {"captions": len(rows), "words": len(vocabulary)})
