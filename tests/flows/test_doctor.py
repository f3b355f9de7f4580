"""The doctor finds a sound set-up sound, and says what to do where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import doctor
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
