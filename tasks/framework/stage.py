"""What a stage is: a versioned function whose result is kept under a key of everything it depends on.

    @stage(version=1)
    def prepare_text(context: StageContext, options: TextOptions, captions: ArtifactRef) -> StageResult: ...

The key is a hash of the stage's name, version, options and the keys of its inputs. A result exists once its done-marker does;
Prefect's cache, keyed by the same key, only shows it: deleting a result makes it stale whatever Prefect remembers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from storage.errors import explain_os_error
from storage.files.file_cache import FileCache
from storage.files.garbage_collection import lock_name
from storage.files.hashing import digest
from storage.records import ArtifactRef
from storage.workspace import Completion, Workspace
from tasks.framework.progress import console
from tasks.framework.runtime import Runtime

Input = ArtifactRef | tuple[ArtifactRef | None, ...]
"""what a stage reads: a result or some parts of it (`ArtifactRef.part`), or several results in an order that both sides know"""
State = Literal["done", "stale", "missing", "forced", "partial"]


@dataclass(frozen=True)
class StageResult:
    """What a stage function returns: how many items, and a few metrics for people."""

    count: int
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyInputs:
    """What a stage knows of its result before it runs: an extra ingredient of the key, the keys of the result's parts, and
    what was `prepared` to find these, handed to the stage so that nothing is looked up twice."""

    extra: Any = None
    parts: dict[str, str] = field(default_factory=dict)
    prepared: Any = None


@dataclass(frozen=True)
class StageContext:
    """What a running stage gets: where to read and write, and how to use the machine."""

    workspace: Workspace
    data: Path
    runtime: Runtime
    folder: Path
    ref: ArtifactRef
    prepared: Any = None

    @property
    def file_cache(self) -> FileCache:
        return FileCache(self.workspace.file_cache_path)

    def path(self, ref: ArtifactRef) -> Path:
        """The folder of another stage's result."""
        return self.workspace.root / ref.uri


@dataclass(frozen=True)
class StageRun:
    """One planned execution of a stage: its key, its inputs, and whether its result is there. `reason` says why it must run;
    it is empty where the result is there. `completion` is the done-marker as the plan found it."""

    stage: Stage
    label: str
    options: BaseModel
    inputs: Mapping[str, Input]
    ref: ArtifactRef
    ingredients: dict[str, Any]
    workspace: Workspace
    data: Path
    runtime: Runtime
    prepared: Any = None
    state: State = "missing"
    reason: str = ""
    completion: Completion | None = None

    @property
    def to_do(self) -> bool:
        return self.state != "done"

    @property
    def folder(self) -> Path:
        return self.workspace.folder(self.stage.name, self.ref.key)

    @property
    def input_refs(self) -> list[ArtifactRef]:
        return [ref for value in self.inputs.values() for ref in refs_in(value)]

    def context(self) -> StageContext:
        return StageContext(self.workspace, self.data, self.runtime, self.folder, self.ref, self.prepared)

    def find_completion(self) -> Completion | None:
        """The done-marker, if the result is really there at this moment."""
        done = self.workspace.done(self.stage.name, self.ref.key)
        if done and self.stage.is_valid and not self.stage.is_valid(self.context(), done):
            return None
        return done

    def rerun_reason(self) -> str:
        """Why a result that is there should be computed again; mostly there is no reason."""
        return self.stage.rerun_reason(self.context()) if self.stage.rerun_reason else ""

    def execute(
        self,
        force: bool = False,
        title: str = "",
        hold: Callable[[StageRun], AbstractContextManager[None]] = lambda run: nullcontext(),
    ) -> tuple[int, bool]:
        """Compute the result, or find it computed: (its number of items, whether this call did the work). Two callers never
        compute it twice: the second waits for the first and shares its result. `hold` is entered only when there is work to
        do, such as to hold a GPU's slot; `title` is what Prefect calls the task run."""

        def wait_for(holder: str) -> None:
            console.print_line(f"  {self.label}: {holder} is at it; waiting", markup=False)

        with self.workspace.lock(lock_name(self.stage.name, self.ref.key), wait_for):
            if force:
                self.workspace.discard(self.stage.name, self.ref.key)
            elif done := self.find_completion():
                return done.ref.count, False
            started, context = time.monotonic(), self.context()
            try:
                context.folder.mkdir(parents=True, exist_ok=True)
                # A result that lost a file has its marker still: half-way through, it must not look done again.
                (context.folder / "done.json").unlink(missing_ok=True)
                in_processes = self.stage.launch if self.runtime.nproc > 1 else None
                with hold(self):
                    result = (in_processes or self.stage.function)(context, self.options, **self.inputs)
            except OSError as error:
                raise explain_os_error(error, context.folder) from error
            ref = replace(self.ref, count=result.count)
            seconds = round(time.monotonic() - started, 3)
            made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.workspace.finish(Completion(ref, self.stage.name, self.ingredients, seconds, made_at, result.summary))
            return result.count, True


