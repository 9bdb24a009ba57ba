"""The collector's pauses are counted between begin and end, and by step."""

import gc

import pytest

from scalescope.worker.process.position import Position
from scalescope.worker.training.activity.garbage import GarbageWatch


@pytest.fixture
def position() -> Position:
    return Position(None, 0, 1)


def test_collections_are_counted_by_generation_between_begin_and_end(position: Position) -> None:
    watch = GarbageWatch(position)
    gc.disable()
    try:
        gc.collect()
        watch.begin()
        gc.collect(0)
        gc.collect(2)
        gc.collect(2)
        watch.end()
        gc.collect()
    finally:
        gc.enable()
    counters = watch.counters()
    counts = [counters[f"gc/collections_{generation}"] for generation in range(3)]
    assert counts == [1, 0, 2]
    assert 0.0 < counters["gc/longest_s"] <= counters["gc/pause_s"]  # type: ignore[operator]


def test_pauses_belong_to_the_step_in_which_they_began(position: Position) -> None:
    watch = GarbageWatch(position)
    watch.begin()
    position.begin_step()
    position.begin_step()
    gc.collect()
    watch.end()
    assert watch.pause_s(2) > 0.0
    assert watch.pause_s(7) == 0.0


def test_the_callback_is_removed_again(position: Position) -> None:
    before = len(gc.callbacks)
    watch = GarbageWatch(position)
    watch.begin()
    watch.end()
    assert len(gc.callbacks) == before
