"""Number formats of the processor and the GPUs: what the system lists, and what a test switches off."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scalescope.errors import BadInput
from scalescope.experiment.machine import Machine
from scalescope.worker.machine import capabilities
from scalescope.worker.machine.capabilities import (
    WITHOUT,
    cpu_native,
    cpu_precisions,
    gpu_precisions,
    switched_off,
)
from scalescope.worker.machine.probe import pci_bus_of, probe

SAPPHIRE_RAPIDS = "flags\t\t: fpu vme avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8\n"
CASCADE_LAKE = "flags\t\t: fpu vme avx2 avx512f avx512_vnni\n"
NEOVERSE_N1 = "Features\t: fp asimd aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\n"
NEOVERSE_V1 = "Features\t: fp asimd fphp asimdhp sve svebf16 i8mm bf16\n"


@pytest.mark.parametrize(
    ("architecture", "text", "bf16", "fp16"),
    [
        ("x86_64", f"model name\t: Intel\n{SAPPHIRE_RAPIDS}", True, True),
        ("x86_64", f"{CASCADE_LAKE}vmx flags\t: amx_bf16\n", False, False),
        ("aarch64", NEOVERSE_N1, False, True),
        ("aarch64", NEOVERSE_V1, True, True),
        ("x86_64", "model name\t: Intel\n", None, None),
        ("ppc64le", "cpu\t\t: POWER9\n", None, None),
    ],
)
def test_instruction_sets(
    architecture: str, text: str, bf16: bool | None, fp16: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_native("bf16", architecture, tmp_path / "cpuinfo") is bf16
    assert cpu_native("fp16", architecture, tmp_path / "cpuinfo") is fp16
    assert cpu_native("bf16", architecture, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ((6, 1), set()),
        ((7, 0), {"fp16"}),
        ((7, 5), {"fp16"}),
        ((8, 0), {"tf32", "bf16", "fp16"}),
        ((8, 9), {"tf32", "bf16", "fp16", "fp8"}),
        ((9, 0), {"tf32", "bf16", "fp16", "fp8"}),
        ((12, 0), {"tf32", "bf16", "fp16", "fp8"}),
    ],
)
def test_formats_of_a_gpu(
    capability: tuple[int, int], native: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WITHOUT, raising=False)
    assert gpu_precisions(None) == ()
    supports = gpu_precisions(capability)
    assert {support.name for support in supports if support.native} == native
    emulated = {support.name for support in supports if support.emulated}
    assert emulated == {"tf32", "bf16", "fp16", "fp8"} - native


def test_formats_are_measured_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WITHOUT, raising=False)
    threads = torch.get_num_threads()
    supports = {support.name: support for support in cpu_precisions()}
    assert set(supports) == {"bf16", "fp16"}
    slowdown = supports["bf16"].slowdown
    assert slowdown is not None and slowdown > 0.0
    assert torch.get_num_threads() == threads


def test_a_format_that_torch_has_no_product_for_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise RuntimeError("addmm not implemented for 'Half'")

    monkeypatch.setattr("scalescope.worker.machine.rates.product_times_s", refuse)
    assert capabilities._slowdown("fp16") is None


def test_a_format_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, "bf16, fp16")
    for support in cpu_precisions():
        assert (support.native, support.slowdown, support.emulated) == (False, None, True)
    assert [support.name for support in gpu_precisions((9, 0)) if support.native] == ["tf32", "fp8"]


def test_what_is_no_format_cannot_be_switched_off() -> None:
    assert switched_off({}) == switched_off({WITHOUT: ""}) == frozenset()
    refusal = f"^{WITHOUT}: bf17 is not one of tf32, bf16, fp16, fp8$"
    with pytest.raises(BadInput, match=refusal):
        switched_off({WITHOUT: "bf17"})


def test_the_probe_writes_them_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.worker.machine.probe._find_gpus", lambda torch: ([], None))
    machine = Machine.from_json(probe())
    off = switched_off(os.environ)
    for name in ("bf16", "fp16"):
        support = machine.support_of(name, "cpu")
        assert support.native is (False if name in off else cpu_native(name))


UUID = "11111111-2222-3333-4444-555555555555"


def test_torch_says_on_which_bus_a_gpu_is() -> None:
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0, uuid=UUID)
    assert pci_bus_of(properties) == "0000:1b:00.0"


def test_where_torch_does_not_the_driver_does(tmp_path: Path) -> None:
    for bus, uuid in (("0000:1b:00.0", "other"), ("0000:9d:00.0", UUID)):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t GPU\nGPU UUID: \t GPU-{uuid}\n")
    assert pci_bus_of(SimpleNamespace(uuid=UUID), tmp_path) == "0000:9d:00.0"
    assert pci_bus_of(SimpleNamespace(uuid="none of them"), tmp_path) is None
    assert pci_bus_of(SimpleNamespace(uuid=UUID), tmp_path / "missing") is None
    assert pci_bus_of(SimpleNamespace()) is None
