"""The names of the parts of a step: each stands for itself, and idle time is part of all."""

from scalescope.results.traces import step_parts


def test_every_part_has_a_name_of_its_own_and_none_is_the_step() -> None:
    assert len(set(step_parts.PARTS)) == len(step_parts.PARTS)
    assert step_parts.STEP not in step_parts.PARTS
    assert set(step_parts.IDLE) < set(step_parts.PARTS)
