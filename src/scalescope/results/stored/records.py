"""Parts of a launch that readers use by name: tables and times of ranks, and telemetry.

A launch that is ok has records of all ranks, with the samples that its benchmark takes, and whole tables: a
profile without a gradient would promise a faster step. Other tables and telemetry may be anything.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field, Strict, ValidationError

from scalescope.catalog.cards import names
from scalescope.results.result import RankRecord, Result
from scalescope.results.stored.regular_files import LARGEST_NUMBER
from scalescope.results.stored.validation import problem_of

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
            raise ValueError(f"{name}: a launch that is ok has as many of every rank")
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
        raise ValueError("ranks: a launch that is ok has records of its ranks")
    for name in records[0].samples:
        if name.startswith(_PAIR):
            continue
        match = _COLLECTIVE.fullmatch(name)
        if match is None or match[1] not in names("collectives"):
            raise ValueError(f"{name[:60]}: not a measurement of a collective")
        times = [record.samples.get(name, []) for record in records]
        if len({len(members) for members in times}) > 1 or not all(map(all, times)) or not times[0]:
            raise ValueError(f"{name}: a launch that is ok has as many times above 0 of every rank")
