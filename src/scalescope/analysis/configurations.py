"""A configuration: all launches of one trial together, with intervals and reasons for doubt."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.analysis.arrivals import RecordedLaunch, recorded_launch
from scalescope.analysis.epochs import Epoch, over_launches
from scalescope.analysis.events import StepEvents, step_events
from scalescope.analysis.launches import LaunchSummary, summarise
from scalescope.analysis.recording import StepFlops, StepRecording, recordings_of
from scalescope.analysis.rounds import Round, cell_of, comparable, round_effects, rounds_of
from scalescope.analysis.stability import changed_ranks
from scalescope.analysis.statistics import (
    Estimate,
    Sample,
    coefficient_of_variation,
    exponential,
    mean_of_logs,
    slope,
)
from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.analysis.telemetry import over_launches as telemetry_over_launches
from scalescope.experiment.explanations import explained_job, records_arrivals, timed_training_of
from scalescope.experiment.trial import Trial
from scalescope.hardware.published import dense_peak
from scalescope.quantities import percent
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import Result, results_by_trial, undisturbed

SAMPLES, STEPS, TOKENS = "samples", "steps", "tokens"
_UNSTABLE_CV = 0.03
_CLOCKS_MOVED = 0.02
_DRIFT_SPAN_S = 120.0
SHORT_WINDOW_S = 1.0
_CHANGED = 0.2  # of a step, between the timed steps and those after them
_LITTLE_LEFT = math.log(4.0)  # times as fast as the whole step
_SHORT = 0.01  # the last batch of an epoch may be smaller without a remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One trial measured by one or more launches."""

    trial: Trial
    launches: tuple[LaunchSummary, ...]
    device: str
    left_out: int = 0  # launches whose load was another one than that of what they are compared with
    loads: tuple[OtherLoad, ...] = ()  # of all launches, those left out included
    is_comparable: bool = True  # False: no launch had the same load as another of its round
    recorded: tuple[RecordedLaunch, ...] = ()  # the same job in launches of their own, under a profiler
    recording: StepRecording | None = None  # what one of its ranks' steps on a GPU consist of

    @property
    def is_disturbed(self) -> bool:
        """Whether the estimate is made of launches that other load disturbed."""
        return any(launch.is_disturbed for launch in self.launches)

    @property
    def had_other_load(self) -> bool:
        """Whether other processes used the machine during any launch."""
        return any(load.is_present for load in self.loads)

    @property
    def knows_samples(self) -> bool:
        """Whether the samples of every launch are known; those of a command may not be."""
        return all(launch.samples is not None for launch in self.launches)

    @property
    def log_rates(self) -> Sample:
        """Of samples per second; of steps where samples are unknown. What their rounds added is taken out."""
        if not self.knows_samples:
            return self.log_step_rates
        return self._sample([launch.log_rate - launch.round_effect for launch in self.launches])

    @property
    def log_step_rates(self) -> Sample:
        return self._sample([launch.log_step_rate - launch.round_effect for launch in self.launches])

    @property
    def mean_steps_s(self) -> Sample:
        """Of each launch; what its round added is taken out."""
        return self.log_step_rates.map(lambda log_rate: exponential(-log_rate))

    @property
    def rank_means_s(self) -> list[tuple[float, ...]]:
        """Of each rank in each launch; what its round added is taken out."""
        return [
            tuple(mean_s * exponential(launch.round_effect) for mean_s in launch.rank_means_s)
            for launch in self.launches
        ]

    def _sample(self, values: Sequence[float]) -> Sample:
        return Sample(tuple(values), tuple(launch.round for launch in self.launches))

    @property
    def speed(self) -> Estimate:
        """`unit` per second: as compared with others, with an interval that holds how rounds differ."""
        return self._as_it_was(self.log_rates)

    def as_measured(self, logs: Sample) -> list[float]:
        """Logarithms of speeds with what their rounds added: launches of another run had other rounds."""
        return [log + launch.round_effect for log, launch in zip(logs, self.launches, strict=True)]

    def _as_it_was(self, logs: Sample) -> Estimate:
        """The mean of logarithms, with the interval of what was measured."""
        measured = mean_of_logs(self.as_measured(logs))
        mean = exponential(math.fsum(logs) / len(logs))
        if measured.low is None or measured.high is None:
            return Estimate(mean)
        factor = mean / measured.value
        return Estimate(mean, measured.low * factor, measured.high * factor)

    @property
    def unit(self) -> str:
        """What is counted: samples as the workload calls them; of a command samples or tokens, as its model's
        input shows, or steps where it does not."""
        if not self.knows_samples:
            return STEPS
        if self.trial.is_command:
            return self.trial.options(self.trial.workload_card).observed_unit or SAMPLES
        return str(self.trial.workload_card.unit)

    @property
    def samples_per_s(self) -> Estimate | None:
        """None where samples are unknown."""
        return self.speed if self.knows_samples else None

    @property
    def samples_per_step(self) -> float | None:
        """Of all ranks, as they were counted; None is unknown."""
        steps = sum(len(launch.step_times_s) for launch in self.launches)
        counts = [launch.samples for launch in self.launches if launch.samples is not None]
        return sum(counts) / steps if self.knows_samples else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens through all ranks, padding included; None where samples are not text."""
        if self.unit == TOKENS:
            return self.speed.value
        tokens = self.trial.options(self.trial.workload_card).tokens_per_sample()
        return None if tokens is None or not self.knows_samples else float(tokens * self.speed.value)

    @property
    def wrapper(self) -> str | None:
        """What wraps the model of a command; None is unknown."""
        return self.launches[0].wrapper

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return over_launches([launch.epochs for launch in self.launches])

    @property
    def global_batch(self) -> int:
        return self.trial.samples_per_step

    @property
    def step_time_s(self) -> Estimate:
        """Mean step time with its interval; from logs, as the throughput is."""
        rate = self._as_it_was(self.log_step_rates)
        low, high = (None if end is None else 1.0 / end for end in (rate.high, rate.low))
        return Estimate(1.0 / rate.value, low, high)

    @property
    def median_step_s(self) -> float:
        return statistics.median(step for launch in self.launches for step in launch.step_times_s)

    @property
    def events(self) -> StepEvents:
        """Work that is not in every step, and the step without it."""
        return step_events(tuple(launch.series for launch in self.launches))

    @property
    def measured_steps(self) -> int:
        return len(self.launches[0].step_times_s)

    @property
    def window_s(self) -> float:
        """How long a launch measured, in the median."""
        return statistics.median(launch.window_s for launch in self.launches)

    @property
    def matmul_flops_per_s(self) -> float | None:
        rates = [launch.matmul_flops_per_s for launch in self.launches if launch.matmul_flops_per_s]
        return statistics.median(rates) if rates else None

    @property
    def model_flops_per_s(self) -> float | None:
        """Operations of the model itself that one rank does in a second, by a formula or as its recorded
        steps show them; None where neither is known."""
        workload = self.trial.options(self.trial.workload_card)
        flops = workload.flops_per_sample() or self.launches[0].flops_per_sample
        if flops is not None and self.knows_samples:
            return float(flops * self.speed.value / self.trial.world_size)
        return None if self._flops is None else self._flops.model / self.step_time_s.value

    @property
    def _flops(self) -> StepFlops | None:
        """Counted in recorded steps; None where too much was not."""
        flops = None if self.recording is None else self.recording.flops
        return flops if flops is not None and flops.is_whole else None

    @property
    def number_format(self) -> str | None:
        """What most products are computed in; None is unknown."""
        if self._flops is not None:
            return self._flops.number_format
        return None if self.trial.is_command else self.trial.precision

    @property
    def bare_product_flops_per_s(self) -> float | None:
        """What a bare matrix product in the same number format reached on the same device."""
        if self.trial.is_command and self.recording is not None:
            return (self.recording.product_flops_per_s or {}).get(self.number_format or "")
        return self.matmul_flops_per_s

    @property
    def bare_product_share(self) -> float | None:
        """The model's operations per second as a share of those of a bare matrix product."""
        return _ratio(self.model_flops_per_s, self.bare_product_flops_per_s)

    @property
    def peak_flops_per_s(self) -> float | None:
        """What the data sheet says of this rank's GPU, or part of one, in the number format; None where it is
        not known."""
        peak = dense_peak(self.launches[0].gpu, self.number_format) if self.trial.on_gpu else None
        return None if peak is None else peak / (self.trial.split_gpu or 1)

    @property
    def mfu(self) -> float | None:
        """The model's operations per second as a share of the data sheet's."""
        return _ratio(self.model_flops_per_s, self.peak_flops_per_s)

    @property
    def hfu(self) -> float | None:
        """The same of all that the GPU computes: with activations that are computed again."""
        done = None if self._flops is None else self._flops.device / self.step_time_s.value
        return _ratio(done, self.peak_flops_per_s)

    @property
    def telemetry(self) -> TelemetrySummary:
        """What GPUs and processors did during the launches."""
        return telemetry_over_launches([launch.telemetry for launch in self.launches])

    @property
    def peak_memory_bytes(self) -> int | None:
        peaks = [launch.peak_memory_bytes for launch in self.launches if launch.peak_memory_bytes is not None]
        return max(peaks) if peaks else None

    def instabilities(self) -> list[str]:
        """Why this result is uncertain; empty where there is no reason for doubt."""
        reasons = []
        spread = coefficient_of_variation([exponential(launch.log_rate) for launch in self.launches])
        if spread is not None and spread > _UNSTABLE_CV:
            limit = percent(_UNSTABLE_CV)
            reasons.append(f"launches differ by {spread * 100:.1f} % (CV; above {limit} is noisy)")
        reasons.extend(self._instabilities_of_launches())
        if self._drifts():
            reasons.append("speed drifts over the launches")
        return reasons

    def _instabilities_of_launches(self) -> list[str]:
        total = len(self.launches)
        drifting = [launch.drifting_ranks for launch in self.launches]
        reasons = self._ranks_of_launches(drifting, "drifted by more than 2 % over the window")
        hot = sum(launch.telemetry.throttled for launch in self.launches)
        if hot:
            reasons.append(f"the GPU was throttled by heat or its power supply in {hot} of {total} launches")
        changed = changed_ranks([launch.product_changes for launch in self.launches])
        return reasons + self._ranks_of_launches(
            changed, "ran a bare matrix product at another speed after the window"
        )

    def _ranks_of_launches(self, affected: Sequence[tuple[int, ...]], what: str) -> list[str]:
        """`3 of 64 ranks drifted … in 2 of 5 launches`: the most ranks of any launch; nothing of none."""
        launches = sum(bool(ranks) for ranks in affected)
        if not launches:
            return []
        most = max(map(len, affected))
        of_all = f"{most} of {self.trial.world_size} ranks" if self.trial.world_size > 1 else "the rank"
        return [f"{of_all} {what}, in {launches} of {len(self.launches)} launches"]

    def remarks(self) -> list[str]:
        """What a reader should know that does not put the result in doubt."""
        return [
            *self._soaking(),
            *self._moving_clocks(),
            *self._short_window(),
            *self._short_batches(),
            *self._outliers(),
            *self._left_behind(),
        ]

    def _soaking(self) -> list[str]:
        missed = sum(launch.soak_reached is False for launch in self.launches)
        if not missed:
            return []
        total = len(self.launches)
        return [
            f"soaking ended after {self.trial.soak_s:g} s, not yet steady, in {missed} of {total} launches"
        ]

    def _moving_clocks(self) -> list[str]:
        changes = [launch.clock_change for launch in self.launches if launch.clock_change is not None]
        moved = [change for change in changes if abs(change) > _CLOCKS_MOVED]
        if not moved:
            return []
        most = max(moved, key=abs)
        return [
            f"clocks moved by {most:+.1%} during the window in {len(moved)} of {len(changes)} launches; "
            "--soak 60s waits until they are steady"
        ]

    def _short_window(self) -> list[str]:
        """Short windows catch few of a machine's slow and fast moments; launches differ more then."""
        if self.window_s >= SHORT_WINDOW_S:
            return []
        return [f"a launch measured for only {self.window_s:.2g} s ({self.measured_steps} steps)"]

    def _short_batches(self) -> list[str]:
        """Whether steps worked on fewer samples than asked for; a data set may have no more."""
        mean, asked = self.samples_per_step, self.trial.samples_per_step
        if mean is None or self.trial.is_command or mean > asked * (1.0 - _SHORT):
            return []
        return [f"steps had {mean:.0f} samples on average instead of {asked}: the data's batches are smaller"]

    @property
    def again(self) -> float | None:
        """The mean step after what explains it over that before, the median of launches; None is unknown."""
        ratios = [
            launch.again_step_s / launch.mean_step_s
            for launch in self.launches
            if launch.again_step_s is not None
        ]
        return statistics.median(ratios) if ratios else None

    def _left_behind(self) -> list[str]:
        """Whether what was measured after the timed steps changed the job; other load may have, too."""
        if self.again is None or self.is_disturbed or abs(self.again - 1.0) < _CHANGED:
            return []
        change = percent(abs(self.again - 1.0))
        return [f"steps took {change} {'longer' if self.again > 1.0 else 'less'} once they were explained"]

    def _outliers(self) -> list[str]:
        outliers = [
            (rank, step)
            for number, launch in enumerate(self.launches)
            for rank, step in launch.outliers
            if not self.events.explain(number, step)
        ]
        if not outliers:
            return []
        steps = sum(len(launch.step_times_s) for launch in self.launches)
        names = ["shared by ranks" if rank is None else f"rank {rank}" for rank, _ in outliers]
        share = ", ".join(f"{name}: {count}" for name, count in sorted(Counter(names).items()))
        return [f"{len(outliers)} of {steps} steps are far from the median ({share}); they are included"]

    def _drifts(self) -> bool:
        times = [launch.started_s for launch in self.launches]
        if max(times) - min(times) < _DRIFT_SPAN_S:
            return False
        trend = slope(times, [launch.log_step_rate for launch in self.launches])
        return trend is not None and trend.low is not None and trend.low * (trend.high or 0.0) > 0.0


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def comparable_log_rates(left: Configuration, right: Configuration) -> tuple[Sample, Sample]:
    """The logarithms of the speeds of two configurations: of samples, or of steps where one of them does not
    know its samples, or counts something else."""
    if left.unit == right.unit:
        return left.log_rates, right.log_rates
    return left.log_step_rates, right.log_step_rates


