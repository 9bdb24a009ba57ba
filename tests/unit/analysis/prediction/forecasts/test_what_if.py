"""Single changes, ranked."""

import dataclasses

import pytest

from scalescope.analysis.prediction.forecasts.forecast import forecast
from scalescope.analysis.prediction.forecasts.what_if import Change, what_if
from tests.builders.profiles import made_inputs


def changes_of(**options: object) -> dict[str, Change]:
    inputs = made_inputs(**options)  # type: ignore[arg-type]
    return {change.name: change for change in what_if(inputs, inputs.job.setup(8))}


def test_the_largest_gain_comes_first() -> None:
    gains = [change.gain for change in changes_of(batches=(32, 64)).values()]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0.0


def test_every_gain_is_of_its_own_change_alone() -> None:
    inputs = made_inputs()
    setup = inputs.job.setup(8)
    change = changes_of()["gradients sent in bf16"]
    now = forecast(inputs, setup).samples_per_s.value
    then = forecast(inputs, dataclasses.replace(setup, comm_hook="bf16")).samples_per_s.value
    assert change.gain == pytest.approx(then / now - 1.0)
    assert (change.setting, change.flags) == ("comm_hook", ("--comm-hook", "bf16"))
    assert not change.changes_job


def test_half_the_time_on_the_network_is_the_most_that_half_the_bytes_can_give() -> None:
    changes = changes_of()
    assert changes["a network twice as fast"].gain >= changes["gradients sent in bf16"].gain
    assert changes["a network twice as fast"].flags == ()


def test_larger_batches_need_a_line() -> None:
    assert not any(name.startswith("batch") for name in changes_of())
    larger = changes_of(batches=(32, 64))["batch 128 per rank"]
    assert larger.changes_job and larger.flags == ("--batch-size", "128")
    assert changes_of()["4 micro-batches per step"].changes_job


def test_what_is_so_already_is_not_proposed() -> None:
    inputs = made_inputs()
    setup = dataclasses.replace(inputs.job.setup(8), comm_hook="bf16", bucket_cap_mb=25.0)
    names = {change.name for change in what_if(inputs, setup)}
    assert "gradients sent in bf16" not in names
    assert "buckets of 25 MiB" not in names and "buckets of 5 MiB" in names
