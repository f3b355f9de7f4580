"""Few videos get small batches and enough steps; thousands get the usual values, and so the same keys as ever."""

import pytest

from tasks.seed import SeedingOptions
from tasks.training.data_size import LEAST_STEPS, PATIENT_STEPS, SMALLEST_BATCH


@pytest.mark.parametrize(("visits", "size"), [(1, 4), (30, 4), (127, 4), (128, 8), (256, 16), (512, 32), (100_000, 32)])
def test_batches_shrink_until_an_epoch_has_enough_steps(visits: int, size: int) -> None:
    assert SeedingOptions().sized(visits).batch_size == size
    assert size == SMALLEST_BATCH or visits >= LEAST_STEPS * size


@pytest.mark.parametrize("visits", [1, 30, 400, 100_000])
def test_patience_lasts_for_enough_steps(visits: int) -> None:
    sized = SeedingOptions().sized(visits)
    assert isinstance(sized.patience, int) and isinstance(sized.batch_size, int)
    assert sized.patience >= 10 and sized.patience * -(-visits // sized.batch_size) >= PATIENT_STEPS


def test_what_a_recipe_states_is_never_changed() -> None:
    stated = SeedingOptions(batch_size=32, patience=10)
    assert stated.sized(30) is stated
    assert SeedingOptions(batch_size=32).sized(30).batch_size == 32


def test_large_data_has_the_options_that_it_always_had() -> None:
    assert SeedingOptions().sized(5000).model_dump() == SeedingOptions(batch_size=32, patience=10).model_dump()
