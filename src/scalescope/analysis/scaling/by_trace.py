"""The waterfall from recorded steps, for jobs whose communication cannot be taken away.

A recorded step is compute, communication that nothing hides, copies and idle time, and all of it is held
against recorded steps of one rank. The profiler's own cost stays in what is not separated.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scalescope.analysis.arrivals import RecordedLaunch
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.scaling.waterfall import (
    BUBBLE,
    COMMUNICATION,
    COPIES,
    EXCHANGE,
    IDLE_HOST,
    IDLE_INPUT,
    IDLE_QUEUED,
    IMBALANCE,
    MICROBATCHES,
    SLOWED_COMPUTE,
    SMALLER_BATCH,
    WAITING,
    WRAPPER,
    Part,
    Waterfall,
    built_waterfall,
    difference_between,
    ideal_step_s,
    smaller_batch_cost,
    typical_step_s,
)
from scalescope.analysis.statistics import Sample, mean_with_interval, moved, negative, sum_of_means
from scalescope.experiment.explanations import at_per_rank_batch, single_rank_baseline, with_preloaded_input

_IDLE = {"idle_host_s": IDLE_HOST, "idle_data_s": IDLE_INPUT, "idle_queued_s": IDLE_QUEUED}


def waterfall_by_trace(
    full: Configuration, plain: Configuration, by_trial: Mapping[str, Configuration]
) -> Waterfall | None:
    """The waterfall of recorded ranks; None where they, or one rank alone, were not recorded."""
    share = at_per_rank_batch(full.trial)
    wrapped = None  # a command on one rank is plain training, whether it is wrapped or not
    if not full.trial.is_command:
        wrapped = by_trial.get(with_preloaded_input(share.on_one_rank()).trial_id)
    alone = by_trial.get(with_preloaded_input(single_rank_baseline(share)).trial_id)
    fed = by_trial.get(with_preloaded_input(full.trial).trial_id)
    reference = wrapped if wrapped is not None and wrapped.recorded else alone
    if fed is None or reference is None or not fed.recorded or not reference.recorded:
        return None
    parts = _before_the_second_rank(full, plain, alone, wrapped if reference is wrapped else None)
    parts += _between_ranks(fed.recorded, reference.recorded)
    return built_waterfall(
        full,
        plain,
        parts,
        simple_comm_s=difference_between(full.mean_steps_s, (alone or plain).mean_steps_s),
        source="trace",
    )


def _before_the_second_rank(
    full: Configuration, plain: Configuration, alone: Configuration | None, wrapped: Configuration | None
) -> list[Part]:
    """What the smaller batch and the wrapper cost, which timed launches tell."""
    parts = []
    if full.trial.mode == "strong" and alone is not None:
        parts.append(Part(name=SMALLER_BATCH, time_s=smaller_batch_cost(full, plain, alone)))
    if wrapped is not None and alone is not None:
        cost = difference_between(wrapped.mean_steps_s, alone.mean_steps_s)
        parts.append(Part(name=WRAPPER, time_s=cost))
    return parts


def _between_ranks(many: Sequence[RecordedLaunch], alone: Sequence[RecordedLaunch]) -> list[Part]:
    """What recorded steps of N ranks have more of than those of one."""

    def more(name: str, part: Callable[[RecordedLaunch], float]) -> Part:
        time_s = sum_of_means(_sample(many, part), negative(_sample(alone, part)))
        return Part(name=name, time_s=time_s)

    waits = [launch.waiting_s for launch in many if launch.waiting_s is not None]
    if len(waits) == len(many):
        transfers = [launch.exposed_s - wait for launch, wait in zip(many, waits, strict=True)]
        parts = [
            Part(name=WAITING, time_s=mean_with_interval(waits)),
            Part(name=COMMUNICATION, time_s=mean_with_interval(transfers)),
        ]
    else:
        exposed = mean_with_interval([launch.exposed_s for launch in many])
        parts = [Part(name=COMMUNICATION, time_s=exposed, includes=(WAITING,))]
    parts.append(more(SLOWED_COMPUTE, lambda launch: launch.compute_s))
    parts.append(more(COPIES, lambda launch: launch.copy_s))
    parts += [more(name, partial(_idle_s, cause)) for cause, name in _IDLE.items()]
    return [part for part in parts if part.time_s is None or part.time_s.value != 0.0]


def _sample(launches: Sequence[RecordedLaunch], part: Callable[[RecordedLaunch], float]) -> Sample:
    return Sample(tuple(map(part, launches)), tuple(launch.round for launch in launches))


def _idle_s(cause: str, launch: RecordedLaunch) -> float:
    return launch.idle_s[cause]


def waterfall_of_pipeline(full: Configuration, plain: Configuration, parts_per_step: int) -> Waterfall | None:
    """The waterfall of a pipeline's stages; None where they, or one rank alone, were not recorded.

    The slowest stage sets the pace. N stages of m microbatches take (m + N − 1) / m times as long as it
    computes; what a step takes beyond that is exchange between stages.
    """
    if not full.recorded or not plain.recorded:
        return None
    ranks = full.trial.world_size
    mean = _sample(full.recorded, lambda launch: launch.compute_s)
    most = _sample(full.recorded, lambda launch: max(launch.rank_compute_s))
    alone = _sample(plain.recorded, lambda launch: launch.compute_s / ranks)
    bubble_share = (ranks - 1) / parts_per_step
    paced = most.map(lambda slowest: (1.0 + bubble_share) * slowest)
    rest = sum_of_means(
        full.mean_steps_s,
        negative(paced),
        negative(plain.mean_steps_s.map(lambda step_s: step_s / ranks)),
        alone,
    )
    parts = [
        Part(name=MICROBATCHES, time_s=sum_of_means(mean, negative(alone))),
        Part(
            name=IMBALANCE,
            time_s=mean_with_interval([slow - usual for slow, usual in zip(most, mean, strict=True)]),
        ),
        Part(name=BUBBLE, time_s=mean_with_interval([bubble_share * slowest for slowest in most])),
    ]
    explained_s = sum(part.time_s.value for part in parts if part.time_s is not None)
    exchange_s = typical_step_s(full.mean_steps_s) - ideal_step_s(full, plain) - explained_s
    parts.append(Part(name=EXCHANGE, time_s=moved(rest, exchange_s)))
    simple = difference_between(full.mean_steps_s, plain.mean_steps_s)
    return built_waterfall(full, plain, parts, simple_comm_s=simple, source="trace")
