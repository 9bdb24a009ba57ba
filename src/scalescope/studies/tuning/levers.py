"""Which settings `tune` moves: values worth trying that apply here, and why the others do not."""

import contextlib
import dataclasses
import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalescope.catalog import cards
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import Change, Need, Setting, nearest, parse_value, settings_of
from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.ablations import has_loader, single_rank_baseline
from scalescope.experiment.command_line import COMMAND, VARY
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment, check_variable
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.emulation import emulated_in, emulation_text
from scalescope.experiment.trial import Trial, Value
from scalescope.report.tuning.tuning import NOW
from scalescope.studies.refusal import refuse_too_large

ALL = "all"
KEEP_NUMERICS = "--keep-numerics"  # the reason for what that flag leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One setting at one other value."""

    name: str
    value: Value
    trial: Trial
    changes: Change
    asked: bool = False  # by its name: tried whatever it promises
    why_not_alone: str | None = None  # where it needs another lever

    @property
    def text(self) -> str:
        return shown(self.name, self.value)


def shown(name: str, value: Value) -> str:
    """A setting at a value, as a person reads it."""
    if isinstance(value, Mapping):
        return f"{name} {' '.join(f'{variable}={text}' for variable, text in value.items())}"
    return f"{name} {'none' if value is None else value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inapplicable:
    """A lever, or one value of it, that does nothing or cannot run here."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What will be tried, and what will not be and why."""

    baseline: Trial
    candidates: tuple[Candidate, ...]
    inapplicable: tuple[Inapplicable, ...]


def find_levers(
    experiment: Experiment, machine: Machine, asked: Sequence[str], *, keep_numerics: bool = False
) -> Levers:
    """The candidates of `asked` names (or name=value, or all) around the one trial of `experiment`.

    `keep_numerics` leaves out whatever may change results, also where it was asked for.
    """
    trials = expand(experiment, machine).trials
    if len(trials) != 1:
        raise BadInput(f"tune starts from one configuration, these settings make {len(trials)}")
    baseline = trials[0]
    _refuse_too_large(baseline, experiment, machine)
    candidates: dict[str, Candidate] = {}
    inapplicable: list[Inapplicable] = []
    in_company: list[tuple[Setting, Value, str]] = []  # what cannot run alone, and why
    for setting, values, left_out in _wanted(baseline, asked):
        typed = left_out is None  # a value given by name is tried, unless it cannot run at all
        reason = why_not(setting, baseline, machine) if setting.lever and not typed else None
        if reason is not None:
            inapplicable.append(Inapplicable(text=setting.name, reason=reason))
            continue
        if keep_numerics and _changes(setting, baseline) != "nothing":
            inapplicable.append(Inapplicable(text=setting.name, reason=KEEP_NUMERICS))
            continue
        if not values and not left_out:
            inapplicable.append(Inapplicable(text=setting.name, reason="has no other value worth trying"))
        for value, why in (left_out or {}).items():
            hint = f"{why}; --levers {setting.name}{'' if value is True else f'={value}'} tries it"
            inapplicable.append(Inapplicable(text=shown(setting.name, value), reason=hint))
        for value in values:
            try:
                candidate = _candidate(experiment, machine, baseline, setting, value)
                candidate = dataclasses.replace(candidate, asked=left_out is None or not _is_all(asked))
            except ScalescopeError as error:
                inapplicable.append(Inapplicable(text=shown(setting.name, value), reason=str(error)))
                if not typed:
                    in_company.append((setting, value, str(error)))
                continue
            reason = _why_not_worth_trying(candidate, baseline, machine, typed=typed)
            if keep_numerics and candidate.changes != "nothing":  # as it turned out: a pipeline's batch
                reason = KEEP_NUMERICS
            if reason is None and not typed:
                reason = _too_many_processes(setting, value, baseline, machine)
            if reason is not None:
                inapplicable.append(Inapplicable(text=candidate.text, reason=reason))
            else:
                candidates.setdefault(candidate.trial.trial_id, candidate)
    bundle = _bundle(candidates.values(), baseline)
    for setting, value, why in in_company:
        with contextlib.suppress(ScalescopeError):
            candidate = _candidate(experiment, machine, baseline, setting, value, bundle)
            candidate = dataclasses.replace(candidate, why_not_alone=why)
            if candidate.changes != "the job":
                candidates.setdefault(candidate.trial.trial_id, candidate)
    tried = {candidate.text for candidate in candidates.values()}
    return Levers(
        baseline=baseline,
        candidates=tuple(candidates.values()),
        inapplicable=tuple(lever for lever in inapplicable if lever.text not in tried),
    )


