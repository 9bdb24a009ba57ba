"""DDP's logging data about buckets and times, for the keys of every supported torch."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from scalescope.worker.training.ddp_logging import DdpTimes, DdpWatch, bucket_samples

NAMES = ("backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time")


class FakeDdp:
    """Stands in for a wrapped model."""

    def __init__(self, logged: dict[str, Any] | Exception) -> None:
        self._logged = logged

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if isinstance(self._logged, Exception):
            raise self._logged
        return self._logged


@pytest.mark.parametrize(
    ("logged", "samples"),
    [
        ({"bucket_sizes": "10, 20"}, {"bucket_bytes": [10.0, 20.0]}),
        ({"bucket_sizes": "30", "rebuilt_bucket_sizes": "10, 20"}, {"bucket_bytes": [10.0, 20.0]}),
        ({"bucket_sizes": "30", "rebuilt_bucket_sizes": ""}, {"bucket_bytes": [30.0]}),
        ({}, {}),
        ({"bucket_sizes": "unknown"}, {}),
        (AttributeError("gone"), {}),
        (RuntimeError("not ready"), {}),
    ],
)
def test_the_rebuilt_buckets_count_where_there_are_any(logged: Any, samples: dict[str, list[float]]) -> None:
    assert bucket_samples(FakeDdp(logged)) == samples  # type: ignore[arg-type]


def wrapped_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    model(torch.ones(3, 4)).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def logged_times(*nanoseconds: int | None) -> DdpTimes | None:
    logging = FakeDdp(dict(zip(NAMES, nanoseconds, strict=False)))
    return DdpWatch(logging, has_hook=False).times()  # type: ignore[arg-type]


def test_times_come_in_seconds() -> None:
    times = logged_times(2_000_000_000, 1_500_000_000, 500_000_000)
    assert times is not None
    assert (times.backward_s, times.communication_s, times.overlap_s) == pytest.approx((2.0, 1.5, 0.5))
    times = logged_times(20, 10, 0)
    assert times is not None and times.overlap_s == 0.0  # no overlap is a time like any other


@pytest.mark.parametrize("logged", [(), (0, 10, 0), (10, 0, 0), (None, 10, 5), (-1, 10, 5)])
def test_an_iteration_that_was_not_timed_has_no_times(logged: tuple[int | None, ...]) -> None:
    assert logged_times(*logged) is None


@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("not ready")])
def test_a_ddp_without_logging_data_or_a_sample_rate_is_left_alone(error: Exception) -> None:
    watch = DdpWatch(FakeDdp(error), has_hook=False)  # type: ignore[arg-type]
    watch.pause()
    assert watch.times() is None


def test_ddp_times_itself_once_it_is_switched_on(alone: None) -> None:
    model = wrapped_model()
    watch = DdpWatch(model, has_hook=False)
    for _ in range(11):  # it times its first ten iterations anyway
        gradients_of(model)
    watch.begin()
    for _ in range(3):
        gradients_of(model)
    times = watch.times()
    assert times is not None
    assert 0.0 <= times.overlap_s <= times.communication_s


def test_marked_buckets_leave_gradients_as_they_were(alone: None) -> None:
    expected = gradients_of(wrapped_model())
    model = wrapped_model()
    DdpWatch(model, has_hook=False).mark_buckets()
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        gradients = gradients_of(model)
    assert all(torch.equal(gradient, other) for gradient, other in zip(gradients, expected, strict=True))
    assert "scalescope.bucket 0" in {event.name for event in recorder.events()}


def test_buckets_are_marked_once_and_a_hook_that_is_there_is_kept() -> None:
    class Hooks:
        registered = 0

        def register_comm_hook(self, state: object, hook: object) -> None:
            self.registered += 1

    model = Hooks()
    watch = DdpWatch(model, has_hook=False)  # type: ignore[arg-type]
    watch.mark_buckets()
    watch.mark_buckets()
    assert model.registered == 1
    DdpWatch(model, has_hook=True).mark_buckets()  # type: ignore[arg-type]
    assert model.registered == 1


def _last_timed(model: DistributedDataParallel) -> int:
    return int(model._get_ddp_logging_data()["iteration"])


def test_a_paused_ddp_times_only_its_first_ten_iterations(alone: None) -> None:
    usual, paused = wrapped_model(), wrapped_model()
    DdpWatch(paused, has_hook=False).pause()
    for _ in range(102):
        gradients_of(usual)
        gradients_of(paused)
    assert (_last_timed(usual), _last_timed(paused)) == (100, 10)
    assert bucket_samples(paused) == bucket_samples(usual) != {}
