"""Several machines as one, and in what they differ."""

import dataclasses

from scalescope.experiment.machine import Gpu, Machine, PrecisionSupport
from scalescope.experiment.machines.nodes import combined_machine, differences
from scalescope.launch.fake import TWO_CORES
from scalescope.results.provenance import describe_environment, environment_id

_GPU = Gpu(index=0, name="H200", memory_bytes=1, uuid="x")
_LARGE = dataclasses.replace(TWO_CORES, cores=8, gpus=(_GPU,), torch_version="2.7.0", driver_version="570")


def test_one_node_is_itself() -> None:
    assert combined_machine({"a": TWO_CORES}, {"a": 8}) is TWO_CORES
    assert TWO_CORES.ranks_on_a_host(8) == 8


def test_several_nodes_give_all_gpus_and_the_cores_of_the_most_crowded() -> None:
    both = combined_machine({"a": _LARGE, "b": TWO_CORES, "c": _LARGE}, {"a": 3, "b": 3, "c": 2})
    assert (both.cores, len(both.gpus), both.ranks_per_node) == (2, 2, 3)
    assert [both.ranks_on_a_host(ranks) for ranks in (1, 2, 8)] == [1, 2, 3]


def test_a_gpu_that_two_nodes_see_is_one() -> None:
    def node(uuid: str) -> Machine:
        return dataclasses.replace(_LARGE, gpus=(dataclasses.replace(_GPU, uuid=uuid),))

    def gpus(*uuids: str) -> int:
        nodes = {f"n{number}": node(uuid) for number, uuid in enumerate(uuids)}
        return len(combined_machine(nodes, dict.fromkeys(nodes, 1)).gpus)

    assert gpus("79667e19-89eb", "79667e19-89eb") == 1
    assert gpus("79667e19-89eb", "79667e19-ffd1") == 2
    assert gpus("0", "0") == 2  # an index, which every node counts for itself


def test_ranks_dealt_out_unevenly_share_the_cores_of_the_node_with_most() -> None:
    machine = combined_machine({"a": _LARGE, "b": _LARGE}, {"a": 6, "b": 2})
    assert (machine.cores, machine.ranks_per_node) == (8, 6)


def test_equal_nodes_do_not_differ() -> None:
    other_host = dataclasses.replace(TWO_CORES, host="other")
    assert differences({"a": TWO_CORES, "b": other_host}) == []


def test_differences_name_the_nodes() -> None:
    texts = [difference.text for difference in differences({"a": TWO_CORES, "b": _LARGE, "c": TWO_CORES})]
    assert f"torch: {TWO_CORES.torch_version} on a, c; 2.7.0 on b" in texts
    assert "GPUs: none on a, c; 1 x H200 on b" in texts
    assert "cores: 2 on a, c; 8 on b" in texts
    assert "driver: none on a, c; 570 on b" in texts


def test_the_environment_holds_every_node_and_what_differs() -> None:
    nodes = {"a": TWO_CORES, "b": _LARGE}
    environment = describe_environment(combined_machine(nodes, {"a": 1, "b": 1}), "1", nodes)
    assert environment["nodes"]["b"]["cores"] == 8
    assert len(environment["node_differences"]) == 4
    alone = describe_environment(TWO_CORES, "1")
    assert (list(alone["nodes"]), alone["node_differences"]) == ([TWO_CORES.host], [])


def test_several_nodes_are_another_environment_than_one() -> None:
    assert environment_id(
        combined_machine({"a": TWO_CORES, "b": TWO_CORES}, {"a": 1, "b": 1})
    ) != environment_id(TWO_CORES)


def test_nodes_together_compute_as_the_worst_of_them() -> None:
    native = PrecisionSupport(name="bf16", native=True, slowdown=0.4)
    emulated = PrecisionSupport(name="bf16", native=False, slowdown=96.0)
    nodes = {
        "a": dataclasses.replace(TWO_CORES, precisions=(native,)),
        "b": dataclasses.replace(TWO_CORES, precisions=(emulated,)),
    }
    assert combined_machine(nodes, {"a": 1, "b": 1}).precisions == (emulated,)
