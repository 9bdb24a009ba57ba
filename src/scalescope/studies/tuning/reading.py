"""Reads what a search found from its launches, whether it is finished or not."""

import dataclasses
import math

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import Estimate, ratio_of_contrast, ratio_of_logs
from scalescope.analysis.tuning.launches import BASELINE, Combination, SpeedDifference, TunedLaunches
from scalescope.analysis.tuning.losses import LossCheck, LossComparison, loss_of
from scalescope.analysis.tuning.search import Conclusion, conclude
from scalescope.analysis.verdicts import FASTER, INCONCLUSIVE, LEAST_EFFECT, NO_DIFFERENCE, SLOWER, Verdict
from scalescope.experiment.explanations import without_communication
from scalescope.experiment.record import to_yaml
from scalescope.report.section import ShownCommand
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import (
    NOW,
    LeverStatus,
    OtherJob,
    ScriptArgument,
    TriedCombination,
    TriedLever,
    Tuning,
    next_after_tuning,
)
from scalescope.results.files import to_text
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNED, TUNING
from scalescope.studies.tuning.levers import Candidate, other_jobs, script_arguments
from scalescope.studies.tuning.loss_launches import measures_speed
from scalescope.studies.tuning.search import Search, measured_by_trial

_INTERVAL = 0.975
_NO_FAILURES = ("ok", "interrupted")


class ReadSearch(Search):
    """A search with what is shown of it."""

    def read(self, run: Run) -> Tuning:
        return _tuning(self, run)

    def next_step(self, run: Run) -> ShownCommand | None:
        return next_after_tuning(self.read(run), run.path)

    def files(self, run: Run) -> dict[str, str]:
        tuning = self.read(run)
        files = {TUNING: to_text(tuning_json(tuning))}
        if tuning.recommended:
            chosen = self.combinations.experiment_with(frozenset(tuning.winner))
            files[TUNED] = to_yaml(dataclasses.replace(chosen, verb="train"))
        return files


def _tuning(search: Search, run: Run) -> Tuning:
    """All that the launches so far allow to say."""
    measured = search.measured(run)
    tuning_search = search.search(run)
    conclusion = conclude(tuning_search, measured)
    check = search.loss_check(run, conclusion.winner) if conclusion.recommended else None
    if check is not None and check.refuses:
        conclusion = dataclasses.replace(conclusion, recommended=False)
    reader = _TuningReader(search, run, measured, conclusion, check)
    return Tuning(
        baseline=search.levers.baseline,
        combinations=reader.combinations(),
        levers=reader.levers(),
        other_jobs=reader.other_jobs(),
        without_communication=reader.without_communication(),
        inapplicable=(
            *search.without_use(run).items(),
            *((lever.text, lever.reason) for lever in search.levers.inapplicable),
        ),
        winner=tuple(sorted(conclusion.winner)),
        winner_trial=search.combinations.trial_with(conclusion.winner),
        recommended=conclusion.recommended,
        is_confirmed=conclusion.is_confirmed,
        gain=None if conclusion.gain is None else _ratio(conclusion.gain),
        at_most=conclusion.at_most,
        baseline_failure=reader.baseline_failure(),
        finished=not search.next_launches(run, None),
        budget_ended=run.record.end is None or run.record.end.why == "budget",
        loss_steps=None if search.losses is None else search.losses.steps,
        loss_check=check,
        arguments=_own_arguments(search, conclusion),
    )


def _own_arguments(search: Search, conclusion: Conclusion) -> tuple[ScriptArgument, ...]:
    """Arguments of a command's own that do what is recommended."""
    baseline = search.levers.baseline
    if not baseline.is_command or not conclusion.recommended:
        return ()
    chosen = (search.combinations.candidates[text] for text in sorted(conclusion.winner))
    return script_arguments(baseline.command, {lever.name: lever.value for lever in chosen})


def _ratio(difference: SpeedDifference) -> Estimate:
    return ratio_of_contrast(difference.contrast, _INTERVAL)


