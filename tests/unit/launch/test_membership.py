"""Whether the environment makes us a rank, or only looks like it."""

import pytest

from scalescope.errors import BadInput
from scalescope.launch.attached import Membership, membership, stray_variables

_TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_a_complete_set_makes_a_rank() -> None:
    assert membership({**_TORCHRUN, "HOME": "/"}) == Membership(1, 4)
    assert stray_variables(_TORCHRUN) == []


def test_nothing_set_is_no_rank() -> None:
    assert membership({"HOME": "/"}) is None
    assert stray_variables({"HOME": "/"}) == []


@pytest.mark.parametrize("missing", _TORCHRUN)
def test_an_incomplete_set_is_left_over(missing: str) -> None:
    kept = {name: value for name, value in _TORCHRUN.items() if name != missing}
    assert membership(kept) is None
    assert stray_variables(kept) == list(kept)


def test_an_empty_value_does_not_count() -> None:
    assert membership({**_TORCHRUN, "MASTER_PORT": ""}) is None
    assert stray_variables({"RANK": ""}) == ["RANK"]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_words_for_numbers_are_bad_input(name: str) -> None:
    with pytest.raises(BadInput, match="are no numbers; unset them"):
        membership({**_TORCHRUN, name: "one"})
