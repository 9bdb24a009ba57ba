"""`tune`: which settings help together, each claim measured, within a budget."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.report.section import Section, ShownCommand
from scalescope.results.result import Result
from scalescope.studies.commands import check_keep_running
from scalescope.studies.flags import read_flags
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.study import Host, Interim, Report, Study
from scalescope.studies.tuning.levers import KEEP_NUMERICS, Levers, find_levers

if TYPE_CHECKING:
    from scalescope.report.tuning.sections import Tuning
    from scalescope.results.run import Run

_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 0.3, 3.0
_LAUNCHES_OF_A_BUDGET = 180.0  # a window is so much of a budget
_NOTHING_TO_VERIFY = (
    "--verify-loss is left out: single launches recommend nothing whose loss could be verified."
)


class Procedure(Protocol):
    """How levers are tried: in a search with repeated launches, or each once."""

    @property
    def levers(self) -> Levers: ...

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]: ...

    def read(self, run: "Run") -> "Tuning": ...

    def files(self, run: "Run") -> dict[str, str]: ...

    def next_step(self, run: "Run") -> ShownCommand | None: ...

    def interim(self, run: "Run") -> Interim | None: ...


@dataclass(kw_only=True)
class TuneStudy(Study):
    """Tries levers around one configuration, within the budget."""

    verb: ClassVar[str] = "tune"
    # As few warm-up steps as are allowed: a short budget buys more launches then.
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 5, "budget": 180.0, "warmup_steps": 3}
    planned_defaults: ClassVar[Mapping[str, str]] = {"window": "by budget"}
    runs_on_slurm: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    plans_by_formats: ClassVar[bool] = True

    levers: tuple[str, ...] = ("all",)
    threshold: float = 0.03
    combine: bool = True
    verify_loss: int | None = None  # steps over which the losses of the winner are compared
    keep_numerics: bool = False  # try only what changes nothing about results
    _procedure: Procedure | None = field(default=None, init=False, repr=False)  # once it is planned

    def flags(self) -> tuple[str, ...]:
        percent = f"{self.threshold * 100.0:g}%"
        combining = "--combine" if self.combine else "--no-combine"
        losses = () if self.verify_loss is None else ("--verify-loss", str(self.verify_loss))
        numerics = (KEEP_NUMERICS,) if self.keep_numerics else ()
        return ("--levers", ",".join(self.levers), "--threshold", percent, combining, *losses, *numerics)

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        given = read_flags(flags)
        return cls(
            levers=levers_from([str(given.get("levers", "all"))]),
            threshold=float(str(given.get("threshold", "3%")).removesuffix("%")) / 100.0,
            combine="no-combine" not in given,
            verify_loss=int(given["verify-loss"]) if "verify-loss" in given else None,
            keep_numerics="keep-numerics" in given,
        )

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        from scalescope.studies.tuning.loss_launches import LossLaunches
        from scalescope.studies.tuning.reading import ReadSearch
        from scalescope.studies.tuning.tune_once import SingleLaunches, for_ranks_of

        experiment, machine = _for_host(experiment, host), host.machine
        if experiment.is_command:
            experiment = check_keep_running(experiment)
            if self.verify_loss is not None:
                raise BadInput("--verify-loss cannot be used with a command: its losses are not known")
        levers = find_levers(experiment, machine, self.levers, keep_numerics=self.keep_numerics)
        levers = for_ranks_of(host, levers) if host.ranks is not None or not host.repeatable else levers
        if not levers.candidates:
            why = "; ".join(f"{lever.text}: {lever.reason}" for lever in levers.inapplicable)
            raise BadInput(f"--levers: no lever can be tried here; {why}")
        trials = (levers.baseline, *(candidate.trial for candidate in levers.candidates))
        expansion = expand(experiment, machine)
        losses = None if self.verify_loss is None else LossLaunches(self.verify_loss)
        search = ReadSearch(
            experiment, machine, levers, threshold=self.threshold, combine=self.combine, losses=losses
        )
        once = not host.repeatable
        plan = Plan(
            experiment=expansion.experiment,
            trials=trials,
            machine=machine,
            notes=expansion.notes,
            preview=_preview(levers, experiment, machine, search.expected_order(), once=once),
            chosen=(),
        )
        procedure: Procedure = search
        if once:
            seed = experiment.measuring.order_seed
            singles = SingleLaunches(levers=levers, threshold=self.threshold, seed=seed, host=host)
            procedure, plan = singles, singles.planned(plan)
            if self.verify_loss is not None:
                plan = dataclasses.replace(plan, notes=(*plan.notes, _NOTHING_TO_VERIFY))
        self._procedure = procedure
        return plan

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]:
        return self._planned(run).next_launches(run, remaining_s)

    def interim(self, run: "Run") -> Interim | None:
        return self._planned(run).interim(run)

    def is_expected_failure(self, result: Result) -> bool:
        """A lever that fails is an answer; the baseline must work."""
        return self._procedure is None or result.trial_id != self._procedure.levers.baseline.trial_id

    def present(self, run: "Run") -> Report:
        from scalescope.report.tuning.sections import tuning_sections, verdict
        from scalescope.studies.stored import report_of, with_files

        procedure = self._planned(run)
        tuning = procedure.read(run)
        sections = tuning_sections(tuning)
        report = report_of(self, run, sections, procedure.next_step(run))
        report = dataclasses.replace(report, headline=verdict(tuning), explain=lambda: sections)
        return with_files(report, {name: text.__str__ for name, text in procedure.files(run).items()})

    def _planned(self, run: "Run") -> Procedure:
        """How this study tries levers; of a stored run, worked out again from its request and its machine."""
        if self._procedure is None:
            from scalescope.results.run_folder import EXPERIMENT
            from scalescope.studies.request import stored_experiment
            from scalescope.studies.stored import recorded_host

            record = run.record
            host = recorded_host(run.path, repeatable=record.repeatable, ranks=record.attached_ranks)
            self.plan(stored_experiment(self, run.path / EXPERIMENT), host)
        assert self._procedure is not None
        return self._procedure


def _for_host(experiment: Experiment, host: Host) -> Experiment:
    """The request with what the host and the budget decide: ranks, repeats and the window."""
    window_s = window_for(experiment.measuring.budget)
    experiment = experiment.with_default(window=(window_s,), world_size=(host.ranks or 1,))
    if host.repeatable:
        return experiment
    return dataclasses.replace(experiment, measuring=dataclasses.replace(experiment.measuring, repeats=1))


def window_for(budget_s: float | None) -> float:
    """How long a launch measures: shorter in a small budget, which then buys more launches."""
    if budget_s is None:
        return _LONGEST_WINDOW_S
    return min(_LONGEST_WINDOW_S, max(_SHORTEST_WINDOW_S, budget_s / _LAUNCHES_OF_A_BUDGET))


def _preview(
    levers: Levers, experiment: Experiment, machine: Machine, order: Sequence[str], *, once: bool
) -> tuple[Section, ...]:
    """What would be tried and what not; how often each is launched is decided on the way."""
    from scalescope.analysis.durations import estimated_launch_s
    from scalescope.report.machine import format_lines
    from scalescope.report.tuning.sections import left_out_section, plan_of_tuning

    ranks = {text: rank for rank, text in enumerate(order)}
    ordered = sorted(levers.candidates, key=lambda candidate: ranks.get(candidate.text, len(ranks)))
    planned = plan_of_tuning(
        levers.baseline,
        [(candidate.text, candidate.changes) for candidate in ordered],
        None if levers.baseline.is_command else estimated_launch_s(levers.baseline),
        experiment.measuring.budget,
        once=once,
        formats=format_lines(machine, (levers.baseline,)),
    )
    return (planned, *left_out_section([(lever.text, lever.reason) for lever in levers.inapplicable]))


def levers_from(words: Sequence[str]) -> tuple[str, ...]:
    """The names of --levers, as typed with commas."""
    names = tuple(name.strip() for word in words for name in word.split(",") if name.strip())
    if not names:
        raise BadInput("--levers: expected names of levers, or all")
    return names
