"""Evaluation: the model's accuracy after an epoch, on training and validation samples."""

import math
from typing import Any

import torch
from torch.utils.data import Subset

from scalescope import clocks
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import Phase
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.training.feeding import fetch, to_device
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import Workload

_LARGEST_BATCH = 256
IGNORED = -100  # cross_entropy's default for positions without a target


class Evaluation:
    """Computes accuracies over all ranks, on as many training as validation samples."""

    def __init__(self, workload: Workload, trial: Trial, group: Group, device: torch.device) -> None:
        self._workload = workload
        self._group = group
        self._device = device
        # Not larger than the training batch, which fits: outputs over a vocabulary take gigabytes.
        self._batch_size = min(_LARGEST_BATCH, trial.micro_batch_size)
        validation, training = workload.data.validation, workload.data.samples
        every = max(1, len(training) // len(validation))
        self._parts = {
            "train_accuracy": Subset(training, range(0, len(training), every)[: len(validation)]),
            "validation_accuracy": validation,
        }

    def run(self, position: Position, measurements: Measurements) -> None:
        """Record both accuracies and the time they took."""
        started = clocks.perf_counter()
        self._workload.model.eval()
        with torch.no_grad():
            for name, samples in self._parts.items():
                measurements.samples.setdefault(name, []).append(self._accuracy(samples, position))
        self._workload.model.train()
        measurements.samples.setdefault("evaluation_time_s", []).append(clocks.perf_counter() - started)

    def _accuracy(self, samples: Any, position: Position) -> float:
        """Each rank evaluates its share, in equally many passes: a sharded model needs all ranks in each."""
        ranks = self._group.world_size
        numbers = list(range(self._group.rank, len(samples), ranks))
        passes = math.ceil(math.ceil(len(samples) / ranks) / self._batch_size)
        correct = counted = 0.0
        for number in range(passes):
            position.mark(Phase(number % 2))  # alternating: a long evaluation then shows as progress
            chosen = numbers[number * self._batch_size : (number + 1) * self._batch_size]
            batch = to_device(fetch(self._workload.data, samples, chosen or [0]), self._device)
            outputs = self._workload.model(batch[0])
            if chosen:
                predictions, targets = outputs.argmax(dim=-1), batch[1]
                has_target = targets != IGNORED
                correct += float((predictions == targets)[has_target].sum())
                counted += float(has_target.sum())
        correct, counted = self._group.total([correct, counted], self._device)
        return correct / max(counted, 1.0)
