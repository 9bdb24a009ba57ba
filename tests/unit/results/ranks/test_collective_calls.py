"""Which two ranks are in different collectives at the same point."""

from pathlib import Path

from scalescope.results.ranks.collective_calls import (
    CallSlot,
    CollectiveCall,
    find_disagreement,
    read_calls,
    slot_file,
)


def _call(number: int, name: str = "all_reduce", tensor: str = "[2] float32") -> CollectiveCall:
    return CollectiveCall(number=number, name=name, tensor=tensor)


def test_the_last_call_is_read_back(tmp_path: Path) -> None:
    slot = CallSlot(slot_file(tmp_path, 1))
    for call in (_call(1, tensor="[1000000] float32"), _call(2, name="barrier", tensor="")):
        slot.write(call)
    assert read_calls(tmp_path, 2) == [None, _call(2, name="barrier", tensor="")]


def test_a_slot_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    slot_file(tmp_path, 0).write_text("[1, ")
    slot_file(tmp_path, 1).write_text("7")
    assert read_calls(tmp_path, 2) == [None, None]


def test_equal_calls_agree() -> None:
    assert find_disagreement([_call(3), _call(3), None]) is None


def test_ranks_ahead_of_each_other_do_not_disagree() -> None:
    assert find_disagreement([_call(4, name="broadcast"), _call(3)]) is None


def test_different_shapes_or_names_disagree() -> None:
    for other in (_call(3, tensor="[3] float32"), _call(3, name="broadcast")):
        disagreement = find_disagreement([_call(3), None, _call(4), other])
        assert disagreement is not None
        assert (disagreement.ranks, disagreement.calls) == ((0, 3), (_call(3), other))
