"""What files of a run folder hold, typed by pydantic."""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, Strict, TypeAdapter, ValidationError

from scalescope.catalog.cards import CHOOSERS, all_settings, card, cards_of_trial, names
from scalescope.catalog.collectives import COLLECTIVES
from scalescope.catalog.setting import Scalar, Setting, check_value, settings_of
from scalescope.errors import BadInput
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result
from scalescope.results.stored import ENVIRONMENT
from scalescope.results.stored.files import LARGEST_NUMBER, read_json, why_unreadable
from scalescope.results.topology import Topology

# ---- Stored data checked by pydantic: which part does not fit, and the data without such parts


T = TypeVar("T")
_LONGEST_NAME = 60
_MOST_PROBLEMS = 10_000
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def problem_of(error: ValidationError, whole: str) -> str:
    """The first part that does not fit, and what was expected; `whole` names what has the parts."""
    return _text(error.errors(include_input=False, include_url=False)[0], whole)


def without_misfits(kind: type[T], value: Any, whole: str, warn: Callable[[str], None]) -> T | None:
    """Take the parts out of a JSON value that do not fit, each told to `warn`; None where nothing is left.

    An object or row without a field that it must have does not fit. `value` itself is changed.
    """
    adapter: TypeAdapter[T] = _adapter(kind)
    is_told = False  # what the second look finds is missing because the first one took it out
    while True:
        try:
            return adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            if error.error_count() > _MOST_PROBLEMS:
                warn(f"{whole}: too much is broken")
                return None
            problems = error.errors(include_input=False, include_url=False, include_context=False)
        places = {_place(value, problem["loc"]): problem for problem in reversed(problems)}
        for place in sorted(places) if not is_told else ():
            warn(_text(places[place], whole))
        is_told = True
        if () in places:
            return None
        for *parents, last in sorted(places, reverse=True):  # members keep their numbers until then
            container = value
            for parent in parents:
                container = container[parent]
            del container[last]


def _place(value: Any, loc: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part that a problem is about; of what is missing, the object that should have it."""
    for depth, name in enumerate(loc):
        try:
            value = value[name]
        except (IndexError, KeyError, TypeError):
            return loc[:depth]
    return loc


def _text(problem: Any, whole: str) -> str:
    where = ".".join(str(name)[:_LONGEST_NAME] for name in problem["loc"])
    return f"{where or whole}: {problem['msg']}"


# ---- environment.json as its readers expect it: what has another type is left out, and named


class _Interface(BaseModel, defer_build=True):
    name: str
    state: str | None = None
    speed_mbit: int | None = None


class _System(BaseModel, defer_build=True):
    interfaces: list[_Interface] | None = None
    topology: Topology | None = None


class _Git(BaseModel, defer_build=True):
    commit: str | None = None
    changed: bool | None = None


class _Environment(BaseModel, defer_build=True):
    """What readers use of the file; it may have more."""

    environment_id: str = ""
    scalescope_version: str = ""
    machine: Machine | None = None
    nodes: dict[str, Machine] = {}
    variables: dict[str, str] = {}
    git: _Git | None = None
    system: _System | None = None
    systems: dict[str, _System] = {}
    starts: list[list[str]] = []


def read_environment(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The environment of a run, empty where there is none, and warnings about what is left out."""
    path = folder / ENVIRONMENT
    stored: Any = read_json(path)
    if stored is None:
        problem = why_unreadable(path)
        return {}, () if problem is None else (problem,)
    warnings: list[str] = []
    if without_misfits(_Environment, stored, "the file", warnings.append) is None:
        stored = {}
    if stored.get("machine") is None:
        stored.pop("machine", None)  # no run stores that it has none
    return stored, tuple(f"{path}: left out: {warning}" for warning in warnings)


# ---- Settings of stored trials: those of their cards, with values that the cards allow, and the id they give


_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "duration": (int, float),
    "bytes": (int,),
    "str": (str,),
    "link": (str,),
}
_LARGEST_NUMBER = 1e18


def check_settings(trial_id: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that no trial has, or that are not those of this id, by a ValueError."""
    _check_text(trial_id, json.dumps(settings))


@functools.lru_cache(maxsize=256)
def _check_text(trial_id: str, text: str) -> None:
    """The same for settings as text: launches of a trial share them, and all are read after every launch."""
    settings: dict[str, Any] = json.loads(text)
    benchmark = settings.get("benchmark")
    if benchmark not in names("benchmarks"):
        raise ValueError("settings.benchmark: not a benchmark of this version")
    known = all_settings(str(benchmark))
    for name, value in settings.items():
        if not _is_allowed(name, value, known.get(name, ())):
            raise ValueError(f"settings.{name[:60]}: not a value that this setting can have")
    try:
        _check_complete(str(benchmark), settings)
        actual = Trial(settings=settings).trial_id
    except (BadInput, TypeError) as error:
        raise ValueError(f"settings: {error}") from None
    if actual != trial_id:
        raise ValueError(
            "trial_id: the settings have another one; the line was changed, or has settings that this "
            "version does not know"
        )


def _is_allowed(name: str, value: Any, versions: tuple[Setting, ...]) -> bool:
    """Whether any card's version of a setting can have the value; of unknown settings any plain value."""
    if name in ("env", "vary"):
        return value is None or _is_text_mapping(value)
    if isinstance(value, int | float) and not abs(value) <= _LARGEST_NUMBER:
        return False
    if not versions or value is None:  # None: a setting that the trial does not have
        return value is None or isinstance(value, bool | int | float | str)
    return any(_fits(setting, value) for setting in versions)


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in (*value, *value.values()))


