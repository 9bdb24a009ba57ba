"""Chooses how a waterfall is made: by ablation where communication was taken away, else from traces."""

from collections.abc import Mapping

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.by_ablation import waterfall_by_ablation
from scalescope.analysis.scaling.by_command import waterfall_of_command
from scalescope.analysis.scaling.by_trace import waterfall_by_trace, waterfall_of_pipeline
from scalescope.analysis.scaling.waterfall import COMMUNICATION, Waterfall
from scalescope.experiment.ablations import single_rank_baseline


def waterfall_of(full: Configuration, by_trial: Mapping[str, Configuration]) -> Waterfall | None:
    """The waterfall of a configuration, from all by trial; None without plain training on one rank."""
    trial = full.trial
    plain = by_trial.get(single_rank_baseline(trial).trial_id)
    if plain is None or trial.world_size == 1:
        return None
    if trial.replicas < trial.world_size:  # the ranks share one batch
        parts = trial.strategy_card.parts_of_a_step(trial.rank_batch_size, trial.world_size, trial.settings)
        return None if parts is None else waterfall_of_pipeline(full, plain, parts)
    make = waterfall_of_command if trial.is_command else waterfall_by_ablation
    by_ablation = make(full, plain, by_trial)
    communication = by_ablation.term(COMMUNICATION)
    if communication is not None and communication.time_s is not None:
        return by_ablation
    return waterfall_by_trace(full, plain, by_trial) or by_ablation