def configurations(results: Iterable[Result]) -> tuple[Configuration, ...]:
    """Group the results that are ok by trial, in the order in which trials first appear."""
    finished = [result for result in results if result.status == "ok"]
    explained = recordings_of(finished)
    timed = [result for result in finished if result.trial.is_training]
    recordings = [result for result in finished if records_arrivals(result.trial)]
    placed = dict(zip(map(id, [*timed, *recordings]), rounds_of([*timed, *recordings]), strict=True))
    summaries = {id(result): summarise(result, placed[id(result)]) for result in timed}
    counted = _counted(timed, summaries)
    telling = _telling(timed, summaries)
    effects = round_effects(
        {
            (launch.round, result.trial_id): launch.log_step_rate
            for result in timed
            if id(result) in counted and result.trial_id in telling
            if (launch := summaries[id(result)]).round is not None
        }
    )
    in_round = Counter(launch.round for launch in summaries.values() if launch.round is not None)
    shared = {round_ for round_, count in in_round.items() if count > 1}
    recorded: dict[str, list[RecordedLaunch]] = {}
    for result in undisturbed(recordings):
        round_ = placed[id(result)]
        seen = recorded_launch(result, round_, effects.get(round_, 0.0))
        if seen is not None:
            recorded.setdefault(timed_training_of(result.trial).trial_id, []).append(seen)
    return tuple(
        dataclasses.replace(
            _configuration(members, counted, summaries, effects, shared, recorded.get(trial_id, ())),
            recording=explained.get(trial_id),
        )
        for trial_id, members in results_by_trial(timed).items()
    )


