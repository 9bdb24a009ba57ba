"""`tune`: which setting helps, really: one by one, then together, each claim measured."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.tuning import Comparison
from scalescope.analysis.tuning_search import (
    MOST_LAUNCHES,
    Attempt,
    Laboratory,
    Needs,
    combine,
    confirmed,
    singles,
)
from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.record import to_yaml
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.tuning import Tuning, next_after_tuning, tuning_json, tuning_sections
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.levers import Candidate, Levers, find_levers
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, carry_out

DEFAULTS = {"repeats": 5, "budget": 600.0}
TUNED = "tuned.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a person asks of `tune` besides the configuration."""

    levers: tuple[str, ...] = ("all",)
    threshold: float = 0.03
    combine: bool = False


def tune(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    most_ranks: int | None = None,
    options: TuneOptions | None = None,
) -> StudyReport:
    """Try the levers around one configuration, within the budget."""
    if not launcher.repeatable:
        raise BadInput("tune needs launches of its own; run it without torchrun")
    machine = launcher.machine()
    experiment = request.experiment(DEFAULTS)
    if experiment.measuring.repeats > MOST_LAUNCHES:
        raise BadInput(f"--repeats: tune makes at most {MOST_LAUNCHES} launches of one kind")
    search = Search(experiment, machine, options or TuneOptions())
    for one in search.levers.inapplicable:
        watcher.noted(f"not tried: {one.text}: {one.reason}")
    if not search.levers.candidates:
        raise BadInput("--levers: nothing is left to try here")
    trials = (search.levers.baseline, *(one.trial for one in search.levers.candidates))
    expansion = expand(experiment, machine)
    plan = Plan(
        experiment=expansion.experiment, trials=trials, machine=machine, notes=expansion.notes, chosen=()
    )
    return carry_out(
        request,
        plan,
        launcher,
        watcher,
        lambda run: tuning_sections(search.read(run)),
        lambda run: next_after_tuning(search.read(run), run.path / TUNED),
        lambda run: search.files(run),
        more=search.more,
        answers=lambda result: result.trial_id != search.levers.baseline.trial_id,
    )


class Search:
    """Reads the results so far as far as they go; what is missing is what to launch next."""

    def __init__(self, experiment: Experiment, machine: Machine, options: TuneOptions) -> None:
        self._experiment = experiment
        self._machine = machine
        self._options = options
        self.levers: Levers = find_levers(experiment, machine, options.levers)
        self._by_text = {one.text: one for one in self.levers.candidates}

    def more(self, run: Run) -> tuple[tuple[Trial, int], ...]:
        """The launches without which the search cannot go on; none when it is done."""
        try:
            self._follow(run, _Progress())
        except Needs as needed:
            return needed.launches
        return ()

    def read(self, run: Run) -> Tuning:
        """All that can be said from the results there are, also where the budget ended the search."""
        progress = _Progress()
        finished = True
        try:
            self._follow(run, progress)
        except Needs:
            finished = False
        return Tuning(
            levers=tuple((one.text, one.trial.trial_id, one.changes) for one in self.levers.candidates),
            inapplicable=tuple((one.text, one.reason) for one in self.levers.inapplicable),
            baseline=self.levers.baseline,
            singles=progress.singles,
            dropped=progress.dropped,
            failed=progress.failed,
            attempts=progress.attempts,
            winner=progress.winner,
            final=progress.final,
            threshold=self._options.threshold,
            finished=finished,
        )

    def files(self, run: Run) -> dict[str, str]:
        tuning = self.read(run)
        found = {"tuning.json": to_text(tuning_json(tuning))}
        if tuning.recommended:
            found[TUNED] = to_yaml(dataclasses.replace(self._with(tuning.winner), verb="train"))
        return found

    def _follow(self, run: Run, progress: "_Progress") -> None:
        options, repeats = self._options, self._experiment.measuring.repeats
        baseline, seed = self.levers.baseline, self._experiment.measuring.order_seed
        laboratory = Laboratory(results=run.results, seed=seed, baseline=baseline.trial_id)
        progress.failed = laboratory.failed
        trials = [one.trial for one in self.levers.candidates]
        progress.singles, progress.dropped = singles(laboratory, baseline, trials, repeats, options.threshold)
        ranked = self._ranked(progress)
        if not ranked:
            return
        progress.winner = frozenset((ranked[0].text,))
        if options.combine:
            others = [one.text for one in ranked[1:]]
            progress.winner, progress.attempts = combine(laboratory, ranked[0].text, others, self._trial_with)
        winner = self._trial_with(progress.winner)
        assert winner is not None  # it was measured
        progress.final = confirmed(laboratory, baseline, winner, repeats, options.threshold)

    def _ranked(self, progress: "_Progress") -> list[Candidate]:
        """The best value of every lever: what is known to be faster first, then what may help it.

        Another job is no better version of this one, so levers that change it take no part.
        """
        effects = {one.candidate.trial.trial_id: one for one in progress.singles}

        def place(one: Candidate) -> tuple[bool, float]:
            judged = effects[one.trial.trial_id]
            return judged.verdict != "faster", -judged.speedup.value

        there = [one for one in self.levers.candidates if one.trial.trial_id not in progress.dropped]
        fit = [one for one in there if _is_fit(one, effects.get(one.trial.trial_id))]
        best: dict[str, Candidate] = {}
        for one in sorted(fit, key=place):
            best.setdefault(one.name, one)
        ranked = list(best.values())
        return ranked if ranked and not place(ranked[0])[0] else []

    def _with(self, texts: frozenset[str]) -> Experiment:
        chosen = [self._by_text[text] for text in sorted(texts)]
        return self._experiment.with_settings(**{one.name: (one.value,) for one in chosen})

    def _trial_with(self, texts: frozenset[str]) -> Trial | None:
        try:
            (trial,) = expand(self._with(texts), self._machine).trials
        except ScalescopeError:
            return None
        return trial


def _is_fit(one: Candidate, judged: Comparison | None) -> bool:
    """Whether a candidate may become part of what is recommended."""
    if judged is None or one.changes == "the job":
        return False
    return judged.verdict != "slower" and not judged.loss_differs


@dataclass(slots=True)
class _Progress:
    """How far a reading of the results came."""

    singles: tuple[Comparison, ...] = ()
    dropped: frozenset[str] = frozenset()
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    winner: frozenset[str] = frozenset()
    final: Comparison | None = None


def levers_from(words: Sequence[str]) -> tuple[str, ...]:
    """The names of --levers, as typed with commas."""
    names = tuple(name.strip() for word in words for name in word.split(",") if name.strip())
    if not names:
        raise BadInput("--levers: name some, or all")
    return names
