"""Telemetry of a launch in a few figures; what was not recorded is None."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

# Reasons that make a GPU slower from one minute to the next; a power cap under full load does not vary.
_HOT = ("thermal (software)", "thermal (hardware)", "hardware slowdown", "power brake")
_OFTEN = 0.1  # of the readings
_LARGEST = ("gpu_memory_bytes", "temperature_c")


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
    rank_busy_cores: float | None = None
    slowdowns: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def knows_gpu(self) -> bool:
        return any(figure is not None for figure in (self.gpu_utilization, self.power_w, self.sm_clock_hz))

    @property
    def throttled(self) -> bool:
        """Whether heat or a failing supply slowed a GPU down."""
        return any(name in _HOT for name in self.slowdowns)


def telemetry_summary(telemetry: dict[str, Any]) -> TelemetrySummary:
    """The figures of one launch."""
    gpus: list[dict[str, Any]] = list(telemetry.get("gpus", {}).values())
    cpu: dict[str, Any] = telemetry.get("cpu", {})
    cores = cpu.get("rank_busy_cores")
    return TelemetrySummary(
        gpu_utilization=_mean(_all(gpus, "utilization")),
        gpu_memory_bytes=max(_all(gpus, "memory_used_bytes"), default=None),
        power_w=_mean(_all(gpus, "power_w")),
        power_limit_w=_mean([gpu["power_limit_w"] for gpu in gpus if "power_limit_w" in gpu]),
        sm_clock_hz=_mean(_all(gpus, "sm_clock_hz")),
        sm_clock_limit_hz=_mean([gpu["sm_clock_limit_hz"] for gpu in gpus if "sm_clock_limit_hz" in gpu]),
        temperature_c=max(_all(gpus, "temperature_c"), default=None),
        host_utilization=cpu.get("host_utilization"),
        rank_busy_cores=_mean(cores) if cores else None,
        slowdowns=_often(gpus),
        problem=telemetry.get("gpu_problem"),
    )


def over_launches(launches: Sequence[TelemetrySummary]) -> TelemetrySummary:
    """The mean over launches, each figure over the launches that recorded it."""
    figures: dict[str, Any] = {}
    for field in fields(TelemetrySummary):
        values = [getattr(launch, field.name) for launch in launches]
        known = [value for value in values if isinstance(value, int | float)]
        figures[field.name] = max(known, default=None) if field.name in _LARGEST else _mean(known)
    names = dict.fromkeys(name for launch in launches for name in launch.slowdowns)
    problems = [launch.problem for launch in launches if launch.problem is not None]
    return TelemetrySummary(
        **(figures | {"slowdowns": tuple(names), "problem": problems[0] if problems else None})
    )


def _often(gpus: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    shares = [gpu.get("slowdowns", {}) for gpu in gpus]
    return tuple(
        dict.fromkeys(name for reasons in shares for name, share in reasons.items() if share >= _OFTEN)
    )


def _all(gpus: Iterable[dict[str, Any]], name: str) -> list[float]:
    return [float(value) for gpu in gpus for value in gpu.get(name, [])]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