class _TuningReader:
    """One run of a search, and what it comes to."""

    def __init__(
        self,
        search: Search,
        run: Run,
        measured: TunedLaunches,
        conclusion: Conclusion,
        loss_check: LossCheck | None,
    ) -> None:
        self._search = search
        self._run = run
        self._measured = measured
        self._conclusion = conclusion
        self._loss_check = loss_check
        self._confirmed = measured.of_stages(("confirm",))
        results = [result for result in run.results if measures_speed(result)]
        self._by_trial = measured_by_trial(results)
        self._baseline = self._by_trial.get(search.levers.baseline.trial_id)

    def baseline_failure(self) -> str | None:
        """How its launches ended where none worked; why they failed is said of each of them."""
        baseline = self._search.levers.baseline.trial_id
        if self._measured.count(BASELINE) or baseline not in self._failures():
            return None
        last = [result for result in self._run.results if result.trial_id == baseline][-1]
        return _failure_text(last) if last.stopped_by == "budget" else last.status

    def _failures(self) -> dict[str, str]:
        """Why launches failed, by trial: the last reason of each that never worked."""
        return {
            result.trial_id: _failure_text(result)
            for result in self._run.results
            if result.status != "ok"
            and result.stopped_by != "signal"
            and result.trial_id not in self._by_trial
        }

    # Combinations

    def combinations(self) -> tuple[TriedCombination, ...]:
        """Every combination that was measured and can be compared, the fastest first."""
        known = [
            levers
            for levers in self._measured.combinations
            if not levers or self._measured.difference(levers, BASELINE)
        ]
        tried = [self._tried(levers) for levers in known]
        return tuple(sorted(tried, key=lambda combination: -combination.speedup.value))

    def _tried(self, levers: Combination) -> TriedCombination:
        configuration = self._configuration(levers)
        loss = LossComparison()
        if levers and self._baseline is not None:
            loss = loss_of(self._baseline, configuration)
        check = self._loss_check
        if check is not None and levers == self._conclusion.winner and check.change is not None:
            loss = LossComparison(check.change, check.differs)  # of more steps
        difference = self._measured.difference(levers, BASELINE)
        speedup = Estimate(1.0) if not levers or difference is None else _ratio(difference)
        return TriedCombination(
            levers=tuple(sorted(levers)),
            configuration=configuration,
            speedup=speedup,
            verdict=None if not levers else self._verdict(levers, difference),
            loss_change=loss.change,
            loss_differs=loss.differs,
            loss_unknown=None if self._only_tried(levers) else loss.unknown,
            is_confirmed=bool(levers) and self._confirmed.count(levers) > 0,
            failure=self._later_failure(levers),
            tried_step_s=self._tried_step_s(levers, speedup),
        )

    def _tried_step_s(self, levers: Combination, speedup: Estimate) -> float | None:
        """The step of what was only tried: that of the current settings, by its speedup."""
        if self._baseline is None or not self._only_tried(levers):
            return None
        return self._baseline.step_time_s.value / speedup.value

    def _only_tried(self, levers: Combination) -> bool:
        """Whether it has no launch of its own; its losses then continue another configuration's training."""
        return not self._measured.fresh.count(levers)

    def _later_failure(self, levers: Combination) -> str | None:
        """Why a launch of something that worked before failed."""
        if not levers or levers not in self._measured.failed:
            return None
        trial = self._search.combinations.trial_with(levers)
        failed = [
            result
            for result in self._run.results
            if trial is not None and result.trial_id == trial.trial_id and result.status not in _NO_FAILURES
        ]
        return _failure_text(failed[-1]) if failed else None

    def without_communication(self) -> Configuration | None:
        silent = without_communication(self._search.levers.baseline)
        return None if silent is None else self._by_trial.get(silent.trial_id)

    def _configuration(self, levers: Combination) -> Configuration:
        trial = self._search.combinations.trial_with(levers)
        assert trial is not None
        return self._by_trial[trial.trial_id]

    def _verdict(self, levers: Combination, difference: SpeedDifference | None) -> Verdict | None:
        """Whether a combination is faster, corrected for the number of them; None of a single launch."""
        if difference is None or self._measured.fresh.count(levers) < 2:
            return None
        if levers == self._conclusion.winner and self._conclusion.recommended:
            return FASTER
        alpha = 0.025 / max(1, len(self._measured.combinations) - 1)
        matters = abs(difference.value) > math.log1p(LEAST_EFFECT)
        if matters and difference.low(alpha) > 0.0:
            # Where nothing is recommended, nothing that could be is called faster.
            refused = self._loss_check is not None and self._loss_check.refuses
            claimed = self._conclusion.recommended or refused or levers in self._measured.failed
            return FASTER if claimed else INCONCLUSIVE
        if matters and difference.high(alpha) < 0.0:
            return SLOWER
        near = math.log1p(self._search.threshold)
        within = -near <= difference.low(2 * alpha) and difference.high(2 * alpha) <= near
        return NO_DIFFERENCE if within else INCONCLUSIVE

    # Levers

    def levers(self) -> tuple[TriedLever, ...]:
        """Every lever that trains the same job, in the order in which it was tried."""
        candidates = self._search.combinations.candidates
        order = {text: index for index, text in enumerate(self._order())}
        left_out = self._search.without_use(self._run)
        tried = [
            self._lever(text, candidate) for text, candidate in candidates.items() if text not in left_out
        ]
        return tuple(sorted(tried, key=lambda lever: order.get(lever.name, len(order))))

    def _order(self) -> list[str]:
        added = [sorted(launch.levers - launch.base) for launch in self._measured.launches]
        return list(dict.fromkeys(text for names in added for text in names))

    def _lever(self, text: str, candidate: Candidate) -> TriedLever:
        added = self._added(text)
        if added is None:
            promise = self._conclusion.promises.get(text)
            return TriedLever(
                name=text,
                trial_id=candidate.trial.trial_id,
                changes=candidate.changes,
                status="unpromising" if promise is None and self._baseline is not None else "not measured",
                may_give=None if promise is None else math.exp(promise),
            )
        levers, base = added
        difference = self._measured.difference(levers, base)
        return TriedLever(
            name=text,
            trial_id=candidate.trial.trial_id,
            changes=candidate.changes,
            status=self._status(text, levers, difference),
            added_to=tuple(sorted(base)),
            speedup=None if difference is None else _ratio(difference),
            support=self._conclusion.support.get(text),
            launches=self._measured.fresh.count(levers),
            reason=self._reason(levers),
            usual_cause=self._search.combinations.usual_cause(candidate),
        )

    def _added(self, text: str) -> tuple[Combination, Combination] | None:
        """The last combination in which a lever was new, measured and alone if possible, and what it was
        added to."""
        launches = [
            (launch.levers, launch.base)
            for launch in self._measured.launches
            if launch.stage.kind == "explore" and text in launch.levers - launch.base
        ]
        alone = [(levers, base) for levers, base in launches if levers - base == {text}]
        measured = [added for added in alone if added[0] not in self._measured.failed]
        return next(iter([*reversed(measured), *reversed(alone), *reversed(launches)]), None)

    def _status(self, text: str, levers: Combination, difference: SpeedDifference | None) -> LeverStatus:
        if text in self._conclusion.winner:
            if self._loss_check is not None and self._loss_check.refuses:
                return "loss differs" if self._loss_check.differs else "failed"
            return "recommended" if self._conclusion.recommended else "kept"
        if text in self._conclusion.dropped:
            return "dropped"
        if any(launch.refused for launch in self._measured.launches if launch.levers == levers):
            return "loss differs"
        if difference is None:
            return "failed" if levers in self._measured.failed else "undecided"
        if difference.high(0.05) < 0.0:
            return "slower"
        return "no gain" if difference.high(0.05) < math.log1p(self._search.threshold) else "undecided"

    def _reason(self, levers: Combination) -> str | None:
        trial = self._search.combinations.trial_with(levers)
        return None if trial is None else self._failures().get(trial.trial_id)

    # Other jobs

    def other_jobs(self) -> tuple[OtherJob, ...]:
        """Jobs that train something else, by what a sample takes and how they scale."""
        jobs = other_jobs(self._search.levers, ())
        scaling = [
            result
            for result in self._run.results
            if result.stage is not None and result.stage.kind == "scaling"
        ]
        by_trial = {c.trial.trial_id: c for c in configurations(scaling)}
        now = by_trial.get(self._search.levers.baseline.trial_id)
        tried = []
        for name, (trial, single) in jobs.items():
            configuration = by_trial.get(trial.trial_id)
            if configuration is None or now is None:
                continue
            alone = by_trial.get(single.trial_id) if single.trial_id != trial.trial_id else None
            tried.append(
                OtherJob(
                    name=name,
                    configuration=configuration,
                    speedup=Estimate(1.0)
                    if name == NOW
                    else ratio_of_logs(configuration.log_rates, now.log_rates),
                    scaling=None
                    if alone is None
                    else ratio_of_logs(configuration.log_rates, alone.log_rates),
                )
            )
        return tuple(tried)


def _failure_text(result: Result) -> str:
    if result.stopped_by == "budget":
        return f"ended after {result.duration_s:.0f} s, when its time was up"
    return f"{result.status}: {result.reason}"
