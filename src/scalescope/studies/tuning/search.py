"""The search of `tune` over real launches: which to make next, and what those that were made say."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.rounds import cell_of
from scalescope.analysis.tuning.launches import (
    BASELINE,
    Combination,
    TunedLaunch,
    TunedLaunches,
    usual_deviation,
)
from scalescope.analysis.tuning.losses import LossCheck, loss_of
from scalescope.analysis.tuning.search import EXPLORE, NextLaunch, TuningSearch, conclude
from scalescope.analysis.tuning.step_model import StepModel, StepParts
from scalescope.analysis.verdicts import LEAST_EFFECT
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import Phase, breakdown_of, records_breakdown, without_communication
from scalescope.experiment.machine import Machine
from scalescope.experiment.observed import without_observations
from scalescope.experiment.trial import Trial
from scalescope.report.tuning.sections import CURRENT
from scalescope.results.ranks import BESIDE, PHASE_TIME, PHASES_TIME
from scalescope.results.result import Result, Stage
from scalescope.results.run import Run
from scalescope.studies.plan import Launch
from scalescope.studies.study import Interim, InterimRow
from scalescope.studies.tuning.facts import absent_needs, already_in_script, parts_of_trial
from scalescope.studies.tuning.levers import Combinations, Levers, other_jobs
from scalescope.studies.tuning.loss_launches import LossLaunches, measures_speed

_FACTS = Stage("facts")
_SCALING = Stage("scaling")
_SCALING_LAUNCHES = 3
_PURPOSES = {
    "baseline": "measuring",
    "explore": "trying",
    "confirm": "confirming",
}
_BASELINE_TRIES = 2
_SHARE_FOR_FACTS = 0.15  # of the budget, for a launch that only orders the levers
_MOST_FOR_LOSSES = 0.5  # of the budget: more is not kept back for recording losses


class Search:
    """Reads the results so far, and says what to launch next."""

    def __init__(
        self,
        experiment: Experiment,
        machine: Machine,
        levers: Levers,
        *,
        threshold: float,
        combine: bool,
        losses: LossLaunches | None = None,
    ) -> None:
        self._experiment = experiment
        self.levers = levers
        self.combinations = Combinations(experiment, machine, levers)
        self.threshold = threshold
        self._combine = combine
        self.losses = losses
        self._parts: dict[tuple[str, int], StepParts | None] = {}

    def next_launches(self, run: Run, remaining_s: float | None) -> tuple[Launch, ...]:
        """The next launch; none when the search is over."""
        if self._baseline_is_lost(run):
            return ()
        jobs = self._jobs_to_launch(run)
        kept_s = len(jobs) * self._usual_s(run)
        reserved_s = 0.0 if remaining_s is None else kept_s + self._kept_for_losses_s(run)
        left_s = None if remaining_s is None else remaining_s - reserved_s
        step = self._next_step(run, left_s, reserved_s) if self.combinations.options else None
        facts = None if step is None or step.stage != EXPLORE else self._facts_launch(run, left_s)
        if facts is not None:
            return (facts,)
        if step is not None:
            return (self._launch(run, step),)
        if not self.measured(run).count(BASELINE):
            baseline = self.levers.baseline
            return (Launch(baseline, self._number(run, baseline), Stage("baseline"), at_most_s=remaining_s),)
        losses = self._loss_launch(run, None if remaining_s is None else remaining_s - kept_s)
        return (losses,) if losses is not None else tuple(self._scaling_launches(run, jobs, remaining_s))

    def _next_step(self, run: Run, left_s: float | None, reserved_s: float) -> NextLaunch | None:
        """Within the time that is not reserved for what follows on the search."""
        search = self.search(run)
        if search.budget_s is not None:
            search = dataclasses.replace(search, budget_s=search.budget_s - reserved_s)
        return search.next_step(self.measured(run), left_s)

    def expected_order(self) -> list[str]:
        """The levers by what they promise before anything is known of the job, the most first."""
        model = StepModel(parts_of=lambda levers: None, effects=self.combinations.effects())
        gains = {text: model.gain(frozenset({text})) for text in self.combinations.candidates}
        return sorted(gains, key=lambda text: -gains[text])

    def _launch(self, run: Run, step: NextLaunch) -> Launch:
        trial = self.combinations.trial_with(step.levers)
        base = self.combinations.trial_with(step.base)
        assert trial is not None and base is not None
        stage = dataclasses.replace(step.stage, base=base.trial_id)
        within = map(self.combinations.trial_with, step.within)
        return Launch(
            trial,
            self._number(run, trial),
            stage,
            at_most_s=step.at_most_s,
            label=f"{_PURPOSES[step.stage.kind]} {_name_of(step.levers)}",
            phases=(
                *self._recorded(run, step),
                *(Phase(trial=tried) for tried in within if tried is not None),
            ),
        )

    def _recorded(self, run: Run, step: NextLaunch) -> Iterable[Phase]:
        """Recorded steps of the first launch, which tell what a step on a GPU consists of."""
        baseline = self.levers.baseline
        first = step.stage.kind == "baseline" and not self._of_baseline(run)
        if first and self._combine and baseline.on_gpu and baseline.world_size == 1:
            yield Phase(trial=breakdown_of(baseline))

    @staticmethod
    def _number(run: Run, trial: Trial) -> int:
        """The number of a trial's next launch: of one that a signal ended, or a new one."""
        made = [result for result in run.results if result.trial_id == trial.trial_id]
        interrupted = [result.launch for result in made if result.stopped_by == "signal"]
        return min(interrupted, default=max((result.launch + 1 for result in made), default=0))

    def _baseline_is_lost(self, run: Run) -> bool:
        """Whether the baseline fails: one failure by chance is none."""
        bad = [r.status for r in self._of_baseline(run) if r.status not in ("ok", "interrupted")]
        worked = any(r.status == "ok" for r in self._of_baseline(run))
        return not worked and (len(bad) >= _BASELINE_TRIES or bool({"oom", "invalid"} & set(bad)))

    def _of_baseline(self, run: Run) -> list[Result]:
        baseline = self.levers.baseline
        return [r for r in run.results if r.trial_id == baseline.trial_id and measures_speed(r)]

    def _usual_s(self, run: Run) -> float:
        durations = [result.duration_s for result in self._of_baseline(run) if result.status == "ok"]
        return durations[-1] if durations else 0.0

    # Facts

    def _facts_launch(self, run: Run, left_s: float | None) -> Launch | None:
        """One launch without communication, where that orders the levers and takes little of the budget."""
        baseline = self.levers.baseline
        silent = without_communication(_as_observed(baseline, run))
        usual_s = self._usual_s(run)
        if silent is None or not usual_s:
            return None
        made = [result for result in run.results if result.trial_id == silent.trial_id]
        if any(result.stopped_by != "signal" for result in made):
            return None
        effects = self.combinations.effects()
        concerned = any("communication" in effect.factors for effect in effects.values())
        if not concerned or (left_s is not None and usual_s > _SHARE_FOR_FACTS * left_s):
            return None
        return Launch(
            without_observations(silent),
            self._number(run, silent),
            _FACTS,
            at_most_s=left_s,
            label="measuring without communication",
        )

    def _parts_of(self, run: Run, levers: Combination) -> StepParts | None:
        trial = self.combinations.trial_with(levers)
        if trial is None:
            return None
        key = trial.trial_id, len(run.results)
        if key not in self._parts:
            told = (r for r in run.results if measures_speed(r) or records_breakdown(r.trial))
            results = [result for result in told if not is_try(result)]
            self._parts[key] = parts_of_trial(results, trial, self.levers.baseline)
        return self._parts[key]

    def _launched(self, run: Run) -> set[Combination]:
        """The sets that had launches of their own, which show the parts of a step."""
        trials = (r.trial for r in run.results if r.status == "ok" and measures_speed(r) and not is_try(r))
        return {levers for levers in map(self.combinations.of_trial, trials) if levers is not None}

    def without_use(self, run: Run) -> dict[str, str]:
        """Levers that need what is not there, or do what the script does already, with the reason."""
        found = self.combinations.without_use(absent_needs(run.results, self.levers.baseline))
        return {**found, **already_in_script(run.results, self.levers.baseline, self.combinations.candidates)}

    def search(self, run: Run) -> TuningSearch:
        absent = absent_needs(run.results, self.levers.baseline)
        return TuningSearch(
            options=[
                option for option in self.combinations.options if option.name not in self.without_use(run)
            ],
            model=StepModel(
                parts_of=lambda levers: self._parts_of(run, levers),
                effects=self.combinations.effects(),
                launched=self._launched(run),
            ),
            can_run=lambda levers: (
                self.combinations.can_run(levers) and not self.combinations.lacks(levers, absent)
            ),
            program=self.combinations.program,
            budget_s=self._experiment.measuring.budget,
            threshold=self.threshold,
            most_launches=self._experiment.measuring.repeats,
            combine=self._combine,
        )

    # Results

    def measured(self, run: Run) -> TunedLaunches:
        """The launches of combinations, in their order."""
        results = [result for result in run.results if measures_speed(result)]
        by_trial = measured_by_trial(results)
        baseline = by_trial.get(self.levers.baseline.trial_id)
        launches = []
        tried_s = phase_times(run.results)
        for result in results:
            levers = self.combinations.of_trial(result.trial)
            if levers is None or result.stopped_by == "signal":
                continue
            if is_try(result) and start_of(result, results) is None:
                continue  # of a launch that was repeated since
            measured = by_trial.get(result.trial_id) if result.status == "ok" else None
            differs = (
                measured is not None
                and baseline is not None
                and bool(levers)
                and loss_of(baseline, measured).differs
            )
            launches.append(
                TunedLaunch(
                    levers=levers,
                    log_rate=None if measured is None else _log_rate(result, results),
                    duration_s=result.duration_s + tried_s.get(id(result), 0.0),
                    is_within=is_try(result),
                    stage=result.stage or Stage("explore"),
                    base=self._base_of(result, run),
                    refused=differs,
                    cut_short=result.stopped_by == "budget",
                    cell=cell_of(result, None),
                )
            )
        disturbed = sum(result.is_disturbed for result in results)
        loaded = 2 * disturbed > len(launches)
        return TunedLaunches(launches, usual_deviation(self.levers.baseline.device, loaded=loaded))

    def _base_of(self, result: Result, run: Run) -> Combination:
        """What a launch was compared with."""
        base = None if result.stage is None else result.stage.base
        trial = next((other.trial for other in run.results if other.trial_id == base), None)
        return BASELINE if trial is None else self.combinations.of_trial(trial) or BASELINE

    # Losses

    def _kept_for_losses_s(self, run: Run) -> float:
        """Time for recording losses, also of a winner that is found later; none where it takes too much."""
        if self.losses is None:
            return 0.0
        baseline = self.levers.baseline
        launch_s = self.losses.cost_s(run.results, baseline)
        first = not any(result.status == "ok" and not measures_speed(result) for result in run.results)
        kept_s = launch_s * (2 if first else 1)
        budget_s = self._experiment.measuring.budget
        return 0.0 if budget_s is not None and kept_s > _MOST_FOR_LOSSES * budget_s else kept_s

    def _loss_launch(self, run: Run, left_s: float | None) -> Launch | None:
        """The next launch that records losses, where something is recommended and there is time for it."""
        winner = self._recommended(run) if self.losses is not None else None
        if self.losses is None or winner is None:
            return None
        both = self.levers.baseline, winner
        launches = self.losses.to_make(run.results, *both)
        if not launches or (left_s is not None and self.losses.time_for_s(run.results, *both) > left_s):
            return None
        return dataclasses.replace(launches[0], at_most_s=left_s)

    def _recommended(self, run: Run) -> Trial | None:
        """What the speeds so far recommend; None where that is nothing."""
        conclusion = conclude(self.search(run), self.measured(run))
        return self.combinations.trial_with(conclusion.winner) if conclusion.recommended else None

    def loss_check(self, run: Run, winner: Combination) -> LossCheck | None:
        """What the recorded losses say of a winner; None where they were not asked for, or are missing."""
        trial = self.combinations.trial_with(winner)
        if self.losses is None or trial is None:
            return None
        return self.losses.check(run.results, self.levers.baseline, trial)

    # Other jobs

    def _jobs_to_launch(self, run: Run) -> list[Trial]:
        """What is only there to compare other jobs: the next round of it that is not complete."""
        trials = self.other_trials(run)
        made = Counter(
            result.trial_id
            for result in run.results
            if result.stage is not None and result.stage.kind == "scaling" and result.stopped_by != "signal"
        )
        rounds = min(self._experiment.measuring.repeats, _SCALING_LAUNCHES)
        fewest = min((made[trial.trial_id] for trial in trials), default=rounds)
        return [trial for trial in trials if made[trial.trial_id] == fewest] if fewest < rounds else []

    def other_trials(self, run: Run) -> list[Trial]:
        """The jobs that train something else, the baseline, and each on one rank where there are more."""
        failed = {result.trial_id for result in run.results if result.status not in ("ok", "interrupted")}
        pairs = other_jobs(self.levers, failed).values()
        trials = {trial.trial_id: trial for pair in pairs for trial in pair}
        return [trial for trial in trials.values() if trial.trial_id not in failed]

    def _scaling_launches(
        self, run: Run, jobs: Iterable[Trial], remaining_s: float | None
    ) -> Iterable[Launch]:
        for trial in jobs:
            if remaining_s is None or self._usual_s(run) <= remaining_s:
                label = f"comparing {trial.label}"
                yield Launch(trial, self._number(run, trial), _SCALING, at_most_s=remaining_s, label=label)
                return

    # What is shown while it goes on

    def interim(self, run: Run) -> Interim | None:
        """What is fastest so far, and everything that was measured."""
        measured = self.measured(run)
        if not measured.count(BASELINE):
            return None
        usable = [levers for levers in measured.combinations if levers not in measured.failed]
        differences = {levers: measured.difference(levers, BASELINE) for levers in usable if levers}
        known = {levers: math.exp(found.value) for levers, found in differences.items() if found}
        gains = {BASELINE: 1.0, **known}
        best = max(gains, key=lambda levers: gains[levers])
        ahead = bool(best) and gains[best] > 1.0 + LEAST_EFFECT
        rows = tuple(
            InterimRow(
                name=_name_of(levers),
                speedup=gains[levers],
                launches=measured.fresh.count(levers),
                is_best=ahead and levers == best,
            )
            for levers in gains
        )
        text = (
            f"the fastest is {_name_of(best)} with {gains[best]:.2f}×" if ahead else "nothing is faster yet"
        )
        return Interim(text, rows)


