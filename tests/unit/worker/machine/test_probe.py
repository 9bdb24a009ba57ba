"""What the probe says of a GPU: the PCI bus it is on."""

from pathlib import Path
from types import SimpleNamespace

from scalescope.worker.machine.probe import pci_bus_of

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


def test_where_nobody_says_it_is_unknown(tmp_path: Path) -> None:
    assert pci_bus_of(SimpleNamespace(uuid=UUID), tmp_path / "missing") is None
    assert pci_bus_of(SimpleNamespace()) is None