def _bundle(candidates: Iterable[Candidate], baseline: Trial) -> dict[str, Value]:
    """The first values of candidates that are tried together."""
    known = settings_of_trial(baseline)
    bundle: dict[str, Value] = {}
    for candidate in candidates:
        lever = known[candidate.name].lever
        if lever is not None and candidate.value in lever.in_bundle:
            bundle.setdefault(candidate.name, candidate.value)
    return bundle


def _is_all(asked: Sequence[str]) -> bool:
    return ALL in asked


def _refuse_too_large(trial: Trial, experiment: Experiment, machine: Machine) -> None:
    if not experiment.measuring.allow_oom:
        refuse_too_large((trial,), machine)


def _why_not_worth_trying(
    candidate: Candidate, baseline: Trial, machine: Machine, *, typed: bool
) -> str | None:
    """Why a candidate that could run is left out: nothing new, another job, or slow for a known reason."""
    if candidate.trial.trial_id == baseline.trial_id:
        return "is what the baseline does"
    if candidate.changes == "the job" and not candidate.asked:
        return f"changes the job; --levers {candidate.name}={candidate.value} compares it apart"
    if not typed and _threads(baseline, machine) <= machine.cores < _threads(candidate.trial, machine):
        return f"more threads than the {machine.cores} cores"
    already = emulated_in(baseline, machine)
    emulated = [support for support in emulated_in(candidate.trial, machine) if support not in already]
    if typed or not emulated:
        return None
    reasons = "; ".join(emulation_text(support, candidate.trial.device) for support in emulated)
    return f"{reasons}; --levers {candidate.name}={candidate.value} tries it"


def _too_many_processes(setting: Setting, value: Value, baseline: Trial, machine: Machine) -> str | None:
    """Why so many loader processes are not tried: all ranks of a host share its cores."""
    if setting.lever is None or not setting.lever.sets_processes or not isinstance(value, int):
        return None
    ranks = baseline.world_size if machine.ranks_per_node is None else machine.ranks_per_node
    return f"more processes than the {machine.cores} cores" if value * ranks > machine.cores else None


def _wanted(
    baseline: Trial, asked: Sequence[str]
) -> Iterator[tuple[Setting, tuple[Value, ...], Mapping[Value, str] | None]]:
    """(setting, values to try, values left out with the reason) of what was asked for; None: it was typed."""
    known = settings_of_trial(baseline)
    for word in asked:
        name, separator, text = word.partition("=")
        if word == ALL:
            for setting in known.values():
                if setting.lever is not None and setting.lever.changes != "the job":
                    values = tried_values(setting, baseline)
                    left_out = {
                        value: why for value, why in setting.lever.on_request.items() if value in values
                    }
                    yield setting, tuple(value for value in values if value not in list(left_out)), left_out
        elif name not in known:
            levers = [lever for lever, setting in known.items() if setting.lever]
            raise BadInput(
                f"--levers: this configuration has no setting {name!r}; levers here: "
                f"{', '.join(sorted(levers))}{nearest(name, known)}"
            )
        elif separator:
            yield known[name], (_read(known[name], text, baseline),), None
        elif known[name].lever is None:
            raise BadInput(f"--levers {name}: it lists no values worth trying; give one: {name}=VALUE")
        else:
            yield known[name], tried_values(known[name], baseline), {}


def _read(setting: Setting, text: str, baseline: Trial) -> Value:
    """A value as typed after --levers NAME=."""
    if setting.kind != "env":
        return parse_value(setting, text, f"--levers {setting.name}")
    name, separator, value = text.partition("=")
    if not separator:
        raise BadInput(f"--levers env: expected env=NAME=VALUE, got {text!r}")
    check_variable(name, value, "--levers env")
    return _with_variable(baseline, name, value)


def _with_variable(baseline: Trial, name: str, value: str) -> dict[str, str]:
    """The baseline's environment with one variable more, or other."""
    return {**baseline.env, name: value}


def settings_of_trial(trial: Trial) -> dict[str, Setting]:
    """All settings a person can give of the cards that make up a trial, by name."""
    selection = {
        kind: str(trial.settings[name])
        for kind, name in (("workloads", "workload"), ("data", "data"), ("strategies", "strategy"))
    }
    owners = cards.cards_of_trial(trial.benchmark, selection)
    settings = {setting.name: setting for owner in owners for setting in settings_of(owner)}
    fixed = {*trial.workload_card.decides, *(("workload", COMMAND, VARY) if trial.is_command else ())}
    return {name: setting for name, setting in settings.items() if not setting.internal and name not in fixed}


