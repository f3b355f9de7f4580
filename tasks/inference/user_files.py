"""Captions for a user's own files: catalogued, cut into clips, extracted by the stages of a run, captioned.

Feature rows are kept under the hash of a file's bytes and its segment, so a file that was captioned before, under whatever
name, is not extracted again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import Field

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from storage.catalogue import Catalogue
from storage.datasets.user_files import ROOT, USER_FILES, UserClip, UserFilesOptions, clip_of, source_of
from storage.errors import BadMedia, MissingFeatures
from storage.files.file_cache import FileCache
from storage.files.garbage_collection import lock_name
from storage.media.frame_sampling import Sampling
from storage.media.shots import Cuts, ShotOptions, shot_spans, window_spans
from storage.options import Options
from storage.records import ArtifactRef, Problem, TimeSpan
from storage.results import CaptionRow
from storage.text.vocabulary import Vocabulary
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.extractors import FeatureOptions
from tasks.extraction.frames import find_cuts, probes_of
from tasks.find_key_frames import FindingOptions, find_key_frames
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import progress_bar, progress_on_demand
from tasks.framework.quarantine import gather_problems
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Input, Stage, StageContext, StageRun
from tasks.inference.generate import rank_captions
from tasks.sample_frames import SamplingOptions, sample_frames
from tasks.training.loading import captioner_options, load_trained
from tasks.words_from_features import PredictingOptions, predict_words

ExecuteStage = Callable[[StageRun], bool]
"""executes a stage; True if its result had to be computed"""


def execute_here(run: StageRun) -> bool:
    """In this process, without Prefect."""
    return run.execute(force=bool(run.rerun_reason()))[1]


@dataclass(frozen=True)
class TrainedRun:
    """What a run has that captioning needs: where its results are, and how they were made."""

    workspace: Workspace
    features: Mapping[str, FeatureOptions]
    """those that its captioner reads"""
    sampling: Mapping[str, Sampling]
    """those that these features use"""
    search: SearchOptions
    runtime: Runtime
    checkpoints: tuple[Path, ...]
    """of the captioner, or of several that form an ensemble"""
    vocabulary: Vocabulary
    tagger: ArtifactRef | None = None
    words_net: ArtifactRef | None = None
    """the net that predicts the feature 'words' from the others (GL-RG)"""
    refocused: tuple[ArtifactRef, ArtifactRef] | None = None
    """the captioner that finds the key frames which the others read (VRE's third phase), and its text"""


class UserFileStages:
    """The stages on one set of files; each method executes what it is named for and remembers its stage runs."""

    def __init__(self, trained: TrainedRun, execute: ExecuteStage) -> None:
        self.trained, self._execute_stage = trained, execute
        self._runs: list[StageRun] = []

    def catalogue(self, clips: Iterable[UserClip]) -> tuple[Catalogue, StageContext]:
        """Probe the clips; the extraction is about the last ones."""
        run, _ = self._execute(catalogue, UserFilesOptions(clips=tuple(clips)))
        return Catalogue(run.folder, ROOT), run.context()

    def extract(self) -> tuple[Path, int]:
        """Make sure that all clips have their features: the extraction's folder, and how many rows had to be computed."""
        trained = self.trained
        videos = self._runs[-1].ref.part("videos")
        plans = tuple(
            self._execute(sample_frames, SamplingOptions(sampling=how), f"sample_frames[{name}]", videos=videos)[0].ref
            for name, how in trained.sampling.items()
        )
        options = ExtractOptions(dataset=USER_FILES, features=dict(trained.features), sampling=dict(trained.sampling))
        run, computed = self._execute(extract_features, options, videos=videos, tagger=trained.tagger, frame_plans=plans)
        done = run.find_completion() if computed else None
        extracted = sum(done.summary["extracted"].values()) if done else 0
        if trained.words_net:
            run, _ = self._execute(predict_words, PredictingOptions(), features=run.ref, net=trained.words_net)
        if trained.refocused:
            captioner, text = trained.refocused
            read = {"features": run.ref, "captioner": captioner, "text": text.part("train")}
            run, _ = self._execute(find_key_frames, FindingOptions(), **read)
        return run.folder, extracted

    def problems(self) -> list[Problem]:
        """The quarantined items; `item` is the id of the clip."""
        found = gather_problems(self.trained.workspace, [run.ref for run in self._runs])
        return [problem for problem in found if problem.quarantined]

    def failures(self, table: Catalogue) -> list[Problem]:
        """What the extraction noted before it ended without a single row."""
        run = self._runs[-1]
        cache = run.context().file_cache
        known = {record: why for s in run.prepared.values() for record, why in cache.failures(s.key).items()}
        return [Problem(id, *known[key], quarantined=True) for id, key in table.usable_keys.items() if key in known]

    def discard(self) -> None:
        """Remove the tables that were written; rows of features stay."""
        workspace = self.trained.workspace
        for run in self._runs:
            with workspace.lock(lock_name(run.stage.name, run.ref.key)):
                workspace.discard(run.stage.name, run.ref.key)

    def _execute(self, stage: Stage, options: Options, label: str = "", /, **inputs: Input | None) -> tuple[StageRun, bool]:
        run = stage.bind(self.trained.workspace, ROOT, self.trained.runtime, options, inputs, label)
        self._runs.append(run)
        return run, self._execute_stage(run)


class WindowOptions(Options):
    """A long video is cut into windows of one length."""

    seconds: float = Field(10.0, ge=0.1)


Cut = WindowOptions | ShotOptions | None
"""how files become clips; None: each is one"""


@dataclass(frozen=True)
class ClipCaption:
    """The caption of a file or of a part of it. `best` are its n best captions, this one among them, the likeliest first;
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
                replace(found[clip.id], path=path)
                for path in dict.fromkeys(files)
                for clip in clips.get(content_of.get(path, ""), ())
                if clip.id in found
            ]
            return Captioned(captioned, problems, extracted)
        finally:
            if not keep_tables:
                stages.discard()

    def _captions(self, folder: Path, table: Catalogue, ids: list[str], n_best: int) -> dict[str, ClipCaption]:
        """clip id -> its captions, where it has all features: the one that an evaluation would give, then others, from the
        run's own search where it is wide enough, else from a wider one."""
        trained, device = self.trained, self.trained.runtime.torch_device()
        access = FeatureAccess.for_captioner(trained.workspace, folder, captioner_options(trained.checkpoints[0]))
        vocabulary = trained.vocabulary
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
        found = {}
        for id, (own_best, *_), many in zip(ids, captions, best, strict=True):
            others = [row for row in many if row.caption != own_best.caption][: n_best - 1]
            segment = table.records[id].segment
            where = (table.path_of(id), segment or (0.0, durations[id]), segment is None)
            likeliest = sorted((own_best, *others), key=lambda row: -row.log_prob)
            found[id] = ClipCaption(*where, own_best, tuple(likeliest), _times(access, id, own_best))
        return found


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
            reason = "the file cannot be read; check its permissions"
            problems.append(Problem(str(path), "unreadable", reason, quarantined=True))
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
