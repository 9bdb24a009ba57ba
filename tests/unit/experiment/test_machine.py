"""The machine as a probe writes it down."""

import dataclasses
import json

from scalescope.experiment.machine import Gpu, Machine, PrecisionSupport
from scalescope.launch.fake import TWO_CORES
from tests.builders.requests import with_gpus

BF16 = PrecisionSupport(name="bf16", native=False, slowdown=96.0)
GPU = Gpu(
    index=0,
    name="H200",
    memory_bytes=1,
    uuid="x",
    compute_capability=(9, 0),
    precisions=(PrecisionSupport(name="bf16", native=True),),
)


def test_a_machine_survives_json() -> None:
    machine = with_gpus(2)
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(machine)))) == machine


def test_facts_of_a_newer_probe_are_passed_over() -> None:
    machine = with_gpus(1)
    assert Machine.from_json({**dataclasses.asdict(machine), "from_the_future": 1}) == machine


def test_what_a_machine_computes_in_survives_json() -> None:
    machine = dataclasses.replace(TWO_CORES, gpus=(GPU,), precisions=(BF16,))
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(machine)))) == machine


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
