"""Captions for a user's own files: catalogued, cut into clips, extracted by the stages of a run, captioned.

Feature rows are kept under the hash of a file's bytes and its segment, so a file that was captioned before, under whatever
name, is not extracted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from models.captioner import Captioner
from storage.catalogue import Catalogue
from storage.datasets.user_files import ROOT, UserClip, clip_of, source_of
from storage.errors import BadMedia, MissingFeatures
from storage.files.file_cache import FileCache
from storage.media.shots import Cuts, ShotOptions, shot_spans, window_spans
from storage.options import Options
from storage.records import Problem, TimeSpan
from storage.results import CaptionRow
from storage.text.references import References
from storage.workspace import Workspace
from tasks.extraction.frames import probes_of
from tasks.extraction.shot_detection import find_cuts
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import progress_bar, progress_on_demand
from tasks.framework.stage import StageContext
from tasks.inference.generate import rank_captions
from tasks.inference.user_file_stages import ExecuteStage, TrainedRun, UserFileStages, execute_here
from tasks.training.loading import captioner_options, load_trained


class WindowOptions(Options):
    """A long video is cut into windows of one length."""

    seconds: float = Field(10.0, ge=0.1)


Cut = WindowOptions | ShotOptions | None
"""how files become clips; None: each is one"""


@dataclass(frozen=True)
class ClipCaption:
    """The caption of a file or of a part of it. `best` are its n best captions: this one, then others, the likeliest first;
    `times` the seconds of the positions that attention is spread over, where they are known."""

    path: Path
    segment: TimeSpan
    whole: bool
    caption: CaptionRow
    best: tuple[CaptionRow, ...]
    times: tuple[float, ...] | None


@dataclass(frozen=True)
class Captioned:
    """The captions of some files: clips in the order of files and time; problems, whose `item` is the file; and how many
    feature rows had to be extracted."""

    clips: list[ClipCaption] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    extracted: int = 0


class FileCaptioner:
    """A trained captioner, loaded once, for any number of files."""

    def __init__(self, trained: TrainedRun, execute: ExecuteStage = execute_here) -> None:
        self.trained, self._execute = trained, execute
        self._net: Captioner | None = None

    def caption(self, files: Sequence[Path], cut: Cut = None, n_best: int = 1, keep_tables: bool = True) -> Captioned:
        """Caption files; a file that cannot be captioned becomes a problem, and the others go on. Without `keep_tables` only
        feature rows of this call stay in the workspace."""
        stages = UserFileStages(self.trained, self._execute)
        paths_of, problems = _by_content(self.trained.workspace, files)
        if not paths_of:
            return Captioned([], problems)
        try:
            table, context = stages.catalogue(clip_of(content, paths[0]) for content, paths in paths_of.items())
            clips, bad = _cut(context, table, cut)
            found, extracted = {}, 0
            if clips:
                if cut is not None:
                    table, _ = stages.catalogue(clip for several in clips.values() for clip in several)
                try:
                    folder, extracted = stages.extract()
                    found = self._captions(folder, table, list(table.records), n_best)
                except MissingFeatures:
                    bad += stages.failures(table)
                    if not bad:
                        raise
            clip_paths = {clip.id: paths_of[content] for content, several in clips.items() for clip in several}
            problems += _file_problems([*stages.problems(), *bad], paths_of | clip_paths)
            content_of = {path: content for content, paths in paths_of.items() for path in paths}
            captioned = [
                found[clip.id].at(path)
                for path in dict.fromkeys(files)
                for clip in clips.get(content_of.get(path, ""), ())
                if clip.id in found
            ]
            return Captioned(captioned, problems, extracted)
        finally:
            if not keep_tables:
                stages.discard()

    def _captions(self, folder: Path, table: Catalogue, ids: list[str], n_best: int) -> dict[str, _RankedClip]:
        """clip id -> its captions, where it has all features: the one that an evaluation would give, then others, from the
        run's own search where it is wide enough, else from a wider one."""
        trained, device = self.trained, self.trained.runtime.torch_device()
        access = FeatureAccess.for_captioner(trained.workspace, folder, captioner_options(trained.checkpoints[0]))
        vocabulary = References(trained.workspace.root / trained.text.uri).vocabulary
        if self._net is None:
            self._net = load_trained(trained.checkpoints, access, vocabulary, device)
        ids = access.usable(ids)
        own = trained.search.model_copy(update={"n_best": min(n_best, trained.search.width)})
        with progress_bar("captioning", len(ids), "clips") as shown:
            captions = rank_captions(self._net, access, vocabulary, ids, own, device, shown.advance)
        best = captions
        if n_best > trained.search.width:
            wide = trained.search.model_copy(update={"n_best": n_best, "width": n_best})
            best = rank_captions(self._net, access, vocabulary, ids, wide, device)
        durations = dict(zip(table.videos["id"].to_pylist(), table.videos["duration"].to_pylist(), strict=True))
        return {
            id: _RankedClip(
                table.records[id].segment, durations[id], _own_first(mine[0], many, n_best), _times(access, id, mine[0])
            )
            for id, mine, many in zip(ids, captions, best, strict=True)
        }


