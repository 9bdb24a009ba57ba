"""Readings of a GPU through a made-up `pynvml`: units, missing values, and their reasons."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scalescope.launch.telemetry.nvml import Nvml, gpu_sites, slowdowns
from scalescope.results.topology import GpuSite

_MASK = 0x4 | 0x20
_POWER, _UTILIZATION = 0, 1  # NVML_TOTAL_POWER_SAMPLES, NVML_GPU_UTILIZATION_SAMPLES


class FakeError(Exception):
    """What the real module raises for everything it cannot do."""


def _silent(*_: Any) -> Any:
    raise FakeError("Not Supported")


class FakeDriver:
    """A `pynvml` in sys.modules, and what was asked of it; answers can be replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found_by: list[str] = []
        self.clocks: list[int] = []
        self.sensors: list[int] = []
        self.sampled: list[tuple[int, int]] = []
        # What is written down of each kind: microseconds of the wall clock, and a value.
        self.samples: dict[int, list[tuple[int, int]]] = {
            _POWER: [(1_700_000_000_020_000, 412_500), (1_700_000_000_040_000, 87_250)],
            _UTILIZATION: [(1_700_000_000_200_000, 73), (1_700_000_000_400_000, 0)],
        }
        self.opened = 0
        self._module = ModuleType("pynvml")
        self._module.__dict__["NVMLError"] = FakeError
        self.answer("nvmlInit", self._open)
        self.answer("nvmlShutdown", self._close)
        self.answer("nvmlDeviceGetHandleByUUID", self._find)
        self.answer("nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(used=5_000, free=1, total=9))
        self.answer("nvmlDeviceGetClockInfo", self._clock(1_830))
        self.answer("nvmlDeviceGetTemperature", self._sensor)
        self.answer("nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: _MASK)
        self.answer("nvmlDeviceGetEnforcedPowerLimit", lambda handle: 700_000)
        self.answer("nvmlDeviceGetMaxClockInfo", self._clock(1_980))
        self.answer("nvmlDeviceGetSamples", self._written)
        monkeypatch.setitem(sys.modules, "pynvml", self._module)

    def answer(self, name: str, how: Callable[..., Any]) -> None:
        self._module.__dict__[name] = how

    def _open(self) -> None:
        self.opened += 1

    def _close(self) -> None:
        self.opened -= 1

    def _find(self, uuid: str) -> str:
        self.found_by.append(uuid)
        return f"handle of {uuid}"

    def _clock(self, mhz: int) -> Callable[[str, int], int]:
        def read(handle: str, kind: int) -> int:
            self.clocks.append(kind)
            return mhz

        return read

    def _sensor(self, handle: str, kind: int) -> int:
        self.sensors.append(kind)
        return 64

    def _written(self, handle: str, kind: int, since: int) -> tuple[int, list[SimpleNamespace]]:
        self.sampled.append((kind, since))
        if kind not in self.samples:
            raise FakeError("Not Supported")
        return 1, [
            SimpleNamespace(timeStamp=at_us, sampleValue=SimpleNamespace(uiVal=value))
            for at_us, value in self.samples[kind]
        ]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


def test_readings_and_limits_are_in_si_units(driver: FakeDriver) -> None:
    nvml = Nvml(["GPU-a"])
    assert nvml.problem is None
    assert nvml.read("GPU-a") == {
        "memory_used_bytes": 5_000.0,
        "sm_clock_hz": 1.83e9,
        "temperature_c": 64.0,
        "throttle_mask": float(_MASK),
    }
    assert nvml.limits("GPU-a") == {"power_limit_w": 700.0, "sm_clock_limit_hz": 1.98e9}


def test_driver_samples_are_in_si_units_by_the_wall_clock(driver: FakeDriver) -> None:
    history = Nvml(["GPU-a"]).history("GPU-a")
    assert history == {
        "utilization": [(1_700_000_000.2, 0.73), (1_700_000_000.4, 0.0)],
        "power_w": [(1_700_000_000.02, 412.5), (1_700_000_000.04, 87.25)],
    }
    assert sorted(driver.sampled) == [(_POWER, 0), (_UTILIZATION, 0)]  # all that is kept


@pytest.mark.parametrize(("kind", "missing"), [(_POWER, "power_w"), (_UTILIZATION, "utilization")])
def test_a_kind_that_the_driver_writes_nothing_down_of_is_left_out(
    driver: FakeDriver, kind: int, missing: str
) -> None:
    nvml = Nvml(["GPU-a"])
    complete = nvml.history("GPU-a")
    del driver.samples[kind]
    assert nvml.history("GPU-a") == {name: kept for name, kept in complete.items() if name != missing}
    driver.samples.clear()
    assert nvml.history("GPU-a") == {}
    assert nvml.problem is None


def test_clocks_are_those_of_the_multiprocessors_and_the_sensor_is_the_core_s(driver: FakeDriver) -> None:
    nvml = Nvml(["GPU-a"])
    nvml.read("GPU-a")
    nvml.limits("GPU-a")
    assert driver.clocks == [1, 1]  # NVML_CLOCK_SM
    assert driver.sensors == [0]  # NVML_TEMPERATURE_GPU
    assert driver.sampled == []  # the state alone does not ask for what was written down


@pytest.mark.parametrize(
    ("question", "missing"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetClockInfo", "sm_clock_hz"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle_mask"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetMaxClockInfo", "sm_clock_limit_hz"),
    ],
)
def test_a_question_that_a_gpu_does_not_answer_is_left_out(
    driver: FakeDriver, question: str, missing: str
) -> None:
    nvml = Nvml(["GPU-a"])
    complete = nvml.read("GPU-a") | nvml.limits("GPU-a")
    driver.answer(question, _silent)
    assert nvml.read("GPU-a") | nvml.limits("GPU-a") == {
        name: value for name, value in complete.items() if name != missing
    }
    assert nvml.problem is None


def test_a_missing_module_is_a_problem_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails then
    nvml = Nvml(["GPU-a"])
    assert nvml.problem == "the Python module pynvml is missing; pip install nvidia-ml-py installs it"
    assert (nvml.read("GPU-a"), nvml.history("GPU-a"), nvml.limits("GPU-a")) == ({}, {}, {})
    nvml.close()


@pytest.mark.parametrize("question", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_or_gpu_that_does_not_open_is_a_problem_with_its_message(
    driver: FakeDriver, question: str
) -> None:
    driver.answer(question, _silent)
    nvml = Nvml(["GPU-a"])
    assert nvml.problem == "NVML failed: Not Supported"
    assert (nvml.read("GPU-a"), nvml.history("GPU-a"), nvml.limits("GPU-a")) == ({}, {}, {})
    nvml.close()
    assert driver.opened == 0  # what never opened is not closed


def test_without_gpus_the_module_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml([]).problem is None


def test_an_id_gets_the_prefix_that_nvml_knows_it_by(driver: FakeDriver) -> None:
    nvml = Nvml(["1c", "GPU-2d", "MIG-3e"])
    assert driver.found_by == ["GPU-1c", "GPU-2d", "MIG-3e"]
    assert nvml.read("1c") and nvml.history("1c")  # by the name it was given
    assert (nvml.read("GPU-1c"), nvml.history("GPU-1c")) == ({}, {})


def test_a_closed_nvml_reads_nothing_and_closes_once(driver: FakeDriver) -> None:
    nvml = Nvml(["GPU-a"])
    assert driver.opened == 1
    nvml.close()
    nvml.close()
    assert driver.opened == 0
    assert (nvml.read("GPU-a"), nvml.history("GPU-a"), nvml.limits("GPU-a")) == ({}, {}, {})


def test_a_mask_names_all_its_slowdowns_and_nothing_else() -> None:
    names = ["power cap", "hardware slowdown", "sync boost", "thermal (software)", "thermal (hardware)"]
    for bit, name in enumerate([*names, "power brake"], 2):
        assert slowdowns(float(1 << bit)) == [name]
    assert slowdowns(0.0) == []
    assert slowdowns(float(0x01 | 0x02 | 0x100)) == []  # idle, clocks as set, display: no slowdowns
    assert slowdowns(float(0x01 | 0x04 | 0x40)) == ["power cap", "thermal (hardware)"]


def test_processes_are_named_by_their_ids_and_unknown_where_the_driver_does_not_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = FakeDriver(monkeypatch)
    assert Nvml(["a"]).processes("a") is None
    driver.answer(
        "nvmlDeviceGetComputeRunningProcesses",
        lambda handle: [SimpleNamespace(pid=7), SimpleNamespace(pid=9)],
    )
    assert Nvml(["a"]).processes("a") == (7, 9)
    assert Nvml(["a"]).processes("b") is None


def _add_gpus(driver: FakeDriver, *, links: int, version: int, architecture: int) -> None:
    """Two GPUs; the second has no NVLink, and does not answer questions about it."""

    def state(handle: str, link: int) -> int:
        if handle == "gpu 1" or link >= links:
            raise FakeError("Not Supported")
        return 1 if link < links - 1 else 0

    driver.answer("nvmlDeviceGetCount", lambda: 2)
    driver.answer("nvmlDeviceGetHandleByIndex", lambda index: f"gpu {index}")
    driver.answer("nvmlDeviceGetUUID", lambda handle: f"GPU-{handle[-1]}f2e".encode())
    driver.answer("nvmlDeviceGetName", lambda handle: "NVIDIA H100 80GB HBM3")
    driver.answer("nvmlDeviceGetPciInfo", lambda handle: SimpleNamespace(busId=b"00000000:1B:00.0"))
    driver.answer("nvmlDeviceGetNvLinkState", state)
    driver.answer("nvmlDeviceGetNvLinkVersion", lambda handle, link: version)
    driver.answer("nvmlDeviceGetArchitecture", lambda handle: architecture)
    driver.answer("nvmlDeviceGetMaxPcieLinkGeneration", lambda handle: 5)
    driver.answer("nvmlDeviceGetMaxPcieLinkWidth", lambda handle: 16)


def test_where_gpus_sit_and_what_connects_them(driver: FakeDriver) -> None:
    _add_gpus(driver, links=5, version=6, architecture=9)
    first, second = gpu_sites()
    assert first == GpuSite(
        index=0,
        uuid="0f2e",
        name="NVIDIA H100 80GB HBM3",
        pci_bus="0000:1b:00.0",
        nvlink_version=4,
        nvlink_count=4,  # the fifth is there, but not active
        pcie_generation=5,
        pcie_width=16,
    )
    assert (second.nvlink_version, second.nvlink_count) == (None, None)
    assert driver.opened == 0


@pytest.mark.parametrize(
    ("version", "architecture", "generation"),
    [(5, 7, 3), (7, 9, 4), (7, 10, 5), (2, 5, 2), (99, 9, None), (6, 99, 4)],
)
def test_a_generation_of_nvlink_is_not_newer_than_its_gpu(
    driver: FakeDriver, version: int, architecture: int, generation: int | None
) -> None:
    _add_gpus(driver, links=2, version=version, architecture=architecture)
    assert gpu_sites()[0].nvlink_version == generation


def test_a_driver_that_says_little_leaves_the_rest_unknown(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.answer("nvmlDeviceGetCount", lambda: 1)
    driver.answer("nvmlDeviceGetHandleByIndex", lambda index: "gpu")
    assert gpu_sites() == (GpuSite(index=0),)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_sites() == ()
