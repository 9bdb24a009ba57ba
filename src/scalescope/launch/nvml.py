"""NVML: what a GPU says of itself while others use it. The one place that knows the `pynvml` module."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

# Bits of the throttle mask that mean less speed than the clocks allow, by NVML's names.
_SLOWDOWNS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000010: "sync boost",
    0x0000000000000020: "thermal (software)",
    0x0000000000000040: "thermal (hardware)",
    0x0000000000000080: "power brake",
}
_SM = 1  # NVML_CLOCK_SM
_CORE = 0  # NVML_TEMPERATURE_GPU


class Nvml:
    """The GPUs of these ids, readable as long as it is open; a reason in `problem` where they are not."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.problem: str | None = None
        self._module: Any = None
        self._handles: dict[str, Any] = {}
        if not uuids:
            return
        try:
            import pynvml
        except ImportError:
            self.problem = "the module pynvml is missing; pip install nvidia-ml-py brings it"
            return
        try:
            pynvml.nvmlInit()
            self._module = pynvml
            self._handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(_full(uuid)) for uuid in uuids}
        except pynvml.NVMLError as error:
            self.problem = f"NVML says {error}"
            self.close()

    def read(self, uuid: str) -> dict[str, float]:
        """All it tells about a GPU now, in SI units; what a model does not know is left out."""
        handle, module = self._handles.get(uuid), self._module
        if handle is None:
            return {}
        found: dict[str, float] = {}
        for name, ask in self._questions(handle).items():
            with contextlib.suppress(module.NVMLError):
                found[name] = ask()
        return found

    def _questions(self, handle: Any) -> dict[str, Callable[[], float]]:
        module = self._module
        return {
            "utilization": lambda: module.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,
            "memory_used_bytes": lambda: float(module.nvmlDeviceGetMemoryInfo(handle).used),
            "power_w": lambda: module.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "sm_clock_hz": lambda: module.nvmlDeviceGetClockInfo(handle, _SM) * 1e6,
            "temperature_c": lambda: float(module.nvmlDeviceGetTemperature(handle, _CORE)),
            "throttle_mask": lambda: float(module.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }

    def limits(self, uuid: str) -> dict[str, float]:
        """What the readings can be held against."""
        handle, module = self._handles.get(uuid), self._module
        found: dict[str, float] = {}
        if handle is not None:
            with contextlib.suppress(module.NVMLError):
                found["power_limit_w"] = module.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            with contextlib.suppress(module.NVMLError):
                found["sm_clock_limit_hz"] = module.nvmlDeviceGetMaxClockInfo(handle, _SM) * 1e6
        return found

    def close(self) -> None:
        if self._module is not None:
            with contextlib.suppress(self._module.NVMLError):
                self._module.nvmlShutdown()
        self._module = None
        self._handles = {}


def slowdowns(mask: float) -> list[str]:
    """The names of the reasons in a throttle mask."""
    return [name for bit, name in _SLOWDOWNS.items() if int(mask) & bit]


def _full(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
