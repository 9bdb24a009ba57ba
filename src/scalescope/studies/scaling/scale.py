"""`scale`: world sizes against batch sizes, with the baselines and ablations that explain the difference."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalescope.catalog import cards
from scalescope.catalog.setting import for_device
from scalescope.errors import ScalescopeError
from scalescope.experiment.expand import defaults_of, expand, resolve_placement
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import (
    NO_COMM,
    arrivals_of,
    at_per_rank_batch,
    has_ablation,
    only_explains,
    records_arrivals,
    single_rank_baseline,
    step_recordings,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.studies.commands import (
    NEEDS_WORLD_SIZE,
    check_keep_running,
    has_world_size,
    keeps_running,
    launchable,
    phases_of,
    remaining_launches,
)
from scalescope.studies.flags import read_flags
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.scaling.network import network_of
from scalescope.studies.study import Host, Interim, Report, Study

if TYPE_CHECKING:
    from scalescope.results.run import Run

_BATCHES = {"cpu": (32, 256), "cuda": (256, 4096)}  # one too small to scale, one that should
DEFAULT_SWEEP = {
    "world_size": "1, 2, 4 ... up to what the machine has",
    "batch_size": "{cpu[0]},{cpu[1]} on CPU, {cuda[0]},{cuda[1]} on GPU; other workloads: an "
    "eighth of the usual batch, and the usual batch".format(**_BATCHES),
}
_NO_NETWORK = (
    "Collectives are not measured: in a job of several nodes only the command starts ranks. "
    "scalescope comm --launcher slurm measures them."
)
USUAL_S = 600.0  # without --budget, no further round is begun after that
_MOST_CPU_RANKS = 4  # beyond that, cores say more about the machine than about scaling


@dataclass(frozen=True, kw_only=True)
class ScaleStudy(Study):
    """Measures a sweep, and what explains how it scales."""

    verb: ClassVar[str] = "scale"
    compares_ranks: ClassVar[bool] = True
    runs_on_slurm: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 5}
    planned_defaults: ClassVar[Mapping[str, str]] = DEFAULT_SWEEP

    waterfall: bool = True  # also launch what explains the loss

    def flags(self) -> tuple[str, ...]:
        return () if self.waterfall else ("--no-waterfall",)

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        return cls(waterfall="no-waterfall" not in read_flags(flags))

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        return plan_scaling(experiment, host, waterfall=self.waterfall, many=many)

    def interim(self, run: "Run") -> Interim | None:
        from scalescope.report.scaling.sections import scaling_so_far

        text = scaling_so_far(run)
        return None if text is None else Interim(text)

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]:
        if not self.waterfall:
            return ()
        return scaling_launches(self, run)

    def is_expected_failure(self, result: Result) -> bool:
        return Study.is_expected_failure(self, result) or only_explains(result.trial)

    def present(self, run: "Run") -> Report:
        from scalescope.report.analyzed_run import AnalyzedRun
        from scalescope.report.scaling.sections import next_after_scaling, scaling_sections
        from scalescope.studies.stored import report_of

        analyzed = AnalyzedRun(run)
        return report_of(self, analyzed, scaling_sections(analyzed), next_after_scaling(analyzed))


def plan_scaling(experiment: Experiment, host: Host, *, waterfall: bool = True, many: bool = False) -> Plan:
    """The trials that were asked for, and those needed to explain them."""
    machine = host.machine
    experiment = _with_default_sweep(experiment, machine, host.ranks)
    is_command = experiment.is_command
    if is_command:
        experiment = check_keep_running(experiment)
        waterfall = waterfall and not keeps_running(experiment)
    expansion = expand(experiment, machine, many=many)
    plan = Plan(
        experiment=expansion.experiment,
        # What explains a command follows from its launches.
        trials=with_explanations(expansion.trials, waterfall=waterfall and not is_command),
        machine=machine,
        notes=(*expansion.notes, *_notes_on_command(experiment)),
        first=frozenset(trial.trial_id for trial in _answers(expansion.trials)),
        continues=is_command and waterfall,
        usual_s=USUAL_S,
        explains_failures=not is_command,
        phases=phases_of(expansion.trials, with_explanations, _recorded) if is_command and waterfall else {},
    )
    if not waterfall:
        return plan
    if not is_command:
        plan = dataclasses.replace(plan, once=_recordings(plan.trials, expansion.trials))
    if is_command and host.nodes > 1:
        return dataclasses.replace(plan, notes=(*plan.notes, _NO_NETWORK))
    try:
        network = network_of(plan, with_nccl_log=host.repeatable)
    except ScalescopeError as error:  # gloo between GPUs, for instance: training goes on without
        return dataclasses.replace(plan, notes=(*plan.notes, f"Collectives are not measured: {error}"))
    return dataclasses.replace(plan, once=(*plan.once, *network))


def _notes_on_command(experiment: Experiment) -> tuple[str, ...]:
    """That a command which is started on one number of ranks cannot show how it scales."""
    return () if not experiment.is_command or has_world_size(experiment) else (NEEDS_WORLD_SIZE,)


def _recordings(planned: Iterable[Trial], asked: Sequence[Trial]) -> tuple[Trial, ...]:
    """One rank without a wrapper at every batch, recorded: what more ranks add comes on top of its step.
    Without one rank, what was asked for."""
    jobs = [
        trial
        for trial in planned
        if trial.world_size == 1 and not trial.is_wrapped and not trial.is_ablation and trial.is_training
    ]
    return step_recordings(jobs or asked)


def _answers(asked: Iterable[Trial]) -> tuple[Trial, ...]:
    """What the table's rows are made of: the trials asked for, and one rank without a wrapper."""
    trials = tuple(asked)
    return (*trials, *(single_rank_baseline(trial) for trial in trials))


