"""The setup of a trial: what its settings say about ranks and exchanges."""

import dataclasses

from scalescope.analysis.prediction.setup import ON_ONE_NODE, RankLayout, Setup
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.catalog.strategies.pipeline import Pipeline
from scalescope.experiment.trial import Trial

_WRAPPERS = {"ddp": "ddp", "fsdp2": "fsdp", "fsdp1": "fsdp"}  # of commands, and the strategies that they are


def setup_of(trial: Trial, layout: RankLayout = ON_ONE_NODE) -> Setup:
    """The trial as a row to predict."""
    setup = Setup(
        world_size=trial.world_size,
        strategy=_strategy_of(trial),
        backend=trial.backend,
        layout=layout,
        accumulation_steps=trial.accumulation_steps,
    )
    if trial.is_command:  # its settings are its own; PyTorch's defaults are most likely
        return setup
    card = trial.strategy_card
    if issubclass(card, Ddp):
        ddp = trial.options(Ddp)
        return dataclasses.replace(
            setup,
            bucket_cap_mb=ddp.bucket_cap_mb,
            comm_hook=ddp.comm_hook,
            broadcast_buffers=ddp.broadcast_buffers,
        )
    if issubclass(card, Fsdp):
        fsdp = trial.options(Fsdp)
        return dataclasses.replace(
            setup,
            reshard_after_forward=fsdp.reshard_after_forward,
            fsdp_param_dtype=fsdp.fsdp_param_dtype,
        )
    if issubclass(card, Pipeline):
        parts = card.parts_of_a_step(trial.rank_batch_size, trial.world_size, trial.settings)
        schedule = trial.options(Pipeline).schedule
        return dataclasses.replace(setup, micro_batches=parts or 1, schedule=schedule)
    return setup


def _strategy_of(trial: Trial) -> str:
    if not trial.is_command:
        return trial.strategy
    wrapper = trial.options(trial.workload_card).observed_wrapper
    return _WRAPPERS.get(wrapper or "", "ddp")
