"""Telemetry of a launch in a few figures; what was not recorded is None."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from scalescope.analysis.statistics import mean_of_known
from scalescope.quantities import percent
from scalescope.results.other_load import HEAT

_OFTEN = 0.1  # of the readings
_FULL = 0.99  # of the clock: not worth a figure
_LARGEST = ("gpu_memory_bytes", "temperature_c")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedGpu:
    """A GPU that something slowed down, and in what share of its readings each reason was there."""

    host: str | None  # None in a run on one host
    uuid: str
    reasons: Mapping[str, float]
    clock_share: float | None = None  # mean clock over the highest that it has

    @property
    def is_hot(self) -> bool:
        """Whether heat or a failing supply slowed it down."""
        return any(name in HEAT for name in self.reasons)

    @property
    def text(self) -> str:
        """`to 62 % of its clock by thermal (hardware) in 80 % of the readings`."""
        clock = self.clock_share
        speed = "" if clock is None or clock >= _FULL else f"to {percent(clock)} of its clock "
        reasons = (f"{name} in {percent(share)} of the readings" for name, share in self.reasons.items())
        return f"{speed}by {' and '.join(reasons)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySummary:
    """Means over readings and GPUs, but for memory and temperature, whose largest value counts."""

    gpu_utilization: float | None = None
    gpu_memory_bytes: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_limit_hz: float | None = None
    temperature_c: float | None = None
    host_utilization: float | None = None
    host_busy_cores: float | None = None
    rank_busy_cores: float | None = None
    slowdowns: tuple[str, ...] = ()  # reasons, of any GPU
    slowed_gpus: tuple[SlowedGpu, ...] = ()
    problem: str | None = None

    @property
    def knows_gpu(self) -> bool:
        return any(figure is not None for figure in (self.gpu_utilization, self.power_w, self.sm_clock_hz))

    @property
    def throttled(self) -> bool:
        """Whether heat or a failing supply slowed a GPU down."""
        return any(name in HEAT for name in self.slowdowns)


def telemetry_of_hosts(telemetry: Mapping[str, Any]) -> dict[str | None, Mapping[str, Any]]:
    """What was sampled on each host; under None on the only one."""
    hosts = telemetry.get("hosts")
    if not isinstance(hosts, Mapping):
        return {None: telemetry}
    return {str(host): sampled for host, sampled in hosts.items() if isinstance(sampled, Mapping)}


def telemetry_summary(telemetry: Mapping[str, Any]) -> TelemetrySummary:
    """The figures of one launch, over all its hosts."""
    by_host = telemetry_of_hosts(telemetry)
    by_gpu = {
        (host, str(uuid)): gpu for host, part in by_host.items() for uuid, gpu in part.get("gpus", {}).items()
    }
    gpus = list(by_gpu.values())
    cpus: list[Mapping[str, Any]] = [part.get("cpu", {}) for part in by_host.values()]
    slowed = tuple(slow for key, gpu in by_gpu.items() if (slow := _slowed(*key, gpu)) is not None)
    problems = [part["gpu_problem"] for part in by_host.values() if part.get("gpu_problem")]
    return TelemetrySummary(
        gpu_utilization=mean_of_known(_all(gpus, "utilization")),
        gpu_memory_bytes=max(_all(gpus, "memory_used_bytes"), default=None),
        power_w=mean_of_known(_all(gpus, "power_w")),
        power_limit_w=mean_of_known(gpu.get("power_limit_w") for gpu in gpus),
        sm_clock_hz=mean_of_known(_all(gpus, "sm_clock_hz")),
        sm_clock_limit_hz=mean_of_known(gpu.get("sm_clock_limit_hz") for gpu in gpus),
        temperature_c=max(_all(gpus, "temperature_c"), default=None),
        host_utilization=mean_of_known(cpu.get("host_utilization") for cpu in cpus),
        host_busy_cores=mean_of_known(cpu.get("host_busy_cores") for cpu in cpus),
        rank_busy_cores=mean_of_known([cores for cpu in cpus for cores in cpu.get("rank_busy_cores") or ()]),
        slowdowns=tuple(dict.fromkeys(name for slow in slowed for name in slow.reasons)),
        slowed_gpus=slowed,
        problem=problems[0] if problems else None,
    )


def over_launches(launches: Sequence[TelemetrySummary]) -> TelemetrySummary:
    """The mean over launches, each figure over the launches that recorded it."""
    figures: dict[str, Any] = {}
    for field in fields(TelemetrySummary):
        values = [getattr(launch, field.name) for launch in launches]
        known = [value for value in values if isinstance(value, int | float)]
        figures[field.name] = max(known, default=None) if field.name in _LARGEST else mean_of_known(known)
    names = dict.fromkeys(name for launch in launches for name in launch.slowdowns)
    problems = [launch.problem for launch in launches if launch.problem is not None]
    return TelemetrySummary(
        **(
            figures
            | {
                "slowdowns": tuple(names),
                "slowed_gpus": _slowed_over_launches(launches),
                "problem": problems[0] if problems else None,
            }
        )
    )


def network_errors(telemetry: Mapping[str, Any]) -> dict[tuple[str | None, str], dict[str, int]]:
    """By how much the error counters of each port grew in a launch: (host, port) → counter → growth."""
    return {
        (host, str(port)): dict(counters)
        for host, part in telemetry_of_hosts(telemetry).items()
        for port, counters in (part.get("infiniband") or {}).items()
    }


def _slowed(host: str | None, uuid: str, gpu: Mapping[str, Any]) -> SlowedGpu | None:
    """What slowed a GPU down often; None where nothing did."""
    reasons = {name: share for name, share in gpu.get("slowdowns", {}).items() if share >= _OFTEN}
    if not reasons:
        return None
    clock, limit = mean_of_known(gpu.get("sm_clock_hz", [])), gpu.get("sm_clock_limit_hz")
    share = clock / limit if clock is not None and limit else None
    return SlowedGpu(host=host, uuid=uuid, reasons=reasons, clock_share=share)


def _slowed_over_launches(launches: Sequence[TelemetrySummary]) -> tuple[SlowedGpu, ...]:
    """Every GPU that was slowed down in a launch; shares are means over all launches."""
    every: dict[tuple[str | None, str], list[SlowedGpu]] = {}
    for launch in launches:
        for slow in launch.slowed_gpus:
            every.setdefault((slow.host, slow.uuid), []).append(slow)
    return tuple(
        SlowedGpu(
            host=host,
            uuid=uuid,
            reasons={
                name: sum(slow.reasons.get(name, 0.0) for slow in slows) / len(launches)
                for name in dict.fromkeys(name for slow in slows for name in slow.reasons)
            },
            clock_share=mean_of_known(slow.clock_share for slow in slows),
        )
        for (host, uuid), slows in every.items()
    )


def _all(gpus: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(value) for gpu in gpus for value in gpu.get(name, [])]