def _fits(setting: Setting, value: Any) -> bool:
    scalar: Scalar = value
    if isinstance(value, str) and value in setting.words:
        return True
    if not isinstance(value, _TYPES[setting.kind]) or (isinstance(value, bool) and setting.kind != "bool"):
        return False
    try:
        check_value(setting, scalar, "")
    except BadInput:
        return False
    return True


def _check_complete(benchmark: str, settings: Mapping[str, Any]) -> None:
    """Refuse a trial that lacks a setting of its cards, except those that a command decides."""
    selects = card("benchmarks", benchmark).selects
    selection = {kind: str(settings.get(name)) for kind, name in CHOOSERS.items() if kind in selects}
    decided = card("workloads", selection["workloads"]).decides if selection else ()
    for owner in cards_of_trial(benchmark, selection):
        for setting in settings_of(owner):
            may_be_none = setting.optional or setting.default is None
            if setting.name not in decided and (
                setting.name not in settings or (settings[setting.name] is None and not may_be_none)
            ):
                raise ValueError(f"settings.{setting.name}: missing; a version without this setting wrote it")


# ---- Parts of a launch that readers use by name: tables and times of ranks, and telemetry


_PAIR = "pair/"  # samples that only the two ranks of a pair have
_COLLECTIVE = re.compile(r"([a-z_]+)/(in|out)/([0-9]{1,18})")
# Samples that are looked at step by step over all ranks.
_PER_STEP = ("step_time_s", "loss", "recorded_step_time_s")
_PROFILE = "profile/"  # counters of the profile of one rank

_Text = Annotated[str, Strict()]
_Whole = Annotated[int, Strict(), Field(ge=-int(LARGEST_NUMBER), le=int(LARGEST_NUMBER))]
_Number = Annotated[float, Strict(), Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False)]
_Count = Annotated[int, Strict(), Field(ge=0)]
_Amount = Annotated[float, Strict(), Field(ge=0)]


class _Gradient(BaseModel):
    parameter: _Count
    size_bytes: _Count
    ready_s: _Amount


class _Unit(BaseModel):
    name: _Text
    parameter_bytes: _Count
    forward_s: _Amount
    backward_s: _Amount
    activation_bytes: _Count


class _Synchronization(BaseModel):
    file: _Text
    line: _Count
    per_step: _Amount


class _Tables(BaseModel):
    gradients: list[_Gradient] = []
    units: list[_Unit] = []
    synchronizations: list[_Synchronization] = []


class _Gpu(BaseModel):
    utilization: list[_Number] = []
    memory_used_bytes: list[_Number] = []
    power_w: list[_Number] = []
    power_limit_w: _Number = 0.0
    sm_clock_hz: list[_Number] = []
    sm_clock_limit_hz: _Number = 0.0
    temperature_c: list[_Number] = []
    slowdowns: dict[str, _Number] = {}


class _Cpu(BaseModel):
    host_utilization: _Number = 0.0
    host_busy_cores: _Number = 0.0
    rank_busy_cores: list[_Number] = []


class _Load(BaseModel):
    cores: _Whole = 0
    other_cores: _Number = 0.0
    stolen_cores: _Number = 0.0
    rank_waits: list[_Number] = []
    pressure: _Number = 0.0
    load_average: _Number = 0.0
    gpu_processes: _Whole = 0
    gpu_utilization: _Number = 0.0
    gpu_slowed: _Number = 0.0
    gpu_clock_share: _Number = 0.0


class _Host(BaseModel):
    gpus: dict[str, _Gpu] = {}
    cpu: _Cpu | None = None
    gpu_problem: _Text = ""
    infiniband: dict[str, dict[str, _Whole]] = {}
    load: _Load | None = None


class _Telemetry(_Host):
    hosts: dict[str, _Host] = {}


def check_records(result: Result) -> None:
    """Refuse what no launch has, by a ValueError."""
    _check(_Telemetry, result.telemetry, "telemetry")
    if result.status != "ok":
        return
    ranks = [record.rank for record in result.ranks]
    if sorted(ranks) != list(range(len(ranks))):
        raise ValueError("ranks: not numbered from 0")
    for name in _PER_STEP:
        if name == "loss" and result.trial.is_command:
            continue  # of a pipeline only the last rank has one, and each ends where it is not finite
        if len({len(record.samples.get(name, ())) for record in result.ranks}) > 1:
            raise ValueError(f"{name}: a successful launch has the same number for every rank")
    for record in result.ranks:
        _check(_Tables, record.tables, f"rank {record.rank}")
        for name, value in record.counters.items():
            if name.startswith(_PROFILE) and name.endswith("_s") and not _is_time(value):
                raise ValueError(f"rank {record.rank}: {name}: not a time")
    if result.settings.get("benchmark") == "comm":
        _check_collectives(result.ranks)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _check(kind: type[BaseModel], value: object, whole: str) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{whole}: {problem_of(error, 'all')}") from None


def _check_collectives(records: Sequence[RankRecord]) -> None:
    if not records:
        raise ValueError("ranks: a successful launch has records of its ranks")
    for name in records[0].samples:
        if name.startswith(_PAIR):
            continue
        match = _COLLECTIVE.fullmatch(name)
        if match is None or match[1] not in COLLECTIVES:
            raise ValueError(f"{name[:60]}: not a measurement of a collective")
        times = [record.samples.get(name, []) for record in records]
        if len({len(members) for members in times}) > 1 or not all(map(all, times)) or not times[0]:
            raise ValueError(
                f"{name}: a successful launch has the same number of positive times for every rank"
            )