@dataclass(frozen=True)
class _RankedClip:
    """The captions of a clip, whichever file holds it."""

    segment: TimeSpan | None
    duration: float
    best: tuple[CaptionRow, ...]
    times: tuple[float, ...] | None

    def at(self, path: Path) -> ClipCaption:
        segment = self.segment or (0.0, self.duration)
        return ClipCaption(path, segment, self.segment is None, self.best[0], self.best, self.times)


def _own_first(own: CaptionRow, many: Sequence[CaptionRow], n_best: int) -> tuple[CaptionRow, ...]:
    return (own, *[row for row in many if row.caption != own.caption][: n_best - 1])


def _by_content(workspace: Workspace, files: Sequence[Path]) -> tuple[dict[str, list[Path]], list[Problem]]:
    """content hash -> the files that hold it, and the files that cannot be read."""
    sources = {source_of(path): path for path in files}
    with progress_on_demand("fingerprinting new files", "files") as progress:
        contents = FileCache(workspace.file_cache_path).fingerprint(ROOT, sources, progress)
    paths_of: dict[str, list[Path]] = {}
    problems = []
    for source, path in sources.items():
        content = contents[source]
        if content is None:
            problems.append(
                Problem(str(path), "unreadable", "the file cannot be read; check its permissions", "", True)
            )
        else:
            paths_of.setdefault(content, []).append(path)
    return paths_of, problems


def _cut(context: StageContext, table: Catalogue, cut: Cut) -> tuple[dict[str, list[UserClip]], list[Problem]]:
    """Content hash -> the clips of that file, in the order of time; and what could not be cut. A file that is one clip has
    the same id as without cutting."""
    if cut is None:
        return {id: [clip_of(id, table.path_of(id))] for id in table.usable_keys}, []
    clips: dict[str, list[UserClip]] = {}
    problems: list[Problem] = []
    probes = dict(probes_of(context, table, list(table.usable_keys)))
    good = {id: (table.path_of(id), probe) for id, probe in probes.items() if not isinstance(probe, BadMedia)}
    cuts = find_cuts(context, good) if isinstance(cut, ShotOptions) else {}
    for id, found in (probes | cuts).items():
        if isinstance(found, BadMedia):
            problems.append(Problem(id, found.kind, found.reason, quarantined=True))
            continue
        path, probe = good[id]
        if isinstance(cut, WindowOptions):
            segments = window_spans(probe.duration, cut.seconds)
        elif isinstance(found, Cuts):
            segments = shot_spans(found, probe.duration, cut)
        clips[id] = [clip_of(id, path, segment) for segment in (segments if len(segments) > 1 else [None])]
    return clips, problems


def _file_problems(problems: list[Problem], paths_of: dict[str, list[Path]]) -> list[Problem]:
    """Problems of clips as problems of the files that the user named; each file and reason once."""
    found = {
        (path, problem.reason): Problem(str(path), problem.kind, problem.reason, quarantined=True)
        for problem in problems
        for path in paths_of[problem.item]
    }
    return list(found.values())


def _times(access: FeatureAccess, id: str, row: CaptionRow) -> tuple[float, ...] | None:
    """The seconds of the positions that a caption's attention is spread over: those of a feature with as many steps."""
    if not row.attention:
        return None
    for name in access.names:
        key = access.rows[name].get(id)
        pts = access.views[name].pts(id, key) if key else None
        if pts is not None and len(pts) <= len(row.attention[0]) and not any(row.attention[0][len(pts) :]):
            return tuple(float(moment) for moment in pts)
    return None
