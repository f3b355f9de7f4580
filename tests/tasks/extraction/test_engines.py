"""Engines and net processes: the same rows however many run them, lost processes, and one engine per store."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.backbones import openvino_model
from storage.errors import BadInput, Mismatch, TransientError
from storage.features.store import FeatureStore
from storage.media.probe import probe
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction import nets
from tasks.extraction.engine import Video, extract
from tasks.extraction.extractors import BackboneFeature, TaggerFeature, find_source
from tasks.extraction.nets import Engine, engine_of, spec_of
from tasks.framework.runtime import Runtime
from tasks.sample_frames import SamplingOptions, sample_frames
from tests.conftest import TINY_WORLD
from tests.storage.clips import make_clip
from tests.tasks.extraction.toy_extraction import IN_PROCESS, SEVEN_FRAMES, ToyExtraction, same_rows

RESNET = BackboneFeature(net="timm:test_resnet", weights="random")
REGIONS = BackboneFeature(net="fasterrcnn_resnet50_fpn_v2", weights="random")


@pytest.fixture(autouse=True)
def models_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted models go to a folder that all tests of this process share."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def videos(tmp_path: Path) -> list[Video]:
    paths = [make_clip(tmp_path / f"v{n}.mp4", 20 + 7 * n, tone=440.0 if n % 2 else None) for n in range(4)]
    return [Video(path.stem, path, None, probe(path)) for path in paths]


def processes(count: int, **more: object) -> Runtime:
    return IN_PROCESS.model_copy(update={"net_processes": count, **more})


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_rows_do_not_depend_on_the_number_of_net_processes(videos: list[Video], tmp_path: Path, engine: Engine) -> None:
    most = 1 if engine == "torch" else 2  # each process of torch takes seconds to start
    runs = [ToyExtraction(tmp_path / f"{n}", videos[:: -1 if n else 1], engine) for n in range(most + 1)]
    for n, run in enumerate(runs):
        run.add("pooled").add("mean", output="grid", over_time="mean").add("other", net="timm:test_vit", output="grid")
        assert [result.bad for result in run.run(processes(n, decoders=n))] == [None] * 12
    for name in ("pooled", "mean", "other"):
        rows = runs[0].rows(name)
        assert len(rows) == 4 and all(same_rows(rows, run.rows(name)) for run in runs[1:])


def test_openvino_differs_from_torch_by_rounding(videos: list[Video], tmp_path: Path) -> None:
    torch, openvino = (ToyExtraction(tmp_path / engine, videos, engine).add("x") for engine in ("torch", "openvino"))
    torch.run()
    openvino.run()
    for id, rows in torch.rows("x").items():
        assert np.allclose(rows, openvino.rows("x")[id], rtol=2e-3, atol=2e-3)


def test_a_killed_net_process_costs_its_batch(videos: list[Video], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm, disturbed = (ToyExtraction(tmp_path / name, videos, "openvino").add("x") for name in ("calm", "disturbed"))
    calm.run()
    started: list[int] = []
    real = nets.NetPool._start

    def noted(self: nets.NetPool):
        process = real(self)
        started.append(process._process.pid)
        return process

    monkeypatch.setattr(nets.NetPool, "_start", noted)
    results = extract(disturbed.features, disturbed.videos, processes(1))
    next(results)
    os.kill(started[0], signal.SIGKILL)
    assert [result.bad for result in results] == [None] * 3 and len(started) == 2
    for feature in disturbed.features:
        feature.writer.close()
    assert same_rows(calm.rows("x"), disturbed.rows("x")) and len(disturbed.rows("x")) == 4


def test_a_batch_that_loses_every_process_ends_the_run_in_words(
    videos: list[Video], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nets.NetPool, "_take", _taken_and_killed(nets.NetPool._take))
    with pytest.raises(TransientError, match=r"lost 3 times over one batch \(SIGKILL\); look at the machine's memory"):
        ToyExtraction(tmp_path / "x", videos, "openvino").add("x").run(processes(1))


def _taken_and_killed(real):
    def take(self):
        process = real(self)
        process.kill()
        time.sleep(0.05)
        return process

    return take


@pytest.mark.parametrize(
    ("feature", "chosen", "device", "engine"),
    [
        (RESNET, "auto", "cpu", "openvino"),
        (RESNET, "torch", "cpu", "torch"),
        (RESNET, "auto", "cuda", "torch"),
        (REGIONS, "auto", "cpu", "torch"),
        (TaggerFeature(), "openvino", "cpu", "torch"),
    ],
)
def test_auto_takes_openvino_on_a_cpu_for_nets_that_convert(feature, chosen, device: str, engine: Engine) -> None:
    assert engine_of(feature, chosen, device) == engine


def test_openvino_is_refused_where_it_cannot_be_used() -> None:
    with pytest.raises(BadInput, match=r"fasterrcnn_resnet50_fpn_v2 does not convert; set it to auto"):
        engine_of(REGIONS, "openvino", "cpu")
    with pytest.raises(BadInput, match="the device is cuda; set it to auto"):
        engine_of(RESNET, "openvino", "cuda")


def test_bfloat16_has_a_key_of_its_own_and_needs_a_processor_that_knows_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = RESNET.model_copy(update={"precision": "bfloat16"})
    samplings = {"frames": SEVEN_FRAMES}
    plain, other = (find_source(workspace, "d", "x", feature, samplings, None) for feature in (RESNET, half))
    assert plain.key != other.key and other.description.endswith("random weights, bfloat16")
    with pytest.raises(BadInput, match="needs the engine OpenVINO; leave its precision out"):
        spec_of(half, "", None, "cpu", engine="torch")
    monkeypatch.setattr(nets, "knows_bfloat16", lambda: False)
    with pytest.raises(BadInput, match="OpenVINO says that this processor cannot"):
        spec_of(half, "", None, "cpu", engine="openvino")
    assert spec_of(half, "", None, "cuda").arithmetic == "bfloat16"


@pytest.mark.skipif(not openvino_model.knows_bfloat16(), reason="this processor does not compute in bfloat16")
def test_rows_in_bfloat16_are_near_and_other(videos: list[Video], tmp_path: Path) -> None:
    whole, half = (ToyExtraction(tmp_path / name, videos, "openvino") for name in ("whole", "half"))
    whole.add("x").run()
    half.add("x", precision="bfloat16").run(processes(2))
    for id, rows in whole.rows("x").items():
        error = np.abs(half.rows("x")[id].astype(float) - rows).max() / np.abs(rows).max()
        assert 1e-4 < error < 0.1


def test_a_net_that_does_not_convert_says_what_to_do(
    videos: list[Video], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise openvino_model.CannotConvert("x cannot become an OpenVINO model (aten::odd)")

    monkeypatch.setattr("tasks.extraction.converted_models.convert", refuse)
    extraction = ToyExtraction(tmp_path / "out", videos, "openvino").add("x", seed=77)
    with pytest.raises(BadInput, match=r"\(aten::odd\); set runtime.engine to torch"):
        extraction.run()


def test_a_net_is_converted_once_and_again_when_its_code_changes(
    videos: list[Video], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.extraction import converted_models

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[Path] = []
    real = converted_models.convert
    monkeypatch.setattr(converted_models, "convert", lambda *given: (made.append(given[2]), real(*given))[1])
    backbone, shape = nets.open_net(spec_of(RESNET, "", None, "cpu")).backbone, (2, 1, 160, 160, 3)
    for _ in range(2):
        file = converted_models.converted(backbone, "timm:test_resnet", shape, ["random"])
    assert len(made) == 1 and file.is_file() and file.with_suffix(".bin").is_file()
    assert not list(file.parent.parent.glob(".new-*")), "nothing half-written stays"
    converted_models.converted(backbone, "timm:test_resnet", shape, ["other weights"])
    monkeypatch.setattr(converted_models, "_backbone_code", lambda: ["changed"])
    converted_models.converted(backbone, "timm:test_resnet", shape, ["random"])
    assert len(made) == 3


@pytest.fixture
def stage(workspace: Workspace, world: Path, tmp_path: Path):
    """The stage on a copy of the tiny world, of which some clips can be hidden: stage(hidden, engine) -> its store."""
    root = Path(shutil.copytree(world, tmp_path / "copy"))
    clips = sorted((root / "videos").glob("*.mp4"))

    def run(hidden: int, engine: str = "auto", feature: BackboneFeature = RESNET) -> FeatureStore:
        for clip in clips[:hidden]:
            clip.unlink(missing_ok=True)
        for clip in clips[hidden:]:
            shutil.copy(world / "videos" / clip.name, clip)
        runtime = Runtime.model_validate({"decoders": 0, "net_processes": 0, "device": "cpu", "engine": engine})
        inputs: dict[str, Any] = {}
        for each, options in ((catalogue, TINY_WORLD), (sample_frames, SamplingOptions(sampling=SEVEN_FRAMES))):
            done = each.bind(workspace, root, runtime, options, inputs)
            done.execute()
            inputs = {"videos": done.ref.part("videos")} if not inputs else inputs | {"frame_plans": (done.ref,)}
        options = ExtractOptions(dataset="demo", features={"look": feature}, sampling={"frames": SEVEN_FRAMES})
        job = extract_features.bind(workspace, root, runtime, options, inputs)
        job.execute()
        return FeatureStore.open(workspace.features / job.prepared["look"].store)

    return run


def test_a_store_keeps_to_the_engine_that_made_its_rows(stage, capsys: pytest.CaptureFixture[str]) -> None:
    store = stage(2, "torch")
    assert store.provenance["engine"] == "torch" and len(store.view()) == 16
    with pytest.raises(Mismatch, match=r"made by torch, and openvino would make others.+; set runtime.engine to torch"):
        stage(1, "openvino")
    capsys.readouterr()
    store = stage(1)
    said = " ".join(capsys.readouterr().err.split())
    assert "look: its rows so far were made by torch, so torch goes on" in said
    assert store.provenance["engine"] == "torch" and len(store.view()) == 17
    whole = stage(0, "torch", RESNET.model_copy(update={"seed": 0, "output": "pooled"}))
    ids = list(whole.view().lengths())
    assert len(ids) == 18 and all(np.array_equal(whole.view().read(id), store.view().read(id)) for id in store.view().lengths())


def test_a_store_says_which_engine_made_it_and_one_without_rows_has_none_yet(stage, workspace: Workspace) -> None:
    source = find_source(workspace, "demo", "look", RESNET, {"frames": SEVEN_FRAMES}, None)
    empty = FeatureStore.create(workspace.features / source.store, {"extractor_key": source.key, "engine": "torch"})
    store = stage(15)
    assert store.path == empty.path and store.provenance["engine"] == "openvino" and len(store.view()) == 3
    assert "made by" not in stage(14).provenance and len(store.view()) == 4
    with pytest.raises(Mismatch, match="made by openvino, and torch would make others"):
        stage(13, "torch")
