"""The machine as a probe writes it down, several as one, and number formats that are emulated."""

import dataclasses
import json

from scalescope.experiment.expand import expand
from scalescope.experiment.machine import (
    Gpu,
    Machine,
    PrecisionSupport,
    combined_machine,
    differences,
    emulation_notes,
    emulation_text,
    precisions_text,
)
from scalescope.results.provenance import describe_environment, environment_id
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

BF16 = PrecisionSupport(name="bf16", native=False, slowdown=96.0)
GPU = Gpu(
    index=0,
    name="H200",
    memory_bytes=1,
    uuid="x",
    compute_capability=(9, 0),
    precisions=(PrecisionSupport(name="bf16", native=True),),
)


def test_a_machine_survives_json_and_facts_of_a_newer_probe_are_passed_over() -> None:
    machine = dataclasses.replace(TWO_CORES, gpus=(GPU,), precisions=(BF16,))
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(machine)))) == machine
    assert Machine.from_json({**dataclasses.asdict(machine), "from_the_future": 1}) == machine


def test_a_record_older_than_these_facts_leaves_them_unknown() -> None:
    record = dataclasses.asdict(dataclasses.replace(TWO_CORES, gpus=(GPU,), precisions=(BF16,)))
    for facts in (record, *record["gpus"]):
        facts.pop("precisions")
        facts.pop("compute_capability", None)
    machine = Machine.from_json(record)
    assert (machine.precisions, machine.gpus[0].compute_capability) == ((), None)
    for device in ("cpu", "cuda"):
        assert machine.support_of("bf16", device) == PrecisionSupport(name="bf16")


def test_of_several_gpus_the_worst_counts() -> None:
    old = dataclasses.replace(GPU, precisions=(PrecisionSupport(name="bf16", native=False),))
    machine = dataclasses.replace(TWO_CORES, gpus=(GPU, old))
    assert machine.support_of("bf16", "cuda").emulated
    assert machine.support_of("fp8", "cuda") == PrecisionSupport(name="fp8")


# several machines


_GPU = Gpu(index=0, name="H200", memory_bytes=1, uuid="x")
_LARGE = dataclasses.replace(TWO_CORES, cores=8, gpus=(_GPU,), torch_version="2.7.0", driver_version="570")


def test_several_nodes_give_all_gpus_and_the_cores_of_the_most_crowded() -> None:
    both = combined_machine({"a": _LARGE, "b": TWO_CORES, "c": _LARGE}, {"a": 3, "b": 3, "c": 2})
    assert (both.cores, len(both.gpus), both.ranks_per_node) == (2, 2, 3)
    assert [both.ranks_on_a_host(ranks) for ranks in (1, 2, 8)] == [1, 2, 3]
    machine = combined_machine({"a": _LARGE, "b": _LARGE}, {"a": 6, "b": 2})
    assert (machine.cores, machine.ranks_per_node) == (8, 6)
    assert combined_machine({"a": TWO_CORES}, {"a": 8}) is TWO_CORES
    assert TWO_CORES.ranks_on_a_host(8) == 8


def test_a_gpu_that_two_nodes_see_is_one() -> None:
    def node(uuid: str) -> Machine:
        return dataclasses.replace(_LARGE, gpus=(dataclasses.replace(_GPU, uuid=uuid),))

    def gpus(*uuids: str) -> int:
        nodes = {f"n{number}": node(uuid) for number, uuid in enumerate(uuids)}
        return len(combined_machine(nodes, dict.fromkeys(nodes, 1)).gpus)

    assert gpus("79667e19-89eb", "79667e19-89eb") == 1
    assert gpus("79667e19-89eb", "79667e19-ffd1") == 2
    assert gpus("0", "0") == 2  # an index, which every node counts for itself


