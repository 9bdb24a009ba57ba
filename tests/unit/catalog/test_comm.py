"""The communication benchmark's card: which collectives, which sizes; and the collectives' own cards."""

from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import ALL, DTYPE_BYTES, Comm
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput

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


def test_all_is_every_collective() -> None:
    assert cards.names("collectives") == EVERY
    assert options().collectives() == EVERY
    assert options(collective=f"broadcast,{ALL}").collectives() == EVERY


def test_chosen_collectives_are_in_the_catalogs_order() -> None:
    assert options(collective="reduce,all_reduce").collectives() == ("all_reduce", "reduce")
    assert options(collective="all_reduce").collectives() == ("all_reduce",)


@pytest.mark.parametrize(
    ("least", "most", "factor", "sizes"),
    [
        (8, 64, 2, (8, 16, 32, 64)),
        (8, 63, 2, (8, 16, 32)),
        (8, 8, 2, (8,)),
        (1, 1000, 10, (1, 10, 100, 1000)),
        (3, 100, 1024, (3,)),
    ],
)
def test_sizes_grow_by_the_factor_up_to_the_largest(
    least: int, most: int, factor: int, sizes: tuple[int, ...]
) -> None:
    assert options(min_bytes=least, max_bytes=most, step_factor=factor).sizes() == sizes


def test_the_largest_size_depends_on_the_device() -> None:
    assert options("cpu").sizes()[-1] == 64 << 20
    assert options("cuda").sizes()[-1] == 1 << 30


def test_a_misspelt_collective_gets_a_hint() -> None:
    placed = {"world_size": 2, "backend": "gloo", "device": "cpu"}
    values = {setting.name: setting.default_for("cpu") for setting in settings_of(Comm)}
    with pytest.raises(BadInput, match=r"^unknown collective 'allreduce'; .* did you mean all_reduce\?$"):
        Comm.check({**values, **placed, "collective": "allreduce"})


def test_every_type_has_a_size() -> None:
    (dtype,) = (setting for setting in settings_of(Comm) if setting.name == "dtype")
    assert dtype.choices == tuple(DTYPE_BYTES)


@pytest.mark.parametrize(
    ("name", "two", "eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
        ("reduce", 1.0, 1.0),
        ("sendrecv", 1.0, 1.0),
        ("barrier", 0.0, 0.0),
    ],
)
def test_bus_factors_are_nccl_tests_own(name: str, two: float, eight: float) -> None:
    card = cards.card("collectives", name)
    assert (card.bus_factor(2), card.bus_factor(8)) == (two, eight)


def test_cards_of_collectives_hold_what_the_table_prints() -> None:
    facts = {name: cards.card("collectives", name) for name in EVERY}
    assert {name for name, card in facts.items() if card.shares_array} == {
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    }
    assert {name for name, card in facts.items() if not card.has_data} == {"barrier"}
    assert {name: card.root for name, card in facts.items() if card.root >= 0} == {
        "broadcast": 0,
        "reduce": 0,
    }
    assert {name for name, card in facts.items() if card.redop == "sum"} == {
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "sendrecv",
    }
