"""The doctor finds a sound set-up sound, and says what to do where it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import doctor
from tasks.gpu_selftest import checks
from tests.flows.conftest import Longtake


def test_this_machine_can_decode_and_everything_has_a_version(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in doctor.run_checks(tmp_path / "not" / "yet")}
    assert findings["decoding"].fine, findings["decoding"]
    assert findings["ffmpeg"].fine and "ffmpeg version" in findings["ffmpeg"].found
    assert all(findings[name].fine for name in ("Python", "torch", "prefect", "zarr", "disk"))


def test_a_server_that_does_not_answer_comes_with_a_remedy() -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        finding = doctor._prefect()
    assert not finding.fine and "unset PREFECT_API_URL" in finding.remedy


def test_the_command_ends_with_what_to_do(longtake: Longtake, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = doctor.Finding("Python", "3.11")
    monkeypatch.setattr(doctor, "run_checks", lambda workspace: [sound])
    assert (well := longtake("doctor")).code == 0 and "Next: longtake demo" in well.out
    assert longtake("doctor", "--json").json == [{"what": "Python", "found": "3.11", "fine": True, "remedy": ""}]
    monkeypatch.setattr(doctor, "run_checks", lambda workspace: [sound, doctor.Finding("disk", "0.1 GB", "free some room")])
    ill = longtake("doctor")
    assert ill.code == 1 and "free some room" in ill.out and "1 to fix" in ill.out and "Next:" not in ill.out


def test_the_gpu_selftest_prints_a_table_and_json_and_fails_with_a_check(
    longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(passed: bool) -> dict[str, object]:
        rows = [checks.Check("sa_lstm", "loss 2.0e-05 from the CPU", passed), checks.Check("decoding", "800 frames per second")]
        return {"machine": checks.machine(), "device": "cpu", "checks": [asdict(row) for row in rows], "left_out": ["no GPU"]}

    monkeypatch.setattr(checks, "run_selftest", lambda: report(True))
    well = longtake("doctor", "--gpu-selftest")
    assert well.code == 0 and "loss 2.0e-05" in well.out and "left out: no GPU" in well.out and "All is well" in well.out
    found = longtake("doctor", "--gpu-selftest", "--json").json
    assert found["checks"][0]["passed"] is True and "torch" in found["machine"]
    monkeypatch.setattr(checks, "run_selftest", lambda: report(False))
    assert (ill := longtake("doctor", "--gpu-selftest")).code == 1 and "1 failed" in ill.out


def test_the_selftest_runs_on_a_cpu_what_it_can_and_finds_a_wrong_net(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = list(checks.compare_nets("cpu"))
    assert [check.what for check in nets] == ["timm:test_resnet in float32", "timm:test_resnet in bfloat16"]
    assert all(check.passed for check in (*nets, *checks.compare_resume("cpu")))
    monkeypatch.setattr(checks, "CAPTIONERS", {"glrg": {}, "top_down": {}})
    assert [check.passed for check in checks.compare_captioners("cpu")] == [True, True]
    monkeypatch.setitem(checks.LIMITS, "bfloat16", 0.0)
    assert [check.passed for check in checks.compare_nets("cpu")] == [True, False]