def tried_values(setting: Setting, baseline: Trial) -> tuple[Value, ...]:
    """The values of a lever that differ from the baseline's; multiples are of the baseline's own."""
    assert setting.lever is not None
    now = baseline.settings[setting.name]
    scaled = tuple(int(now * times) for times in setting.lever.multiples) if now else ()
    tries: tuple[Value, ...] = setting.lever.tries_on(baseline.device)
    if setting.kind == "env":
        tries = tuple(_with_variable(baseline, *str(text).split("=", 1)) for text in tries)
    return tuple(
        value
        for value in (*tries, *(value for value in scaled if value and value not in tries))
        if value != now
    )


def with_values(experiment: Experiment, values: Mapping[str, Value]) -> Experiment:
    """The request with settings moved; another strategy leaves behind what belongs to the one before.

    The file of a run spells out every setting, also those that only the strategy it had knows.
    """
    kept = experiment.settings
    known = {
        name: {setting.name for setting in settings_of(cards.card("strategies", name))}
        for name in cards.names("strategies")
    }
    if values.get("strategy") in known:
        foreign = set().union(*known.values()) - known[values["strategy"]]
        kept = {name: given for name, given in kept.items() if name not in foreign}
    moved = {name: (value,) for name, value in values.items()}
    return dataclasses.replace(experiment, settings={**kept, **moved})


def _candidate(
    experiment: Experiment,
    machine: Machine,
    baseline: Trial,
    setting: Setting,
    value: Value,
    company: Mapping[str, Value] | None = None,
) -> Candidate:
    """A candidate as it runs alone, or in the company that it needs."""
    (trial,) = expand(with_values(experiment, {**(company or {}), setting.name: value}), machine).trials
    _refuse_too_large(trial, experiment, machine)
    changes = _changes(setting, baseline)
    if trial.samples_per_step != baseline.samples_per_step:  # a pipeline's ranks share one batch
        changes = "the job"
    return Candidate(name=setting.name, value=value, trial=trial, changes=changes)


def _changes(setting: Setting, baseline: Trial) -> Change:
    """What a setting does to results; one that is no lever and no matter of ranks is another job."""
    if setting.lever is not None:
        return setting.lever.changes
    return "rounding" if setting.card in (Placement.__name__, baseline.strategy_card.__name__) else "the job"


def why_not(setting: Setting, trial: Trial, machine: Machine) -> str | None:
    """Why a lever does nothing in this trial; None where it may, as with a command before it has run."""
    assert setting.lever is not None
    workload = trial.workload_card
    facts: dict[Need, tuple[bool, str]] = {
        "cpu": (trial.device == "cpu", "is about ranks on the CPU"),
        "cuda": (trial.device == "cuda", "requires a CUDA GPU"),
        "nccl": (trial.backend == "nccl", "the variables worth trying are NCCL's"),
        "ranks": (trial.world_size > 1, "requires more than one rank"),
        "convolutions": (workload.has_convolutions, "the model has no convolutions"),
        "attention": (workload.has_attention, "the model does not use our attention"),
        "loader": (
            has_loader(trial) or trial.is_command,
            "synthetic batches are on the device already; add --num-workers 0 for a loader",
        ),
        "workers": (
            has_loader(trial) or trial.is_command,  # processes may be another lever's
            "synthetic batches are on the device already; add --num-workers 0 for a loader",
        ),
        "ddp": (trial.is_command, "is an argument of the DDP of a command"),
        "torchao": (importlib.util.find_spec("torchao") is not None, "requires torchao: not installed"),
    }
    return next((reason for need in setting.lever.needs for met, reason in (facts[need],) if not met), None)


def _threads(trial: Trial, machine: Machine) -> int:
    """The threads of all ranks of a host."""
    ranks = trial.world_size if machine.ranks_per_node is None else machine.ranks_per_node
    return int(trial.threads_per_rank) * ranks


def other_jobs(levers: Levers, failed: Collection[str] = ()) -> dict[str, tuple[Trial, Trial]]:
    """The baseline and every other job, each on all ranks and on one: how they scale compares them."""
    jobs = [candidate for candidate in levers.candidates if candidate.changes == "the job"]
    wanted = {job.text: job.trial for job in jobs if job.trial.trial_id not in failed}
    if not wanted:
        return {}
    wanted[NOW] = levers.baseline
    if levers.baseline.world_size == 1:
        return {name: (trial, trial) for name, trial in wanted.items()}
    return {name: (trial, single_rank_baseline(trial)) for name, trial in wanted.items()}
