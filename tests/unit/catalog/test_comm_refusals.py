"""What `comm` refuses before anything runs, and what it counts as its steps."""

from typing import Any

import pytest

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput, CannotRun

_FINE: dict[str, Any] = {
    "collective": "all",
    "min_bytes": 8,
    "max_bytes": 64,
    "step_factor": 2,
    "dtype": "float32",
    "in_place": None,
    "world_size": 2,
    "backend": "gloo",
    "device": "cpu",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"in_place": True},
        {"in_place": False},
        {"collective": "all_reduce", "in_place": True},
        {"collective": "all_reduce,sendrecv", "in_place": False},  # what is offered is measured
        {"min_bytes": 2, "max_bytes": 4},
        {"collective": "all_gather", "min_bytes": 4, "max_bytes": 8},
        {"collective": "all_gather,barrier", "min_bytes": 4, "max_bytes": 4},
        {"dtype": "bfloat16"},
    ],
)
def test_what_can_be_measured_is_taken(changes: dict[str, Any]) -> None:
    Comm.check({**_FINE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collective": "all_reduce,gather_all"}, "gather_all"),
        ({"max_bytes": 4}, "max_bytes 4 is below min_bytes 8"),
        ({"world_size": 1}, "at least 2 ranks"),
        ({"min_bytes": 2, "max_bytes": 3}, "2 bytes, .* float32 element$"),
        ({"min_bytes": 3, "max_bytes": 5}, "3 bytes, .* float32 element$"),
        (
            {"collective": "all_gather,all_to_all", "world_size": 3, "max_bytes": 8},
            "8 bytes, .* float32 element per rank$",
        ),
        (
            {"collective": "all_reduce,reduce", "in_place": False},
            "--out-of-place cannot be used with all_reduce, reduce",
        ),
        ({"collective": "sendrecv", "in_place": True}, "--in-place cannot be used with sendrecv"),
    ],
)
def test_what_leaves_nothing_to_measure_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Comm.check({**_FINE, **changes})


def test_a_type_that_gloo_does_not_carry_between_gpus_is_refused() -> None:
    with pytest.raises(CannotRun, match=r"gloo .* --backend nccl"):
        Comm.check({**_FINE, "dtype": "bfloat16", "device": "cuda"})


@pytest.mark.parametrize(
    ("collective", "steps"), [("all_reduce", 4), ("all_reduce,barrier", 5), ("barrier", 1)]
)
def test_steps_are_sizes_and_a_barrier_has_one(collective: str, steps: int) -> None:
    values: dict[str, Any] = {setting.name: setting.default_for("cpu") for setting in settings_of(Comm)}
    options = Comm(**{**values, "collective": collective, "min_bytes": 8, "max_bytes": 64})
    assert options.steps() == steps
