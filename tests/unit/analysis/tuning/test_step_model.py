"""The step model: what levers promise by the parts of a step."""

import math

import pytest

from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, StepParts, parts_of_step

BASELINE: frozenset[str] = frozenset()
EFFECTS = {
    "products": LeverEffect(factors={"products": 0.5}),
    "host": LeverEffect(factors={"host": 0.2}),
    "both": LeverEffect(factors={"kernels": 1.0}, company=frozenset({"products"}), together={"kernels": 0.5}),
    **{f"workers {count}": LeverEffect(processes=count) for count in (1, 2, 4, 8)},
    "copy": LeverEffect(factors={"copy": 0.4}),
}


def model(parts: StepParts, **others: StepParts) -> StepModel:
    known = {BASELINE: parts, **{frozenset(name.split("_")): other for name, other in others.items()}}
    return StepModel(parts_of=known.get, effects=EFFECTS)


def gain(parts: StepParts, *levers: str) -> float:
    return math.exp(model(parts).gain(frozenset(levers)))


def test_a_lever_gives_what_its_part_of_the_step_allows() -> None:
    parts = parts_of_step(products_share=0.5, optimizer_share=0.1)
    assert gain(parts, "products") == pytest.approx(1.0 / 0.75)
    assert gain(parts, "products", "both") == pytest.approx(1.0 / (0.25 + 0.2 + 0.1))
    assert gain(parts, "both") == pytest.approx(1.0)
    assert gain(parts, "unknown") == 1.0


def test_shorter_products_give_nothing_where_the_host_is_the_limit() -> None:
    parts = parts_of_step(busy_share=0.4)
    assert gain(parts, "products") == pytest.approx(1.0)
    assert gain(parts, "host") == pytest.approx(2.5)  # until the GPU is the limit
    assert gain(parts, "host", "products") > 3.0


def test_loader_processes_promise_what_they_hide() -> None:
    serial = parts_of_step(input_share=0.75)  # preparing takes three times as long as computing
    assert gain(serial, "workers 1") == pytest.approx(1.0 / 0.75)
    assert gain(serial, "workers 2") == pytest.approx(1.0 / 0.375)
    assert gain(serial, "workers 4") == gain(serial, "workers 8") == pytest.approx(4.0)
    assert gain(parts_of_step(), "workers 4") == 1.0  # nobody waits
    busy = parts_of_step(input_share=0.5, processes=2)
    assert gain(busy, "workers 4") == pytest.approx(2.0)
    assert gain(busy, "workers 1") < 1.0
    hidden = parts_of_step(prepare_share=1.5, processes=2)
    assert gain(hidden, "workers 4") == 1.0


def test_processes_prepare_on_one_thread_what_the_rank_prepares_on_many() -> None:
    parts = parts_of_step(input_share=0.75, process_share=1.5)
    assert gain(parts, "workers 4") == pytest.approx(1.0 / 0.375)
    assert gain(parts, "workers 1") < 1.0
    unlike = parts_of_step(input_share=0.75, process_share=0.1)  # one batch was much shorter than most
    assert gain(unlike, "workers 1") == pytest.approx(1.0 / 0.75)


def test_a_copy_is_no_input() -> None:
    parts = parts_of_step(copy_share=0.2)
    assert gain(parts, "workers 4") == 1.0
    assert gain(parts, "copy") == pytest.approx(1.0 / 0.88)


def test_what_launches_of_a_set_showed_counts_more_than_the_cards() -> None:
    host_bound = parts_of_step(busy_share=0.3)
    known = model(parts_of_step(), products=host_bound)
    on_top = frozenset({"products"})
    assert known.gain(on_top | {"host"}, on_top) > 0.5
    assert known.gain(frozenset({"host"}), BASELINE) == pytest.approx(0.0)


def test_without_any_facts_usual_shares_stand_in() -> None:
    blind = StepModel(parts_of=lambda levers: None, effects=EFFECTS)
    assert blind.gain(frozenset({"products"})) == pytest.approx(-math.log(0.7))
