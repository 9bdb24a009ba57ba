"""Other levers, tried after the window in blocks that alternate with the unchanged step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from scalescope.experiment.explanations import breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import BESIDE, PHASE_TIME, AttachPhase
from scalescope.worker.engine import explaining
from scalescope.worker.engine.explaining import Explanations, is_try, uses_something_up
from scalescope.worker.engine.steps import driven
from scalescope.worker.training.measurements import Measurements
from tests.builders.loops import engine_of
from tests.builders.results import make_trial


class Switching:
    """A loop that notes which levers each of its steps had."""

    def __init__(self, *, fails: str = "", at: int = 0) -> None:
        self.made: list[str] = []
        self._now = "none"
        self._fails, self._at = fails, at

    def alive(self, steps: int) -> None:
        """Nobody looks."""

    def why_not_here(self, trial: Trial) -> str | None:
        return None if is_try(trial) else "only tries"

    def ablated(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def switched(self, trial: Trial) -> Iterator[None]:
        self._now = trial.settings["compile"]
        try:
            yield
        finally:
            self._now = "none"

    def make_step(self) -> None:
        self.made.append(self._now)
        if self._now == self._fails and self.made.count(self._now) == self._at:
            raise RuntimeError("no such kernel")


class Alone:
    """One rank."""

    def agree(self, name: str, text: str) -> str:
        return text

    def meet(self, name: str) -> None:
        """Nobody else."""

    def arrive(self, name: str) -> None:
        """Nobody waits."""


def explained(loop: Switching, *trials: Trial) -> tuple[Explanations, dict[int, Measurements]]:
    stored: dict[int, Measurements] = {}
    explanations = Explanations(
        engine=engine_of(make_trial(), loop),
        loop=loop,
        ranks=Alone(),
        phases=[AttachPhase(settings=dict(trial.settings), rank_files=["unused"]) for trial in trials],
        store=lambda number, measured, steps: stored.update({number: measured}),
        has_loader=False,
        step_s=0.1,
        plain_step_s=0.1,
        longest_warmup_s=0.1,
    )
    driven(explanations.measured(), loop.make_step)
    return explanations, stored


def test_a_try_alternates_with_the_unchanged_step() -> None:
    loop = Switching()
    tried = make_trial(compile="default")
    _, stored = explained(loop, tried)
    settling, block = explaining._SETTLING_TRY, explaining._LEAST_BLOCK_STEPS
    blocks = (["default"] * block + ["none"] * block) * explaining._BLOCKS
    assert loop.made[: settling + len(blocks)] == ["default"] * settling + blocks
    counters: dict[str, Any] = stored[0].counters
    assert len(stored[0].samples["step_time_s"]) == block * explaining._BLOCKS
    assert counters[BESIDE] > 0.0 and counters[PHASE_TIME] > 0.0
    assert "loss" not in stored[0].samples


@pytest.mark.parametrize("at", [1, 8])
def test_a_try_that_fails_costs_only_itself(at: int) -> None:
    loop = Switching(fails="default", at=at)
    failing, other = make_trial(compile="default"), make_trial(compile="reduce-overhead")
    explanations, stored = explained(loop, failing, other)
    assert list(stored) == [1]
    assert "no such kernel" in explanations.reasons[failing.trial_id]


def test_only_trials_that_remove_and_record_nothing_are_tries() -> None:
    assert is_try(make_trial(compile="default"))
    assert not is_try(make_trial(with_preloaded_input=True))
    assert not is_try(breakdown_of(make_trial()))


@pytest.mark.parametrize(
    ("tried", "beside", "is_used_up"),
    [
        ((1.0, 1.5, 2.0), (2.0, 2.0, 2.0), True),  # prefetched batches, for instance
        ((1.0, 1.5, 2.0), (2.0, 3.0, 4.0), False),  # the machine is slower for both
        ((1.0, 2.0, 1.5), (2.0, 2.0, 2.0), False),  # a hiccup
        ((1.0, 1.05, 1.1), (2.0, 2.0, 2.0), False),
    ],
)
def test_a_try_counts_unless_it_becomes_slower_from_block_to_block(
    tried: tuple[float, ...], beside: tuple[float, ...], is_used_up: bool
) -> None:
    blocks, others = ([[time_s] * 3 for time_s in times] for times in (tried, beside))
    assert uses_something_up(blocks, others) == is_used_up
