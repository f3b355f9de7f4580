"""Prepare text: tokenise the captions, build the vocabulary from the training split, choose the words that the tagger learns, and
write the tables that rewards and weighted losses read: references, document frequencies, caption weights."""

from pathlib import Path

from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.leave_one_out import weigh
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import MAX_WORDS, Sentences, VideoCaptions
from storage.catalogue import Catalogue
from storage.errors import BadInput
from storage.files.hashing import digest
from storage.records import SPLITS, ArtifactRef
from storage.text import tables
from storage.text.references import References, write_references
from storage.text.vocabulary import TextOptions
from storage.workspace import Workspace
from tasks.framework.stage import KeyInputs, StageContext, StageResult, stage

VERSION = 2  # 2: with document frequencies, references as token ids and caption weights


def _key_inputs(workspace: Workspace, data: Path, options: TextOptions, captions: ArtifactRef) -> KeyInputs:
    """Every split's references depend on the vocabulary (training captions) and on that split's own captions. Document
    frequencies and caption weights are of the training split: they belong to its part."""
    base = digest(VERSION, options.model_dump(mode="json"), captions.parts["captions/train"])
    return KeyInputs(parts={split: digest(base, captions.parts[f"captions/{split}"]) for split in SPLITS})


@stage(version=VERSION, key_inputs=_key_inputs)
def prepare_text(context: StageContext, options: TextOptions, captions: ArtifactRef) -> StageResult:
    rows = caption_rows(Catalogue(context.path(captions), context.data))
    vocabulary = write_references(context.folder, rows, options)
    if len(vocabulary) > MAX_WORDS:
        words = f"the training captions have {len(vocabulary):,} different words, n-grams can be counted of {MAX_WORDS:,}"
        raise BadInput(f"{words}; raise text.min_count (now {options.min_count})")
    count, rows = len(rows), []
    _write_tables(context.folder)
    return StageResult(count, {"captions": count, "words": len(vocabulary)})


def caption_rows(catalogue: Catalogue, *splits: str) -> list[tuple[str, int, str, str]]:
    """(video id, caption index, split, text) of every caption of these splits, of all if none is named."""
    records, wanted = catalogue.records, splits or SPLITS
    columns = (catalogue.captions[name].to_pylist() for name in ("video_id", "n", "text"))
    rows = ((id, n, records[id].split, text) for id, n, text in zip(*columns, strict=True) if id in records)
    return [row for row in rows if row[2] in wanted]


def _write_tables(folder: Path) -> None:
    origin = References(folder).origin("train")
    table = tables.read_reference_table(folder / "references-train.parquet", origin)
    captions = _video_captions(table)
    frequencies = DocumentFrequencies.count(captions)
    path = folder / "document_frequencies.parquet"
    tables.write_frequency_table(path, frequencies.keys, frequencies.counts, frequencies.videos, origin)
    tables.write_weight_table(folder / "weights.parquet", table.caption_ids, weigh(captions, frequencies), origin)


def _video_captions(table: tables.ReferenceTable) -> VideoCaptions:
    return VideoCaptions(Sentences.from_flat(table.tokens, table.starts), table.videos)


def open_index(references: References) -> tuple[NgramIndex, tables.ReferenceTable]:
    """What rewards compare samples with: the n-grams of the training references under their document frequencies. Video v of
    the index is video_ids[v] of the table."""
    folder, origin = references.folder, references.origin("train")
    table = tables.read_reference_table(folder / "references-train.parquet", origin)
    counted = tables.read_frequency_table(folder / "document_frequencies.parquet", origin)
    frequencies = DocumentFrequencies(counted.keys, counted.counts, counted.videos)
    return NgramIndex.build(_video_captions(table), frequencies), table


def open_weights(references: References, folder: Path | None = None) -> tables.WeightTable:
    """The weights of the training captions; METEOR's are in the folder of weigh_captions."""
    return tables.read_weight_table((folder or references.folder) / "weights.parquet", references.origin("train"))
