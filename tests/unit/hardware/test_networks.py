"""Networks by name: their rates are those of the links they consist of."""

import pytest

from scalescope.hardware.links import network_share, nvlink_rate, pcie_lane_rate
from scalescope.hardware.networks import networks
from scalescope.hardware.published import published_all_reduce

GB = 1e9


@pytest.mark.parametrize(
    ("name", "version", "links"),
    [("nvlink2", 2, 6), ("nvlink3", 3, 12), ("nvlink4", 4, 18), ("nvlink5", 5, 18)],
)
def test_nvlinks_of_a_gpu(name: str, version: int, links: int) -> None:
    rate = nvlink_rate(version, None)
    assert rate is not None
    assert networks()[name].bytes_per_s == pytest.approx(links * rate.reached)


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_sixteen_lanes(generation: int) -> None:
    rate = pcie_lane_rate(generation)
    assert rate is not None
    assert networks()[f"pcie{generation}"].bytes_per_s == pytest.approx(16 * rate.reached)


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [("10gbe", 10), ("25gbe", 25), ("100gbe", 100), ("400gbe", 400), ("hdr", 200), ("ndr", 400)],
)
def test_network_cards(name: str, gigabits: int) -> None:
    share, _ = network_share()
    assert networks()[name].bytes_per_s == pytest.approx(gigabits / 8 * GB * share)


def test_every_network_has_a_source_and_published_systems_exist() -> None:
    systems = {curve.system for curve in published_all_reduce()}
    for network in networks().values():
        assert network.source
        assert not network.published or network.published in systems
        assert list(network.hop_s) == sorted(network.hop_s)
