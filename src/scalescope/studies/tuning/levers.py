"""Which levers apply to a job, their values, and sets of them."""

import contextlib
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.tuning.launches import BASELINE, Combination
from scalescope.analysis.tuning.search import Option
from scalescope.analysis.tuning.step_model import LeverEffect
from scalescope.catalog import cards
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import Change, Lever, Need, Setting, nearest, parse_value, settings_of
from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.command_line import COMMAND, VARY, words_of
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment, check_variable
from scalescope.experiment.explanations import has_loader, single_rank_baseline
from scalescope.experiment.machine import Machine, emulated_in, emulation_text
from scalescope.experiment.trial import Trial, Value
from scalescope.report.tuning.sections import NOW, ScriptArgument
from scalescope.results.stored.files import Unreadable, read_bytes
from scalescope.studies.refusal import refuse_too_large

# ---- Arguments of a training command's own that do what a lever does, by their names


_LARGEST_SCRIPT_BYTES = 1 << 20
_OPTION = re.compile(r"\b(?:add_argument|option)\(\s*((?:[\"']-[\w-]+[\"']\s*,?\s*)+)")
_QUOTED = re.compile(r"[\"'](--[\w-]+)[\"']")
_GLOBAL = re.compile(r"^([a-z]\w*) *=(?!=)", re.MULTILINE)
_SETS_GLOBALS = re.compile(r"\bexec\(|\bglobals\(\)")  # a script whose globals its command line sets
_PARSED_BY_TRAINER = ("HfArgumentParser", "TrainingArguments")
# Names that arguments for a setting have, the most telling first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "compile": ("compile", "torch_compile", "torchcompile", "use_compile"),
    "precision": ("bf16", "amp", "use_amp", "mixed_precision", "precision", "dtype"),
    "fused_optimizer": ("fused", "fused_optimizer", "fused_adam", "fused_adamw", "use_fused"),
    "num_workers": ("num_workers", "workers", "n_workers", "dataloader_num_workers", "loader_workers"),
    "persistent_workers": ("persistent_workers",),
    "prefetch_factor": ("prefetch_factor",),
    "pin_memory": ("pin_memory", "pin_mem"),
    "bucket_cap_mb": ("bucket_cap_mb", "ddp_bucket_cap_mb"),
}
_OF_TRAINER: Mapping[tuple[str, Value], str] = {
    ("compile", "default"): "--torch_compile True",
    ("precision", "bf16"): "--bf16 True",
    ("precision", "tf32"): "--tf32 True",
    ("fused_optimizer", True): "--optim adamw_torch_fused",
    ("persistent_workers", True): "--dataloader_persistent_workers True",
    ("pin_memory", True): "--dataloader_pin_memory True",
}
_NUMBERS_OF_TRAINER = {
    "num_workers": "--dataloader_num_workers",
    "prefetch_factor": "--dataloader_prefetch_factor",
    "bucket_cap_mb": "--ddp_bucket_cap_mb",
}


def script_arguments(command: str, changes: Mapping[str, Value]) -> tuple[ScriptArgument, ...]:
    """The arguments for these settings and values, where the command or its script has some."""
    try:
        words = words_of(command)
    except BadInput:
        return ()
    path = next((word for word in words if word.endswith(".py")), None)
    text = "" if path is None else _text_of(Path(path))
    given = words[words.index(path) + 1 :] if path is not None else words
    found = (_argument(name, value, given, text) for name, value in changes.items())
    return tuple(argument for argument in found if argument is not None)


def _argument(name: str, value: Value, given: Sequence[str], text: str) -> ScriptArgument | None:
    if all(name in text for name in _PARSED_BY_TRAINER):
        number = _NUMBERS_OF_TRAINER.get(name)
        known = _OF_TRAINER.get((name, value)) if number is None else f"{number} {value}"
        if known is not None:
            return ScriptArgument(setting=name, text=known, is_known=True)
    options = {_plain(word): word.partition("=")[0] for word in _declared(text)}
    options |= {_plain(word): word.partition("=")[0] for word in given if word.startswith("--")}
    wanted = next((options[known] for known in _NAMES.get(name, ()) if known in options), None)
    return None if wanted is None else ScriptArgument(setting=name, text=wanted)


def _declared(text: str) -> list[str]:
    """The options that a script's text declares."""
    options = [option for call in _OPTION.findall(text) for option in _QUOTED.findall(call)]
    if _SETS_GLOBALS.search(text):
        options += [f"--{name}" for name in _GLOBAL.findall(text)]
    return options


