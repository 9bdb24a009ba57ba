"""The shape of a launch's telemetry."""

from typing import Any

from scalescope.results.stored.shapes import ANY_KEY, NUMBER, misfit

_GPU = {
    "utilization": [NUMBER],
    "memory_used_bytes": [NUMBER],
    "power_w": [NUMBER],
    "power_limit_w": NUMBER,
    "sm_clock_hz": [NUMBER],
    "sm_clock_limit_hz": NUMBER,
    "temperature_c": [NUMBER],
    "slowdowns": {ANY_KEY: NUMBER},
}
_LOAD = {
    "cores": int,
    "other_cores": NUMBER,
    "stolen_cores": NUMBER,
    "rank_waits": [NUMBER],
    "pressure": NUMBER,
    "load_average": NUMBER,
    "gpu_processes": int,
    "gpu_utilization": NUMBER,
    "gpu_slowed": NUMBER,
    "gpu_clock_share": NUMBER,
}
_HOST: dict[str, Any] = {
    "gpus": {ANY_KEY: _GPU},
    "cpu": {"host_utilization": NUMBER, "rank_busy_cores": [NUMBER]},
    "gpu_problem": str,
    "infiniband": {ANY_KEY: {ANY_KEY: int}},
    "load": _LOAD,
}
_SHAPE: dict[str, Any] = {**_HOST, "hosts": {ANY_KEY: _HOST}}


def telemetry_misfit(telemetry: object) -> str | None:
    """What of a launch's telemetry has another type than its readers expect; None where nothing has."""
    return misfit(telemetry, _SHAPE, "telemetry")
