"""Trials and launches of training commands, made up: every number in them is known."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from scalescope.catalog import cards
from scalescope.experiment.expand import defaults_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.unit.analysis.made_results import make_result

COMMAND = "torchrun --nproc-per-node={world_size} train.py --lr 0.1"
_SELECTION = {"workloads": "command", "data": "own", "strategies": "script"}


def make_command(*, ranks: int = 1, **settings: Any) -> Trial:
    """A trial of a command, as its launches are stored and read: with what they showed of it."""
    values: dict[str, Any] = {"benchmark": "train"}
    for owner in cards.cards_of_trial("train", _SELECTION):
        values |= defaults_of(owner, _SELECTION, "cpu")
    values |= {"workload": "command", "data": "own", "strategy": "script", "backend": "gloo"}
    values |= {"device": "cpu", "threads_per_rank": 1, "command": COMMAND, "world_size": ranks}
    observed = {"observed_batch_size": 32, "observed_unit": "samples", "observed_wrapper": "ddp"}
    if settings.get("observed_global_batch_size") or settings.get("global_batch_size"):
        del observed["observed_batch_size"]
    return Trial(settings=dict(sorted({**values, **observed, **settings}.items())))


def command_launch(
    trial: Trial,
    step_s: float,
    *,
    launch: int = 0,
    samples: int | None = 32,
    wrapper: str = "ddp",
    tables: dict[str, Any] | None = None,
    **counters: Any,
) -> Result:
    """One launch of ten steps; `samples` are those of a rank and step, None where it does not show them."""
    result = make_result(trial, [[step_s] * 10] * trial.world_size, launch=launch)
    observed = {
        "observed/wrapper": wrapper,
        "observed/optimizers": "AdamW",
        "observed/step_from": "optimizer steps",
        "measured_steps": 10,
        **({} if samples is None else {"measured_samples": 10 * samples}),
        **counters,
    }
    ranks = [
        dataclasses.replace(record, counters=observed, tables=tables or {}, samples=dict(record.samples))
        for record in result.ranks
    ]
    return dataclasses.replace(result, ranks=ranks)


def command_launches(trial: Trial, steps_s: Sequence[float], **rest: Any) -> list[Result]:
    """A launch for each step time."""
    return [command_launch(trial, step_s, launch=number, **rest) for number, step_s in enumerate(steps_s)]
