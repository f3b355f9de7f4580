"""Jobs that are submitted one by one to worker processes: arrays as they were, and losses that are told."""

from typing import Any

import numpy as np
import pytest

from storage.errors import BadMedia, TransientError
from storage.worker_pool import Loss, WorkerPool
from storage.worker_process import WorkerKind
from tests.storage.media.decode_jobs import act, dies_at_first


def doubled(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value * 2 if name == "small" else value + value for name, value in job.items()}


class ToyPool(WorkerPool):
    kind = WorkerKind("toy")
    attempts = 3

    def explain_loss(self, job: Any, lost: Loss, reason: str) -> BadMedia:
        raise TransientError(f"{job}: {lost}, {reason}")


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_of_any_size_and_layout_travel_as_they_are(workers: int) -> None:
    random = np.random.default_rng(0)
    sent = {
        "large": random.standard_normal((30, 50, 1000)),
        "strided": random.integers(0, 99, (64, 64), np.uint8)[::2, ::3],
        "fortran": np.asfortranarray(random.standard_normal((7, 9)).astype(np.float32)),
        "empty": np.zeros((0, 5), np.float16),
        "small": "ab",
    }
    with ToyPool(workers, 30) as pool:
        found: Any = pool.submit(doubled, sent)()
    assert found.pop("small") == "abab"
    for name, array in found.items():
        assert array.dtype == sent[name].dtype and np.array_equal(array, 2 * sent[name])  # type: ignore[operator]
        assert array.flags.writeable


def test_jobs_run_at_the_same_time_and_answers_are_taken_in_any_order() -> None:
    with ToyPool(2, 30) as pool:
        answers = [pool.submit(act, job) for job in ("slow a", "b", "c")]
        assert [answers[n]() for n in (2, 0, 1)] == ["c done", "slow a done", "b done"]


def test_a_lost_process_is_made_good_and_a_job_that_loses_every_one_is_told(tmp_path: Any) -> None:
    with ToyPool(1, 30) as pool:
        assert pool.submit(dies_at_first, tmp_path / "a")() == "done"
        with pytest.raises(TransientError, match="crash: crashed, SIGSEGV"):
            pool.submit(act, "crash")()
        with pytest.raises(ZeroDivisionError):
            pool.submit(act, "bug")()
        assert pool.submit(act, "after")() == "after done"
