"""The communication benchmark: collectives and sizes, what it refuses, and the collectives' own cards."""

from typing import Any

import pytest

from scalescope.catalog.benchmarks.comm import ALL, DTYPE_BYTES, Comm
from scalescope.catalog.collectives import COLLECTIVES, collective_named
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput, CannotRun

EVERY = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "sendrecv",
)


def options(device: str = "cpu", **changes: Any) -> Comm:
    values: dict[str, Any] = {setting.name: setting.default_for(device) for setting in settings_of(Comm)}
    return Comm(**{**values, **changes})


def test_chosen_collectives_are_in_the_catalogs_order_and_all_is_every_one() -> None:
    assert tuple(COLLECTIVES) == EVERY
    assert options().collectives() == EVERY
    assert options(collective=f"broadcast,{ALL}").collectives() == EVERY
    assert options(collective="reduce,all_reduce").collectives() == ("all_reduce", "reduce")
    assert options(collective="all_reduce").collectives() == ("all_reduce",)


def test_sizes_grow_by_the_factor_up_to_the_largest() -> None:
    for least, most, factor, sizes in (
        (8, 64, 2, (8, 16, 32, 64)),
        (8, 63, 2, (8, 16, 32)),
        (8, 8, 2, (8,)),
        (1, 1000, 10, (1, 10, 100, 1000)),
    ):
        assert options(min_bytes=least, max_bytes=most, step_factor=factor).sizes() == sizes
    assert options("cpu").sizes()[-1] == 64 << 20
    assert options("cuda").sizes()[-1] == 1 << 30


def test_bus_factors_are_nccl_tests_own() -> None:
    shared = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), (0.5, 0.875))
    whole = dict.fromkeys(("broadcast", "reduce", "sendrecv"), (1.0, 1.0))
    factors = {"all_reduce": (1.0, 1.75), "barrier": (0.0, 0.0), **shared, **whole}
    cards_of = {name: collective_named(name) for name in EVERY}
    assert {name: (card.bus_factor(2), card.bus_factor(8)) for name, card in cards_of.items()} == factors


def test_cards_of_collectives_hold_what_the_table_prints() -> None:
    facts = {name: collective_named(name) for name in EVERY}
    sharing = {name for name, card in facts.items() if card.shares_array}
    assert sharing == {"all_gather", "reduce_scatter", "all_to_all"}
    assert {name for name, card in facts.items() if not card.has_data} == {"barrier"}
    assert {name: card.root for name, card in facts.items() if card.root >= 0} == {
        "broadcast": 0,
        "reduce": 0,
    }
    summing = {name for name, card in facts.items() if card.redop == "sum"}
    assert summing == {"all_reduce", "reduce", "reduce_scatter", "sendrecv"}
    (dtype,) = (setting for setting in settings_of(Comm) if setting.name == "dtype")
    assert dtype.choices == tuple(DTYPE_BYTES)


# what is refused before anything runs


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


def test_what_can_be_measured_is_taken() -> None:
    for changes in (
        {},
        {"in_place": True},
        {"collective": "all_reduce", "in_place": True},
        {"collective": "all_reduce,sendrecv", "in_place": False},  # what is offered is measured
        {"min_bytes": 2, "max_bytes": 4},
        {"collective": "all_gather,barrier", "min_bytes": 4, "max_bytes": 8},
        {"dtype": "bfloat16"},
    ):
        Comm.check({**_FINE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collective": "all_reduce,gather_all"}, "gather_all"),
        ({"collective": "allreduce"}, r"^unknown collective 'allreduce'; .* did you mean all_reduce\?$"),
        ({"max_bytes": 4}, "max_bytes 4 is below min_bytes 8"),
        ({"world_size": 1}, "at least 2 ranks"),
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


def test_steps_are_sizes_and_a_barrier_has_one() -> None:
    for collective, steps in (("all_reduce", 4), ("all_reduce,barrier", 5), ("barrier", 1)):
        assert options(collective=collective, min_bytes=8, max_bytes=64).steps() == steps
