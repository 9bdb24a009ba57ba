"""The network and the nodes of a simulated cluster."""

import pytest

from scalescope.launch.simulated.cluster.model import ClusterModel, Network

SIZE = 100e6
BARE = Network(fast_latency_s=0.0, card_latency_s=0.0)


def test_a_single_node_uses_only_its_fast_links() -> None:
    model = ClusterModel(network=BARE)
    assert model.transfer_s(SIZE, 8) == pytest.approx(2 * 7 / 8 * SIZE / 200e9)


def test_several_nodes_add_what_their_cards_take() -> None:
    model = ClusterModel(network=BARE)
    between = 2 * 3 / 4 * SIZE / 50e9
    assert model.transfer_s(SIZE, 32) - model.transfer_s(SIZE, 8) == pytest.approx(between)


def test_a_slow_card_slows_the_exchange_between_nodes_by_its_ratio() -> None:
    slow = Network(fast_latency_s=0.0, card_latency_s=0.0, slow_node=2, slow_by=3.0)
    assert slow.between_s(SIZE, 4) == pytest.approx(3.0 * BARE.between_s(SIZE, 4))
    assert slow.between_s(SIZE, 2) == BARE.between_s(SIZE, 2)  # without that node
    model = ClusterModel(network=slow)
    assert model.pair_s(SIZE, 0, 16) == pytest.approx(3.0 * model.pair_s(SIZE, 0, 8))
    assert model.pair_s(SIZE, 16, 17) == model.pair_s(SIZE, 0, 1)  # inside that node


def test_latency_is_what_a_small_exchange_takes() -> None:
    model = ClusterModel(network=Network(fast_latency_s=1e-6, card_latency_s=1e-5))
    assert model.transfer_s(0.0, 32) == pytest.approx(14 * 1e-6 + 4 * 1e-5)


def test_the_machine_has_all_nodes_with_a_gpu_for_every_rank() -> None:
    model = ClusterModel(ranks_per_node=8)
    machine = model.machine(1024)
    assert (len(machine.gpus), machine.ranks_per_node, len(model.hosts(1024))) == (1024, 8, 128)
    assert (model.host_of(7), model.host_of(8)) == ("node0", "node1")
    assert model.machine(4).ranks_per_node is None  # a single node
