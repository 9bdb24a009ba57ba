"""The card of the training benchmark: how long ranks warm up, and what soaking goes with."""

from typing import Any

import pytest

from scalescope.catalog.benchmarks.train import AUTO, Train, warmup_of
from scalescope.catalog.setting import settings_of


def _settings(strategy: str = "ddp", device: str = "cuda", **changes: Any) -> dict[str, Any]:
    usual = {"warmup_steps": 5, "steps_per_epoch": AUTO, "epochs": 1}
    return {"strategy": strategy, "device": device, **usual, **changes}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (_settings("ddp"), 11),
        (_settings("zero1"), 11),
        (_settings("ddp", warmup_steps=20), 20),
        (_settings("ddp", "cpu"), 5),
        (_settings("fsdp"), 5),
        (_settings("single"), 5),
        (_settings("ddp", steps_per_epoch=105), 11),
        (_settings("ddp", steps_per_epoch=11, epochs=2), 11),
        (_settings("ddp", steps_per_epoch=20), 5),  # more would leave little to measure
        (_settings("ddp", steps_per_epoch=None), 5),  # only the data knows
    ],
)
def test_ddp_warms_up_until_it_takes_no_times_of_its_own(settings: dict[str, Any], steps: int) -> None:
    assert warmup_of(settings) == Train.warmup_iterations(settings) == steps


def test_measured_steps_are_what_the_warm_up_leaves_and_soaking_changes_no_trial() -> None:
    assert Train.measured_iterations(_settings(steps_per_epoch=105)) == 94
    assert Train.measured_iterations(_settings(device="cpu", steps_per_epoch=105)) == 100
    assert Train.measured_iterations(_settings()) is None
    (soak,) = (setting for setting in settings_of(Train) if setting.name == "soak")
    assert (soak.identity, soak.neutral, soak.default) == (False, None, None)
