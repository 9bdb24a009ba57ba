"""The search of `tune`: reads the results so far as far as they go, and says what to launch next."""

import dataclasses
from dataclasses import dataclass

from scalescope.analysis.configurations import configurations
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.ledger import SCALING, LaunchesNeeded, SearchLedger
from scalescope.analysis.tuning.lever_comparison import LeverComparison, compare_all, fastest
from scalescope.analysis.tuning.search import (
    BEFORE_COMBINING,
    LEVERS_ALONE,
    Attempt,
    Combining,
    confirmed,
    explore,
    scaling_of,
)
from scalescope.analysis.verdicts import LEAST_EFFECT
from scalescope.errors import ScalescopeError
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.record import to_yaml
from scalescope.experiment.trial import Trial
from scalescope.report.section import Command
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import Tuning, next_after_tuning
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNED, TUNING
from scalescope.studies.plan import Launch
from scalescope.studies.study import Interim
from scalescope.studies.tuning.levers import (
    Candidate,
    Levers,
    other_jobs,
    settings_of_trial,
    shown,
    with_values,
)

_SCALING_LAUNCHES = 3


class Search:
    """Reads the results so far as far as they go; what is missing is what to launch next."""

    def __init__(
        self, experiment: Experiment, machine: Machine, levers: Levers, *, threshold: float, combine: bool
    ) -> None:
        self._experiment = experiment
        self._machine = machine
        self._threshold = threshold
        self._combine = combine
        self.levers = levers
        self._by_text = {candidate.text: candidate for candidate in self.levers.candidates}
        self._slow = {
            name: setting.neutral
            for name, setting in settings_of_trial(self.levers.baseline).items()
            if setting.lever is not None and setting.lever.starts_slowly
        }
        self._earlier: int | None = None

    def interim(self, run: Run) -> Interim | None:
        """What is fastest so far, among what trains the same job."""
        other_jobs = {c.trial.trial_id for c in self.levers.candidates if c.changes == "the job"}
        compared = [
            result for result in run.results if result.stage != SCALING and result.trial_id not in other_jobs
        ]
        best = fastest(configurations(compared), self.levers.baseline)
        if best is None:
            return None
        return Interim(f"the fastest is {self._name_of(best[0])} with {best[1]:.2f}×")

    def _name_of(self, trial: Trial) -> str:
        moved = [
            shown(name, value)
            for name, value in trial.settings.items()
            if value != self.levers.baseline.settings.get(name)
        ]
        return " + ".join(moved)

    def next_launches(self, run: Run) -> tuple[Launch, ...]:
        """The launches without which the search cannot go on; none when it is done."""
        if self._earlier is None:
            self._earlier = len(run.results)
        try:
            self._follow(run, _Progress())
        except LaunchesNeeded as needed:
            return tuple(Launch(*launch) for launch in needed.launches)
        return ()

    def read(self, run: Run) -> Tuning:
        """All that can be said from the results there are, also where the budget ended the search."""
        progress = _Progress()
        finished = True
        try:
            self._follow(run, progress)
        except LaunchesNeeded:
            finished = False
            progress.singles = progress.singles or self._so_far(run)
        return Tuning(
            levers=tuple(
                (candidate.text, candidate.trial.trial_id, candidate.changes)
                for candidate in self.levers.candidates
            ),
            inapplicable=tuple((lever.text, lever.reason) for lever in self.levers.inapplicable),
            baseline=self.levers.baseline,
            singles=progress.singles,
            dropped=progress.dropped,
            failed=progress.failed,
            scaling=progress.scaling,
            first=progress.first,
            attempts=progress.attempts,
            winner=progress.winner,
            final=progress.final,
            threshold=self._threshold,
            finished=finished,
        )

    def _so_far(self, run: Run) -> tuple[LeverComparison, ...]:
        """What the launches there are say, where the budget ended before every lever had its turn."""
        by_id = {configuration.trial.trial_id: configuration for configuration in configurations(run.results)}
        baseline = by_id.get(self.levers.baseline.trial_id)
        if baseline is None:
            return ()
        there = [
            candidate.trial.trial_id
            for candidate in self.levers.candidates
            if candidate.trial.trial_id in by_id
        ]
        return compare_all(baseline, [by_id[trial_id] for trial_id in there], self._threshold)

    def next_step(self, run: Run) -> Command | None:
        return next_after_tuning(self.read(run), run.path, run.record)

    def files(self, run: Run) -> dict[str, str]:
        tuning = self.read(run)
        files = {TUNING: to_text(tuning_json(tuning))}
        if tuning.recommended:
            files[TUNED] = to_yaml(dataclasses.replace(self._with(tuning.winner), verb="train"))
        return files

    def _follow(self, run: Run, progress: "_Progress") -> None:
        repeats = self._experiment.measuring.repeats
        baseline, seed = self.levers.baseline, self._experiment.measuring.order_seed
        ledger = SearchLedger(
            results=run.results,
            seed=seed,
            baseline=baseline.trial_id,
            budget_s=self._experiment.measuring.budget,
            earlier=self._earlier or 0,
            is_slow=self._is_slow,
        )
        progress.failed = ledger.failed
        trials = [candidate.trial for candidate in self.levers.candidates]
        shares = BEFORE_COMBINING if self._combine else LEVERS_ALONE
        progress.singles, progress.dropped = explore(
            ledger, baseline, trials, repeats, self._threshold, shares
        )
        if not progress.singles:
            return
        ranked = self._ranked(progress)
        if ranked:
            self._choose(ledger, ranked, progress)
        pairs = other_jobs(self.levers, progress.failed)
        progress.scaling = scaling_of(ledger, pairs, min(repeats, _SCALING_LAUNCHES))

    def _choose(self, ledger: SearchLedger, ranked: list[Candidate], progress: "_Progress") -> None:
        """The best lever, or what helps together with it, confirmed."""
        repeats = self._experiment.measuring.repeats
        progress.first = ranked[0].text
        progress.winner = frozenset((progress.first,))
        if self._combine:
            combining = Combining(ledger=ledger, build=self._trial_with, confirmations=repeats)
            others = [candidate.text for candidate in ranked[1:]]
            progress.winner, progress.attempts = combining.search(ranked[0].text, others)
        winner = self._trial_with(progress.winner)
        assert winner is not None  # it was measured
        progress.final = confirmed(ledger, self.levers.baseline, winner, repeats, self._threshold)

    def _ranked(self, progress: "_Progress") -> list[Candidate]:
        """The best value of every lever: the fastest first; what starts slowly before what did nothing alone.

        Another job is no better version of this one, so levers that change it take no part. A lever that is
        slower alone may help others: channels_last does nothing good without matrix units that want it.
        """
        effects = {single.candidate.trial.trial_id: single for single in progress.singles}

        def rank_of(candidate: Candidate) -> tuple[bool, float]:
            judged = effects.get(candidate.trial.trial_id)
            known = judged is not None and judged.verdict == "faster"
            return not known, 0.0 if judged is None else -judged.speedup.value

        candidates = [
            candidate
            for candidate in self.levers.candidates
            if candidate.trial.trial_id not in progress.failed
        ]
        fit = [
            candidate for candidate in candidates if _is_fit(candidate, effects.get(candidate.trial.trial_id))
        ]
        best: dict[str, Candidate] = {}
        for candidate in sorted(fit, key=rank_of):
            best.setdefault(candidate.name, candidate)
        ranked = list(best.values())
        first = effects.get(ranked[0].trial.trial_id) if ranked else None
        if first is None or not self._may_win(first):
            return []

        def turn(candidate: Candidate) -> int:
            judged = effects.get(candidate.trial.trial_id)
            promising = judged is not None and judged.speedup.value > 1.0 + self._threshold
            return 0 if promising and not candidate.starts_slowly else 1 if candidate.starts_slowly else 2

        return [ranked[0], *sorted(ranked[1:], key=turn)]

    def _may_win(self, comparison: LeverComparison) -> bool:
        """What is known to be faster, or looks so where the budget allowed too few launches to know."""
        if self._combine or len(comparison.candidate.launches) < self._experiment.measuring.repeats:
            return comparison.verdict != "slower" and comparison.speedup.value > 1.0 + LEAST_EFFECT
        return comparison.verdict == "faster"

    def _is_slow(self, trial: Trial) -> bool:
        return any(trial.settings[name] != usual for name, usual in self._slow.items())

    def _with(self, texts: frozenset[str]) -> Experiment:
        chosen = [self._by_text[text] for text in sorted(texts)]
        return with_values(self._experiment, {candidate.name: candidate.value for candidate in chosen})

    def _trial_with(self, texts: frozenset[str]) -> Trial | None:
        """The trial with all these levers; None where it cannot be run, or two move the same setting."""
        if len({self._by_text[text].name for text in texts}) < len(texts):
            return None
        try:
            (trial,) = expand(self._with(texts), self._machine).trials
        except ScalescopeError:
            return None
        return trial


def _is_fit(candidate: Candidate, judged: LeverComparison | None) -> bool:
    """Whether a candidate may become part of what is recommended."""
    if candidate.changes == "the job":
        return False
    return candidate.starts_slowly if judged is None else not judged.loss_differs


@dataclass(slots=True)
class _Progress:
    """How far a reading of the results came."""

    singles: tuple[LeverComparison, ...] = ()
    dropped: frozenset[str] = frozenset()
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    scaling: dict[str, Estimate] = dataclasses.field(default_factory=dict)
    first: str | None = None
    attempts: tuple[Attempt, ...] = ()
    winner: frozenset[str] = frozenset()
    final: LeverComparison | None = None
