"""Learning rates of the papers, epoch by epoch, and schedules that do not fit together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from models.training.loop import FitOptions, learning_rate_at

PER_EPOCH = 10


def rates(**how: Any) -> list[float]:
    options = FitOptions(**how)
    total = PER_EPOCH * options.epochs
    return [learning_rate_at(step, total, options) for step in range(total)]


def test_g2l_rises_for_three_epochs_and_falls_for_the_last_seven() -> None:
    found = rates(epochs=30, learning_rate=1e-4, warmup_epochs=3, warmup_from=1e-7, schedule="steps", milestones=[[23, 0.01]])
    assert found[0] == pytest.approx(1e-7 + (1e-4 - 1e-7) / 30)
    assert found[14] == pytest.approx(1e-7 + (1e-4 - 1e-7) / 2), "half-way up after an epoch and a half"
    assert found[29] == pytest.approx(1e-4)
    assert all(a < b for a, b in pairwise(found[:30]))
    assert set(found[30:230]) == {1e-4}
    assert found[230:] == pytest.approx([1e-6] * 70)


def test_gld_falls_by_a_fifth_every_three_epochs() -> None:
    found = rates(epochs=20, learning_rate=5e-4, schedule="decay", decay=0.8, decay_every=3)
    assert found[:30] == [5e-4] * 30
    assert found[30] == pytest.approx(4e-4) and found[59] == pytest.approx(4e-4)
    assert found[60] == pytest.approx(3.2e-4) and found[-1] == pytest.approx(5e-4 * 0.8**6)


def test_milestones_are_parts_of_the_highest_rate_and_the_last_one_passed_counts() -> None:
    found = rates(epochs=6, learning_rate=1.0, schedule="steps", milestones=[[2, 0.5], [4, 0.1]])
    assert found == [1.0] * 20 + [0.5] * 20 + [0.1] * 20


def test_a_warm_up_in_epochs_is_one_of_that_many_steps() -> None:
    in_epochs = rates(epochs=4, learning_rate=1.0, warmup_epochs=0.5, schedule="cosine")
    assert in_epochs == rates(epochs=4, learning_rate=1.0, warmup_steps=5, schedule="cosine")
    assert in_epochs[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"warmup_steps": 3, "warmup_epochs": 1}, "in steps and in epochs"),
        ({"schedule": "steps"}, "go together"),
        ({"milestones": [[3, 0.1]]}, "go together"),
        ({"schedule": "steps", "milestones": [[4, 0.1], [2, 0.5]]}, "rising epochs"),
        ({"schedule": "steps", "milestones": [[2, 0.1], [2, 0.5]]}, "rising epochs"),
        ({"schedule": "steps", "milestones": [[2, 0.0]]}, "above 0"),
    ],
)
def test_schedules_that_do_not_fit_together_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FitOptions(epochs=6, learning_rate=1.0, **how)