StageFunction = Callable[..., StageResult]


@dataclass(frozen=True)
class Stage:
    """A stage function with its version and the few hooks that let it be planned without being run.

    key_inputs adds to the key what the inputs do not say; is_valid checks what lies outside the result's own folder;
    explain_stale says in words what differs from an earlier result; rerun_reason gives a reason to compute a finished result
    once more; device says that the work is done on a GPU where there is one; launch runs it in `runtime.nproc` processes;
    half_done says how far an interrupted one has come, from its folder, or nothing."""

    name: str
    version: int
    function: StageFunction
    key_inputs: Callable[..., KeyInputs] | None = None
    is_valid: Callable[[StageContext, Completion], bool] | None = None
    explain_stale: Callable[[Workspace, Completion, Any], str] | None = None
    rerun_reason: Callable[[StageContext], str] | None = None
    device: bool = False
    launch: StageFunction | None = None
    half_done: Callable[[Path], str] | None = None

    def bind(
        self,
        workspace: Workspace,
        data: Path,
        runtime: Runtime,
        options: BaseModel,
        inputs: Mapping[str, Input | None],
        label: str = "",
    ) -> StageRun:
        """The execution of this stage with these inputs, its key included, without running it. An input that is None or an
        empty tuple is one that was not given."""
        given = {name: value for name, value in inputs.items() if value is not None and value != ()}
        known = self.key_inputs(workspace, data, options, **given) if self.key_inputs else KeyInputs()
        ingredients = {
            "version": self.version,
            # Where data is does not change what it is. Aliases are the names that older keys were computed with.
            "options": options.model_dump(mode="json", by_alias=True, exclude={"path"}),
            "inputs": {name: _keys_of(value) for name, value in sorted(given.items())},
            "extra": known.extra,
        }
        key = digest(self.name, ingredients)
        uri = f"artifacts/{self.name}/{key}"
        ref = ArtifactRef(self.name, uri, key, made_by=f"{self.name} v{self.version}", parts=known.parts)
        what = (self, label or self.name, options, given, ref, ingredients)
        return StageRun(*what, workspace, data, runtime, known.prepared)


def refs_in(value: Input) -> list[ArtifactRef]:
    return [ref for ref in (value if isinstance(value, tuple) else (value,)) if ref is not None]


def _keys_of(value: Input | None) -> Any:
    """What a key is computed from: the input's own key, of several parts each part's, of a tuple a list."""
    if isinstance(value, tuple):
        return [_keys_of(ref) for ref in value]
    if value is None:
        return None
    return {name: value.parts[name] for name in value.selected} if len(value.selected) > 1 else value.key


def stage(
    *,
    version: int,
    key_inputs: Callable[..., KeyInputs] | None = None,
    is_valid: Callable[[StageContext, Completion], bool] | None = None,
    explain_stale: Callable[[Workspace, Completion, Any], str] | None = None,
    rerun_reason: Callable[[StageContext], str] | None = None,
    device: bool = False,
    launch: StageFunction | None = None,
    half_done: Callable[[Path], str] | None = None,
) -> Callable[[StageFunction], Stage]:
    """Make a stage of a function `(context, options, **inputs) -> StageResult`. Bump the version when its results change,
    with the reason beside it."""

    def wrap(function: StageFunction) -> Stage:
        hooks = (key_inputs, is_valid, explain_stale, rerun_reason, device, launch, half_done)
        return Stage(function.__name__, version, function, *hooks)

    return wrap