def _plain(option: str) -> str:
    return option.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")


def _text_of(script: Path) -> str:
    """Nothing where it cannot be read; it is a file that a stored command may name."""
    try:
        return read_bytes(script, _LARGEST_SCRIPT_BYTES).decode("utf-8", "replace")
    except (OSError, Unreadable):
        return ""


# ---- Which settings `tune` moves: values worth trying that apply here, and why the others do not


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
        raise BadInput(f"tune requires a single configuration; these settings give {len(trials)}")
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
        return "is the current setting"
    if candidate.changes == "the job" and not candidate.asked:
        return f"changes the job; --levers {candidate.name}={candidate.value} compares it separately"
    if not typed and _threads(baseline, machine) <= machine.cores < _threads(candidate.trial, machine):
        return f"more threads than the {machine.cores} cores"
    already = emulated_in(baseline, machine)
    emulated = [support for support in emulated_in(candidate.trial, machine) if support not in already]
    if typed or not emulated:
        return None
    reasons = "; ".join(emulation_text(support, candidate.trial.device) for support in emulated)
    return f"{reasons}; --levers {candidate.name}={candidate.value} tries it"


def _too_many_processes(setting: Setting, value: Value, baseline: Trial, machine: Machine) -> str | None:
    """Why this many loader processes are not tried: all ranks of a host share its cores."""
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
            raise BadInput(f"--levers {name}: has no default values to try; give one: {name}=VALUE")
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
    """What a setting does to results; one that is not a lever and not about ranks makes another job."""
    if setting.lever is not None:
        return setting.lever.changes
    return "rounding" if setting.card in (Placement.__name__, baseline.strategy_card.__name__) else "the job"


