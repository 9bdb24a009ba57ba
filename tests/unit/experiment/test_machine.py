"""The machine as a probe writes it down."""

import dataclasses
import json

from scalescope.experiment.machine import Machine

from .asking import with_gpus


def test_a_machine_survives_json() -> None:
    machine = with_gpus(2)
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(machine)))) == machine


def test_facts_of_a_newer_probe_are_passed_over() -> None:
    machine = with_gpus(1)
    assert Machine.from_json({**dataclasses.asdict(machine), "from_the_future": 1}) == machine