def test_differences_name_the_nodes() -> None:
    texts = [difference.text for difference in differences({"a": TWO_CORES, "b": _LARGE, "c": TWO_CORES})]
    assert f"torch: {TWO_CORES.torch_version} on a, c; 2.7.0 on b" in texts
    assert "GPUs: none on a, c; 1 x H200 on b" in texts
    assert "cores: 2 on a, c; 8 on b" in texts
    assert "driver: none on a, c; 570 on b" in texts
    other_host = dataclasses.replace(TWO_CORES, host="other")
    assert differences({"a": TWO_CORES, "b": other_host}) == []


def test_the_environment_holds_every_node() -> None:
    nodes = {"a": TWO_CORES, "b": _LARGE}
    environment = describe_environment(combined_machine(nodes, {"a": 1, "b": 1}), "1", nodes)
    assert environment["nodes"]["b"]["cores"] == 8
    assert len(differences(nodes)) == 4
    alone = describe_environment(TWO_CORES, "1")
    assert list(alone["nodes"]) == [TWO_CORES.host]
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


# emulated formats


EMULATED = PrecisionSupport(name="bf16", native=False, slowdown=96.3)


def with_bf16(support: PrecisionSupport) -> Machine:
    return dataclasses.replace(TWO_CORES, precisions=(support,))


def volta() -> Machine:
    """GPUs with matrix units for fp16 alone."""
    supports = (
        PrecisionSupport(name="tf32", native=False),
        PrecisionSupport(name="bf16", native=False),
        PrecisionSupport(name="fp16", native=True),
    )
    machine = with_gpus(1)
    return dataclasses.replace(
        machine, gpus=tuple(dataclasses.replace(gpu, precisions=supports) for gpu in machine.gpus)
    )


def test_not_native_or_much_slower_is_emulated() -> None:
    for native, slowdown, emulated in (
        (True, 1.8, False),
        (True, 45.0, True),  # instructions that torch does not use
        (True, None, False),
        (False, None, True),
        (False, 1.5, True),  # conversions around fp32: it cannot be faster
        (None, 0.9, False),
        (None, 96.0, True),
        (None, None, False),  # unknown is not a reason to leave anything out
    ):
        assert PrecisionSupport(name="bf16", native=native, slowdown=slowdown).emulated is emulated


def notes(machine: Machine, **texts: str) -> list[str]:
    return list(emulation_notes(expand(ask(**texts), machine).trials, machine))


def test_an_emulated_precision_runs_with_a_note() -> None:
    (note,) = notes(with_bf16(EMULATED), precision="fp32,bf16", optimizer="sgd,adamw")
    assert note == (
        "bf16 is emulated on this processor: a matrix product takes about 96 times as long as in fp32."
    )
    assert notes(with_bf16(EMULATED), precision="fp32") == []
    assert notes(TWO_CORES, precision="bf16") == []
    texts = {"world_size": "2", "strategy": "fsdp", "fsdp_param_dtype": "bf16"}
    assert len(notes(with_bf16(EMULATED), **texts)) == 1
    assert notes(with_bf16(EMULATED), world_size="2", comm_hook="bf16") == []


def test_a_gpu_has_notes_of_its_own() -> None:
    assert notes(volta(), precision="tf32,bf16,fp16") == [
        "tf32 is not available on this GPU: matrix products are computed in fp32.",
        "bf16 is emulated on this GPU, which may take many times as long as fp32.",
    ]
    machine = dataclasses.replace(with_gpus(1), precisions=(EMULATED,))
    assert notes(machine, precision="bf16") == []
    assert len(notes(machine, precision="bf16", device="cpu")) == 1


def test_facts_as_text() -> None:
    native = PrecisionSupport(name="bf16", native=True, slowdown=0.272)
    unknown = PrecisionSupport(name="fp16")
    assert precisions_text((native, unknown)) == "bf16 native (0.27 times as long as fp32), fp16 unknown"
    assert precisions_text((EMULATED,)) == "bf16 emulated (96 times as long as fp32)"
    assert precisions_text(()) == "unknown"
    slow = dataclasses.replace(EMULATED, slowdown=6.04)
    assert emulation_text(slow, "cpu").endswith("a matrix product takes about 6 times as long as in fp32")