def why_not(setting: Setting, trial: Trial, machine: Machine) -> str | None:
    """Why a lever does nothing in this trial; None where it may, as with a command before it has run."""
    assert setting.lever is not None
    workload = trial.workload_card
    facts: dict[Need, tuple[bool, str]] = {
        "cpu": (trial.device == "cpu", "is for ranks on the CPU"),
        "cuda": (trial.device == "cuda", "requires a CUDA GPU"),
        "nccl": (trial.backend == "nccl", "the variables worth trying are NCCL's"),
        "ranks": (trial.world_size > 1, "requires more than one rank"),
        "convolutions": (workload.has_convolutions, "the model has no convolutions"),
        "attention": (workload.has_attention, "the model does not use scalescope's attention"),
        "loader": (
            has_loader(trial) or trial.is_command,
            "synthetic batches are already on the device; add --num-workers 0 for a loader",
        ),
        "workers": (
            has_loader(trial) or trial.is_command,  # processes may be another lever's
            "synthetic batches are already on the device; add --num-workers 0 for a loader",
        ),
        "ddp": (trial.is_command, "is for the DDP of a training command"),
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


# ---- Combinations of levers and the trials that they are


class Combinations:
    """The candidates of a search that train the same job, alone and together."""

    def __init__(self, experiment: Experiment, machine: Machine, levers: Levers) -> None:
        self._experiment = experiment
        self._machine = machine
        self.baseline = levers.baseline
        self.candidates = {
            candidate.text: candidate for candidate in levers.candidates if candidate.changes != "the job"
        }
        self._settings = settings_of_trial(levers.baseline)
        self._by_trial: dict[str, Combination | None] = {self.baseline.trial_id: BASELINE}
        self.trial_with = functools.cache(self._trial_with)

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(self._option(text, candidate) for text, candidate in self.candidates.items())

    def _option(self, text: str, candidate: Candidate) -> Option:
        lever = self._settings[candidate.name].lever
        return Option(
            name=text,
            setting=candidate.name,
            asked=candidate.asked,
            in_bundle=lever is not None and candidate.value in lever.in_bundle,
            needs_promise=lever is not None and lever.bundled_if_promising,
            sets_processes=lever is not None and lever.sets_processes,
            compiles=lever is not None and lever.starts_slowly,
            switchable=self._is_switchable(candidate, lever),
        )

    def _is_switchable(self, candidate: Candidate, lever: Lever | None) -> bool:
        """Whether a running process can be moved from what the baseline has to the candidate."""
        if lever is None or isinstance(candidate.value, Mapping):
            return False
        now = self.baseline.settings[candidate.name]
        is_known = now in lever.switches or (now is None and self.baseline.is_command)  # the script's own
        return is_known and candidate.value in lever.switches

    def without_use(self, absent: Mapping[Need, str]) -> dict[str, str]:
        """Candidates that need what is absent and no other brings about, by name, with the reason; not those
        that were asked for."""
        brought = {"workers"} if any(map(self._sets_processes, self.candidates)) else set()
        return {
            text: absent[need]
            for text, candidate in self.candidates.items()
            if not candidate.asked
            for need in self._needs(text)
            if need in absent and need not in brought
        }

    def lacks(self, levers: Combination, absent: Mapping[Need, str]) -> bool:
        """Whether levers need loader processes, and neither the job nor the others have them."""
        needed = any("workers" in self._needs(text) for text in levers)
        return needed and "workers" in absent and not any(map(self._sets_processes, levers))

    def _needs(self, text: str) -> tuple[Need, ...]:
        lever = self._settings[self.candidates[text].name].lever
        return () if lever is None else lever.needs

    def _sets_processes(self, text: str) -> bool:
        lever = self._settings[self.candidates[text].name].lever
        return lever is not None and lever.sets_processes

    def experiment_with(self, levers: Combination) -> Experiment:
        """The request with these levers."""
        chosen = [self.candidates[text] for text in sorted(levers)]
        return with_values(self._experiment, {candidate.name: candidate.value for candidate in chosen})

    def _trial_with(self, levers: Combination) -> Trial | None:
        """The trial with all these levers; None where it cannot be run, or two move the same setting."""
        if len({self.candidates[text].name for text in levers}) < len(levers):
            return None
        try:
            (trial,) = expand(self.experiment_with(levers), self._machine).trials
            if not self._experiment.measuring.allow_oom:
                refuse_too_large((trial,), self._machine)
        except ScalescopeError:
            return None
        return trial

    def can_run(self, levers: Combination) -> bool:
        trial = self.trial_with(levers)
        return trial is not None and (not levers or trial.trial_id != self.baseline.trial_id)

    def of_trial(self, trial: Trial) -> Combination | None:
        """The levers of a trial; None where it is not one of the combinations."""
        if trial.trial_id not in self._by_trial:
            levers = frozenset(
                text
                for text, candidate in self.candidates.items()
                if trial.settings.get(candidate.name, self) == candidate.value
                and self.baseline.settings.get(candidate.name, self) != candidate.value
            )
            same = self.trial_with(levers)
            matches = same is not None and same.trial_id == trial.trial_id
            self._by_trial[trial.trial_id] = levers if matches else None
        return self._by_trial[trial.trial_id]

    def program(self, levers: Combination) -> Combination | None:
        """The levers that decide what is compiled; None where nothing is."""
        values = {
            **self.baseline.settings,
            **{self.candidates[t].name: self.candidates[t].value for t in levers},
        }
        compiles = any(
            setting.lever is not None
            and setting.lever.starts_slowly
            and values.get(name, setting.default) != setting.default
            for name, setting in self._settings.items()
        )
        if not compiles:
            return None
        return frozenset(text for text in levers if self._is_compiled_in(self.candidates[text]))

    def _is_compiled_in(self, candidate: Candidate) -> bool:
        lever = self._settings[candidate.name].lever
        return lever is not None and (lever.starts_slowly or lever.is_compiled_in)

    def usual_cause(self, candidate: Candidate) -> str | None:
        """Why a lever fails where it does, as its card knows."""
        lever = self._settings[candidate.name].lever
        if lever is None or isinstance(candidate.value, Mapping):
            return None
        return lever.fails_where.get(candidate.value)

    def effects(self) -> Mapping[str, LeverEffect]:
        """What each candidate usually does to the parts of a step, as far as its card knows."""
        effects = {}
        for text, candidate in self.candidates.items():
            lever = self._settings[candidate.name].lever
            value = candidate.value if not isinstance(candidate.value, Mapping) else None
            if lever is not None and lever.sets_processes and value is not None:
                effects[text] = LeverEffect(processes=int(value))
                continue
            expected = None if lever is None else lever.expected(value, self.baseline.device)
            if expected is None:
                continue
            name, values = expected.company or ("", ())
            effects[text] = LeverEffect(
                factors=expected.factors,
                company=frozenset(shown(name, value) for value in values),
                together=expected.together,
            )
        return effects
