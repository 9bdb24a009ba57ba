"""NVML: readings of a GPU while others use it. The only module that knows `pynvml`."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from scalescope.results.topology import GpuSite, plain_uuid

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
_POWER = 0  # NVML_TOTAL_POWER_SAMPLES
_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_LINKS = range(18)  # NVML_NVLINK_MAX_LINKS
# nvmlNvlinkVersion_t counts revisions: 2.0, 2.2, 3.0, 3.1 are 2, 3, 4, 5.
_NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
# The newest NVLink of an architecture (nvmlDeviceArchitecture_t): drivers report 5.0 for some Hopper GPUs.
_NEWEST_NVLINK = {4: 1, 5: 2, 6: 2, 7: 3, 8: 4, 9: 4, 10: 5}
_READ_ERRORS = (
    AttributeError,
    OSError,
)  # a module or a library that lacks something: no reason to stop measuring
T = TypeVar("T")


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
            self.problem = "the Python module pynvml is missing; pip install nvidia-ml-py installs it"
            return
        try:
            pynvml.nvmlInit()
            self._module = pynvml
            self._handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(_full(uuid)) for uuid in uuids}
        except (pynvml.NVMLError, *_READ_ERRORS) as error:
            self.problem = f"NVML failed: {error}"
            self.close()

    def read(self, uuid: str) -> dict[str, float]:
        """The readings of a GPU now, in SI units; what a model does not support is left out.

        A reading takes up to half a millisecond, and may delay a process that launches kernels meanwhile.
        """
        handle, module = self._handles.get(uuid), self._module
        if handle is None:
            return {}
        readings = self._readings(
            {
                "memory_used_bytes": lambda: float(module.nvmlDeviceGetMemoryInfo(handle).used),
                "sm_clock_hz": lambda: module.nvmlDeviceGetClockInfo(handle, _SM) * 1e6,
                "temperature_c": lambda: float(module.nvmlDeviceGetTemperature(handle, _CORE)),
                "throttle_mask": lambda: float(module.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            }
        )
        if not readings:  # a GPU may lack one reading or another; one that has none is lost
            self.problem = self.problem or f"NVML no longer reports anything about GPU {uuid}"
        return readings

    def processes(self, uuid: str) -> tuple[int, ...] | None:
        """Ids of the processes that compute on a GPU; None where the driver does not show them."""
        handle, module = self._handles.get(uuid), self._module
        if handle is None:
            return None
        listed = self._readings({"processes": lambda: module.nvmlDeviceGetComputeRunningProcesses(handle)})
        return tuple(process.pid for process in listed["processes"]) if listed else None

    def history(self, uuid: str) -> dict[str, list[tuple[float, float]]]:
        """(wall time in s, value) of utilisation and power, as the driver itself wrote them down lately.

        An H200 keeps 14 s of utilisation, every 0.2 s, and 2.4 s of power, every 0.02 s.
        """
        handle, module = self._handles.get(uuid), self._module
        if handle is None:
            return {}

        def kept(kind: int, unit: float) -> list[tuple[float, float]]:
            _, samples = module.nvmlDeviceGetSamples(handle, kind, 0)
            return [(sample.timeStamp / 1e6, sample.sampleValue.uiVal * unit) for sample in samples]

        return self._readings(
            {"utilization": lambda: kept(_UTILIZATION, 0.01), "power_w": lambda: kept(_POWER, 1e-3)}
        )

    def _readings(self, questions: dict[str, Callable[[], T]]) -> dict[str, T]:
        answers: dict[str, T] = {}
        for name, ask in questions.items():
            with contextlib.suppress(self._module.NVMLError, *_READ_ERRORS):
                answers[name] = ask()
        return answers

    def limits(self, uuid: str) -> dict[str, float]:
        """What the readings can be held against."""
        handle, module = self._handles.get(uuid), self._module
        limits: dict[str, float] = {}
        if handle is not None:
            with contextlib.suppress(module.NVMLError, *_READ_ERRORS):
                limits["power_limit_w"] = module.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            with contextlib.suppress(module.NVMLError, *_READ_ERRORS):
                limits["sm_clock_limit_hz"] = module.nvmlDeviceGetMaxClockInfo(handle, _SM) * 1e6
        return limits

    def close(self) -> None:
        if self._module is not None:
            with contextlib.suppress(self._module.NVMLError):
                self._module.nvmlShutdown()
        self._module = None
        self._handles = {}


def gpu_totals() -> list[tuple[str, str, int]] | None:
    """(uuid, name, bytes) of every GPU of the host; None where NVML does not say."""

    def total(module: Any, handle: Any, index: int) -> tuple[str, str, int]:
        uuid, name = module.nvmlDeviceGetUUID(handle), module.nvmlDeviceGetName(handle)
        return _text(uuid), _text(name), int(module.nvmlDeviceGetMemoryInfo(handle).total)

    return _of_every_gpu(total)


def gpu_sites() -> tuple[GpuSite, ...]:
    """Where every GPU of the host sits and what connects it; what the driver does not say is None."""
    return tuple(_of_every_gpu(_site) or ())


def _site(module: Any, handle: Any, index: int) -> GpuSite:
    def ask(question: Callable[[], T]) -> T | None:
        with contextlib.suppress(module.NVMLError, *_READ_ERRORS):
            return question()
        return None

    bus = ask(lambda: _text(module.nvmlDeviceGetPciInfo(handle).busId))

    def is_up(link: int) -> bool:
        return bool(module.nvmlDeviceGetNvLinkState(handle, link))

    active = [ask(partial(is_up, link)) for link in _LINKS]
    links = [link for link, is_active in zip(_LINKS, active, strict=True) if is_active]
    return GpuSite(
        index=index,
        uuid=plain_uuid(ask(lambda: _text(module.nvmlDeviceGetUUID(handle)))) or None,
        name=ask(lambda: _text(module.nvmlDeviceGetName(handle))),
        pci_bus=None if bus is None else bus.lower()[-12:],  # sysfs has four digits of the domain, NVML eight
        nvlink_version=_nvlink_generation(
            ask(lambda: int(module.nvmlDeviceGetNvLinkVersion(handle, links[0]))) if links else None,
            ask(lambda: int(module.nvmlDeviceGetArchitecture(handle))),
        ),
        nvlink_count=None if set(active) == {None} else len(links),  # a GPU without NVLink does not answer
        pcie_generation=ask(lambda: int(module.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        pcie_width=ask(lambda: int(module.nvmlDeviceGetMaxPcieLinkWidth(handle))),
    )


def _nvlink_generation(version: int | None, architecture: int | None) -> int | None:
    generation = None if version is None else _NVLINK_GENERATIONS.get(version)
    newest = None if architecture is None else _NEWEST_NVLINK.get(architecture)
    return generation if generation is None or newest is None else min(generation, newest)


def _of_every_gpu(ask: Callable[[Any, Any, int], T]) -> list[T] | None:
    """The answers of all GPUs of the host; None where NVML does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, *_READ_ERRORS):
        return None
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        return [ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index), index) for index in range(count)]
    except (pynvml.NVMLError, *_READ_ERRORS):
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def slowdowns(mask: float) -> list[str]:
    """The names of the reasons in a throttle mask."""
    return [name for bit, name in _SLOWDOWNS.items() if int(mask) & bit]


def _full(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