def _with_default_sweep(experiment: Experiment, machine: Machine, most_ranks: int | None) -> Experiment:
    # A file made for training to an accuracy may ask for it; how fast something scales does not depend on it.
    sweep: dict[str, tuple[object, ...]] = {"eval": (False,)} if "eval" in experiment.settings else {}
    device = chosen_device(experiment, machine)
    if "world_size" not in experiment.settings:
        most = most_ranks or default_most_ranks(device, machine, experiment)
        is_fixed = experiment.is_command and not has_world_size(experiment)
        sweep["world_size"] = (1,) if is_fixed else tuple(powers_of_two_to(most))
    if not experiment.is_command and not {"batch_size", "global_batch_size"} & set(experiment.settings):
        sweep["batch_size"] = _two_batches(experiment, device)
    return experiment.with_settings(**sweep)


def _two_batches(experiment: Experiment, device: str) -> tuple[int, ...]:
    """One batch too small to scale and one that should, as the workload prefers."""
    workload = str(experiment.asked("workload", "mlp")[0])
    preferred = cards.card("workloads", workload).defaults.get("batch_size")
    if preferred is None:
        return _BATCHES[device]
    usual = int(for_device(preferred, device) or 1)
    return tuple(dict.fromkeys((max(1, usual // 8), usual)))


def chosen_device(experiment: Experiment, machine: Machine) -> str:
    """What `auto` means for this experiment on this machine."""
    one_rank = experiment.with_settings(world_size=(1,))
    resolved, _ = resolve_placement(one_rank, machine)
    return str(resolved.asked("device")[0])


def default_most_ranks(device: str, machine: Machine, experiment: Experiment) -> int:
    """All GPUs, or all parts of a split one; on the CPU at least two, or there is nothing to compare."""
    parts = [count for count in experiment.asked("split_gpu") if count]
    if device == "cuda":
        return min(parts) if parts else len(machine.gpus)
    return max(2, min(_MOST_CPU_RANKS, machine.cores))


def powers_of_two_to(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == most else [*sizes, most]


def with_explanations(trials: Iterable[Trial], *, waterfall: bool = True) -> tuple[Trial, ...]:
    """Add what results are compared with: both one-rank baselines, and the ablations of the waterfall."""
    asked = list(trials)
    wanted = {trial.trial_id: trial for trial in asked}
    has_one_rank = any(trial.world_size == 1 for trial in asked)
    for trial in asked:
        if trial.is_wrapped:
            for companion in _companions(trial, has_one_rank=has_one_rank, waterfall=waterfall):
                wanted.setdefault(companion.trial_id, companion)
    if not any(trial.is_wrapped or trial.is_command for trial in asked):
        wanted |= {wrapped.trial_id: wrapped for wrapped in map(_wrapped_in_ddp, asked)}
    return tuple(wanted.values())


def _companions(trial: Trial, *, has_one_rank: bool, waterfall: bool) -> list[Trial]:
    """What a trial on several ranks is compared with."""
    runs_on_one_rank = trial.strategy_card.least_ranks == 1
    companions = []
    if has_one_rank or not runs_on_one_rank:  # a pipeline cannot run on one rank
        companions += [trial.on_one_rank()] if runs_on_one_rank else []
        companions.append(single_rank_baseline(trial))
    if not waterfall or trial.world_size == 1:
        return companions
    preloaded = with_preloaded_input(trial)
    silent = without_communication(preloaded)
    companions += [preloaded, *([] if silent is None else [silent]), arrivals_of(preloaded)]
    if companions[0].world_size == 1:
        share = at_per_rank_batch(trial)
        alone = [single_rank_baseline(share), with_preloaded_input(single_rank_baseline(share))]
        alone += [with_preloaded_input(share.on_one_rank())] if runs_on_one_rank else []
        # Where communication cannot be taken away, recorded ranks are held against a recorded one.
        companions += [*alone, *([arrivals_of(alone[-1])] if silent is None else [])]
    return companions


def scaling_launches(study: Study, run: "Run") -> tuple[Launch, ...]:
    """What follows on the launches so far: of a command what explains it, and recordings of one rank."""

    explained = remaining_launches(study, run, with_explanations, _recorded)
    return (*explained, *launchable(_recordings_of_one_rank(run)))


def _recorded(asked: tuple[Trial, ...]) -> tuple[Trial, ...]:
    return _recordings(with_explanations(asked), asked)


def _recordings_of_one_rank(run: "Run") -> tuple[Launch, ...]:
    """Where ranks could not do without communication after all (a model may communicate itself), one recorded
    rank, to hold the recorded ranks against."""
    answered = {result.trial_id for result in run.of_status("ok")}
    recorded = Counter(result.trial_id for result in run.of_status("ok") if records_arrivals(result.trial))
    refused = {r.trial_id: r.trial for r in run.of_status("failed") if has_ablation(r.trial, NO_COMM)}
    launches: dict[tuple[str, int], Launch] = {}
    for trial_id, trial in refused.items():
        normal = trial.replace(**{NO_COMM: False})
        if trial_id not in answered:
            alone = arrivals_of(at_per_rank_batch(normal).on_one_rank())
            for number in range(recorded[arrivals_of(normal).trial_id]):
                launches.setdefault((alone.trial_id, number), Launch(alone, number))
    return tuple(launches.values())


def _wrapped_in_ddp(trial: Trial) -> Trial:
    """The same job on one rank inside DDP, for machines where one rank is all there is."""
    defaults = defaults_of(cards.card("strategies", "ddp"), {"workloads": trial.workload}, trial.device)
    return trial.replace(strategy="ddp", **defaults)
