"""MSVD: the `sents_*_lc_nopunc.txt` files, or the corpus CSV of all languages.

The standard split is by clip number: vid1 to vid1200 train, to vid1300 val, to vid1970 test. `youtube_mapping.txt` says
which YouTube clip (`<id>_<start>_<end>`) has which number; the numbers follow the sorted names of the 1,970 clips, so a
complete corpus CSV gets the standard split without that file too."""

import re
from pathlib import Path
from typing import Literal

from storage.datasets.annotations import FOLDERS, find_annotation, no_annotations, read_header, read_lines, read_rows
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName, TrainShareOptions
from storage.datasets.folder import derive_splits
from storage.errors import BadInput
from storage.records import SPLITS, Split, VideoRecord

SENTENCES: dict[Split, str] = {split: f"sents_{split}_lc_nopunc.txt" for split in SPLITS}
MAPPING = "youtube_mapping.txt"
COLUMNS = ("videoid", "start", "end", "language", "description")
SIZES: dict[Split, int] = {"train": 1200, "val": 100, "test": 670}
_NUMBERED = [split for split, size in SIZES.items() for _ in range(size)]  # of vid1, vid2, ...


class MsvdOptions(TrainShareOptions):
    """MSVD (1,970 clips from YouTube, about 41 English captions each)."""

    kind: Literal["msvd"] = "msvd"
    """Which reader understands the data set."""
    name: DatasetName = "msvd"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""


def read_msvd(options: MsvdOptions, root: Path) -> Dataset:
    """The sentence files if there are any, else the corpus CSV. Videos may be named `vidN.*` or by the YouTube clip."""
    builder = DatasetBuilder(options.name, root)
    sentences = {split: path for split, name in SENTENCES.items() if (path := find_annotation(root, name))}
    corpora = [] if sentences else find_corpora(root)
    if not sentences and not corpora:
        names = [*SENTENCES.values(), f"a .csv with the columns {', '.join(COLUMNS)}"]
        raise no_annotations("MSVD", root, names)
    if len(corpora) > 1:
        found = ", ".join(str(path) for path in corpora)
        raise BadInput(f"several corpus files: {found}; expected one, so move the others out of {root}")
    clip_numbers = _read_mapping(builder)
    if sentences:
        _read_sentences(builder, sentences, {number: clip for clip, number in clip_numbers.items()})
    else:
        _read_corpus(builder, corpora[0], clip_numbers)
    builder.check_counts(SIZES)
    return builder.finish()


def find_corpora(root: Path) -> list[Path]:
    """The CSV files below root that have the corpus' columns."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).glob("*.csv")) if path.is_file()]
    return [path for path in files if set(COLUMNS) <= set(read_header(path))]


def _read_mapping(builder: DatasetBuilder) -> dict[str, str]:
    """Clip -> vidN."""
    path = find_annotation(builder.root, MAPPING)
    clip_numbers: dict[str, str] = {}
    for line, text in read_lines(builder.opened(path)) if path else ():
        words = text.split()
        if len(words) == 2:
            clip_numbers[words[0]] = words[1]
        else:
            where = f"{MAPPING}:{line}"
            builder.report(where, "malformed", f"{text!r:.80}; expected '<clip> vidN', left out", where, True)
    return clip_numbers


def _read_sentences(builder: DatasetBuilder, sentences: dict[Split, Path], clips: dict[str, str]) -> None:
    for split, name in SENTENCES.items():
        if split not in sentences:
            builder.report(name, "missing_annotation", f"not there, so there is no {split} split")
    for split, path in sentences.items():
        elsewhere: set[str] = set()
        for line, text in read_lines(builder.opened(path)):
            where = f"{path.name}:{line}"
            video_id, tab, caption = text.partition("\t")
            if not tab:
                builder.report(where, "malformed", f"{text!r:.80}; expected 'vidN<TAB>caption', left out", where, True)
                continue
            before = builder.split_of(video_id)
            if before is None:
                source = builder.find_file(video_id, clips.get(video_id, video_id))
                if not builder.add_video(VideoRecord(video_id, source, split), where):
                    continue
            elif before != split:
                if video_id not in elsewhere:  # its captions here would leak from one split into another
                    reason = f"it is in {before} already; its captions in {split} are left out"
                    builder.report(video_id, "split_conflict", reason, where)
                    elsewhere.add(video_id)
                continue
            builder.add_caption(video_id, caption, where)


def _read_corpus(builder: DatasetBuilder, path: Path, clip_numbers: dict[str, str]) -> None:
    captions: dict[str, list[tuple[str, str]]] = {}

    def skip(line: int, reason: str) -> None:
        builder.report(f"{path.name}:{line}", "malformed", f"{reason}; left out", f"{path.name}:{line}", True)

    for line, row in read_rows(builder.opened(path), COLUMNS, skip):
        if row["language"].strip().lower() == "english":
            clip = f"{row['videoid'].strip()}_{_whole(row['start'])}_{_whole(row['end'])}"
            captions.setdefault(clip, []).append((row["description"], f"{path.name}:{line}"))
    total, splits = len(_NUMBERED), dict(zip(sorted(captions), _NUMBERED, strict=False))
    if not clip_numbers and len(captions) != total:
        splits, _ = derive_splits(captions, SIZES["val"] / total, SIZES["test"] / total)
        reason = f"{len(captions):,} clips and no {MAPPING}: split by a hash of the name, not the published split"
        builder.report(builder.name, "split_derived", reason, path.name)
    for clip, rows in captions.items():
        video_id = clip_numbers.get(clip) if clip_numbers else clip
        if video_id is None:
            reason = f"not in {MAPPING}, so in no split; its {len(rows)} captions are left out"
            builder.report(clip, "not_mapped", reason, rows[0][1])
            continue
        split = _split_of_number(video_id) if clip_numbers else splits[clip]
        if split is None:
            builder.report(clip, "bad_split", f"{video_id!r:.80} is none of vid1 to vid1970", MAPPING, True)
        elif builder.add_video(VideoRecord(video_id, builder.find_file(video_id, clip), split), rows[0][1]):
            for text, where in rows:
                builder.add_caption(video_id, text, where)


def _split_of_number(video_id: str) -> Split | None:
    number = re.fullmatch(r"vid(\d{1,9})", video_id, re.ASCII)
    return _NUMBERED[int(number[1]) - 1] if number and 1 <= int(number[1]) <= len(_NUMBERED) else None


def _whole(seconds: str) -> str:
    """Some copies of the corpus were saved with 33.0 for 33; the clips' names have whole seconds."""
    return re.sub(r"\.0*$", "", seconds.strip())
