"""What a stage is: a versioned function whose result is kept under a key of everything it depends on.

    @stage(version=1)
    def prepare_text(work: Work, options: TextOptions, captions: ArtifactRef) -> Made: ...

The key is a hash of the stage's name, version, options and the keys of its inputs. A result exists once its done-marker
does; the marker decides, and Prefect's cache, keyed by the same key, only shows it. Deleting Prefect's database loses
nothing; deleting a result makes it stale whatever Prefect remembers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from storage.errors import explain_os_error
from storage.files.file_cache import FileCache
from storage.files.garbage_collection import lock_name
from storage.files.hashing import digest
from storage.records import ArtifactRef
from storage.workspace import Completion, Workspace
from tasks.framework.progress import console
from tasks.framework.runtime import Runtime


@dataclass(frozen=True)
class StageResult:
    """What a stage function returns: how many items, and a few figures for people."""

    count: int
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyInputs:
    """What can be told of a result before it is made: an extra ingredient of its key, the keys of its parts, and a
    memo that is handed to the stage so that nothing is looked up twice."""

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
    """One stage with all it needs, ready to be carried out here or on another machine."""

    stage: Stage
    label: str
    options: BaseModel
    inputs: Mapping[str, ArtifactRef]
    ref: ArtifactRef
    ingredients: dict[str, Any]
    workspace: Workspace
    data: Path
    runtime: Runtime
    prepared: Any = None

    def context(self) -> StageContext:
        folder = self.workspace.folder(self.stage.name, self.ref.key)
        return StageContext(self.workspace, self.data, self.runtime, folder, self.ref, self.prepared)

    def done(self) -> Completion | None:
        """The finished result, if it is really there."""
        done = self.workspace.done(self.stage.name, self.ref.key)
        if done and self.stage.is_valid and not self.stage.is_valid(self.context(), done):
            return None
        return done

    def _say_who(self, holder: str) -> None:
        console.print(f"  {self.label}: {holder} is at it; waiting", highlight=False, markup=False)

    def carry_out(
        self, force: bool = False, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[ArtifactRef, bool]:
        """Make the result, or find it made; True if this call did the work. Two callers never make it twice: the second
        waits for the first and shares its result. `around` is entered only when there is work to do."""
        name = lock_name(self.stage.name, self.ref.key)
        with self.workspace.lock(name, self._say_who):
            if force:
                self.workspace.discard(self.stage.name, self.ref.key)
            elif done := self.done():
                return replace(self.ref, count=done.ref.count), False
            started, context = time.monotonic(), self.context()
            try:
                context.folder.mkdir(parents=True, exist_ok=True)
                # A result that lost a file has its marker still: half-way through, it must not look done again.
                (context.folder / "done.json").unlink(missing_ok=True)
                with around():
                    made = self.stage.function(context, self.options, **self.inputs)
            except OSError as error:
                raise explain_os_error(error, context.folder) from error
            ref = replace(self.ref, count=made.count)
            seconds = round(time.monotonic() - started, 3)
            made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.workspace.finish(Completion(ref, self.stage.name, self.ingredients, seconds, made_at, made.summary))
            return ref, True


StageFunction = Callable[..., StageResult]


@dataclass(frozen=True)
class Stage:
    """A stage function with its version and the few hooks that let it be planned without being run.

    foresee tells parts of the key in advance; intact checks what lies outside the result's own folder; changes says in
    words what differs from an earlier result; again gives a reason to make a finished result once more; device tells that
    the work is done on a GPU where there is one."""

    name: str
    version: int
    function: StageFunction
    key_inputs: Callable[..., KeyInputs] | None = None
    is_valid: Callable[[StageContext, Completion], bool] | None = None
    changes: Callable[[Workspace, Completion, Any], str] | None = None
    again: Callable[[StageContext], str] | None = None
    device: bool = False

    def job(
        self,
        workspace: Workspace,
        data: Path,
        runtime: Runtime,
        options: BaseModel,
        inputs: Mapping[str, ArtifactRef],
        label: str = "",
    ) -> StageRun:
        """Everything there is to know of this stage with these inputs, its key included, without running it."""
        foresight = self.key_inputs(workspace, data, options, **inputs) if self.key_inputs else KeyInputs()
        ingredients = {
            "version": self.version,
            "options": options.model_dump(mode="json", exclude={"path"}),  # where data is does not change what it is
            "inputs": {name: ref.key for name, ref in sorted(inputs.items())},
            "extra": foresight.extra,
        }
        key = digest(self.name, ingredients)
        uri = f"artifacts/{self.name}/{key}"
        ref = ArtifactRef(self.name, uri, key, made_by=f"{self.name} v{self.version}", parts=foresight.parts)
        return StageRun(
            self, label or self.name, options, inputs, ref, ingredients, workspace, data, runtime, foresight.prepared
        )


def stage(
    *,
    version: int,
    key_inputs: Callable[..., KeyInputs] | None = None,
    is_valid: Callable[[StageContext, Completion], bool] | None = None,
    changes: Callable[[Workspace, Completion, Any], str] | None = None,
    again: Callable[[StageContext], str] | None = None,
    device: bool = False,
) -> Callable[[StageFunction], Stage]:
    """Make a stage of a function `(work, options, **inputs) -> Made`. Bump the version when its results change, with the
    reason beside it."""

    def wrap(function: StageFunction) -> Stage:
        return Stage(function.__name__, version, function, key_inputs, is_valid, changes, again, device)

    return wrap
