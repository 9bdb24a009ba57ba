"""Recorded launches: a few normal steps, which tell what a GPU step consists of, or who waits for whom."""

import torch

from scalescope.experiment.trial import Trial
from scalescope.worker.benchmarks.train import prepared
from scalescope.worker.engine.recording import check_recording, recorded_launch
from scalescope.worker.engine.steps import driven
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import Measurements


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """What `recording.py` stores of this rank's steps; their times include the profiler."""
    check_recording(trial, device)
    with prepared(trial, group, device, position, fault) as loop:
        return loop.with_known(driven(recorded_launch(loop.engine), loop.make_step))