def _telling(timed: Sequence[Result], summaries: Mapping[int, LaunchSummary]) -> set[str]:
    """The trials whose speeds tell what rounds add: all but ablations that leave little of the step, whose
    noise is not that of the machine."""
    rates: dict[str, list[float]] = {}
    for result in timed:
        rates.setdefault(result.trial_id, []).append(summaries[id(result)].log_step_rate)
    levels = {trial_id: statistics.fmean(known) for trial_id, known in rates.items()}
    jobs = {result.trial_id: explained_job(result.trial) or result.trial for result in timed}
    return {
        trial_id
        for trial_id, job in jobs.items()
        if levels[trial_id] - levels.get(job.trial_id, math.inf) <= _LITTLE_LEFT
    }


def _counted(timed: Sequence[Result], summaries: Mapping[int, LaunchSummary]) -> set[int]:
    """The launches that are compared within their rounds."""
    in_rounds = [result for result in timed if summaries[id(result)].round is not None]
    cells = [cell_of(result, summaries[id(result)].round) for result in in_rounds]
    return {id(result) for result, counts in zip(in_rounds, comparable(cells), strict=True) if counts}


def _configuration(
    members: list[Result],
    counted: Collection[int],
    summaries: Mapping[int, LaunchSummary],
    effects: Mapping[Round, float],
    shared: Collection[Round],
    recorded: Iterable[RecordedLaunch],
) -> Configuration:
    """One configuration by its launches that count; by those that nothing disturbed where it stands alone.

    `shared` are the rounds of several configurations.
    """
    compared = [member for member in members if id(member) in counted]
    launches = [summaries[id(member)] for member in compared or undisturbed(members)]
    return Configuration(
        trial=members[0].trial,
        launches=tuple(
            dataclasses.replace(launch, round_effect=effects.get(launch.round, 0.0)) for launch in launches
        ),
        is_comparable=bool(compared) or not any(summaries[id(member)].round in shared for member in members),
        device=members[0].ranks[0].device,
        left_out=len(members) - len(launches),
        loads=tuple(member.other_load for member in members),
        recorded=tuple(recorded),
    )