def _as_observed(trial: Trial, run: Run) -> Trial:
    """The trial with what its launches showed, where it is a command."""
    return next((result.trial for result in run.results if result.trial_id == trial.trial_id), trial)


def _name_of(levers: Combination) -> str:
    return " + ".join(sorted(levers)) or CURRENT


def _log_rate(result: Result, results: Sequence[Result]) -> float:
    """Of what was tried in the start of another: its window, and how much faster than the steps beside it."""
    (configuration,) = configurations([result])
    log_rate = configuration.log_rates[0]
    if not is_try(result):
        return log_rate
    (launch,) = configuration.launches
    main = start_of(result, results)
    beside_s = max(record.number(BESIDE) or 0.0 for record in result.ranks)
    if main is None or not beside_s:
        return log_rate
    (around,) = configurations([main])
    return around.log_rates[0] + math.log(beside_s / launch.mean_step_s)


def measured_by_trial(results: Iterable[Result]) -> dict[str, Configuration]:
    """Each trial by its launches, or where it has none, by tries in the starts of others."""
    results = list(results)
    launched = {r.trial_id for r in results if r.status == "ok" and not is_try(r)}
    counted = [result for result in results if not is_try(result) or result.trial_id not in launched]
    return {configuration.trial.trial_id: configuration for configuration in configurations(counted)}


def is_try(result: Result) -> bool:
    """Whether a result was tried in the start of another."""
    return any(BESIDE in record.counters for record in result.ranks)


def start_of(result: Result, results: Sequence[Result]) -> Result | None:
    """The result in whose start another was measured."""
    base = None if result.stage is None else result.stage.base
    same = (other for other in results if other.trial_id == base and other.started_at == result.started_at)
    return next(same, None)


def phase_times(results: Sequence[Result]) -> dict[int, float]:
    """What each phase took, and as much less of the launch in whose start it was, by identity."""
    took: dict[int, float] = {}
    for result in results:
        phase_s = max((record.number(PHASE_TIME) or 0.0 for record in result.ranks), default=0.0)
        if not phase_s:
            continue
        took[id(result)] = phase_s
        main = start_of(result, results)
        if main is not None:
            took[id(main)] = took.get(id(main), 0.0) - phase_s
    for result in results:  # with what failed, where the ranks came to write that
        all_s = max((record.number(PHASES_TIME) or 0.0 for record in result.ranks), default=0.0)
        if all_s:
            took[id(result)] = -all_s
    return took
