"""Stand-ins: ranks beyond the cores sleep for the compute time that rank 0 measured alone."""

import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from scalescope.catalog.training import Training
from scalescope.experiment.trial import Trial
from scalescope.worker.assembly import build_feed, optimizer_factory
from scalescope.worker.group import Group
from scalescope.worker.measurements import Measurements
from scalescope.worker.pacing import Pace, PacedModel, SleepingOptimizer
from scalescope.worker.step import Workload

_WARMUPS = 2
_MEASURED = 5


def stand_in_for(
    workload: Workload, trial: Trial, group: Group, device: torch.device, found: Measurements
) -> Workload:
    """The same parameters and data, with compute replaced by its measured duration."""
    measured = _measure(workload, trial, group, device) if group.rank == 0 else None
    answers = group.others("pace", json.dumps(measured))
    facts = measured or json.loads(answers[0])
    found.counters["stand_in_forward_s"] = facts["forward_s"]
    found.counters["stand_in_backward_s"] = facts["gradient_ready_s"][-1]
    found.counters["stand_in_optimizer_s"] = facts["optimizer_s"]
    parameters = [one for one in workload.model.parameters() if one.requires_grad]
    order = [parameters[number] for number in reversed(facts["ready_order"])]
    pace = Pace(
        forward_s=facts["forward_s"],
        gradient_ready_s=tuple(facts["gradient_ready_s"]),
        optimizer_s=facts["optimizer_s"],
    )

    def loss(output: Tensor, _: object) -> Tensor:
        return output

    def make_optimizer(owned: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return SleepingOptimizer(owned, pace.optimizer_s)

    model = PacedModel(workload.model, order, pace)
    return dataclasses.replace(workload, model=model, loss=loss, make_optimizer=make_optimizer)


def _measure(workload: Workload, trial: Trial, group: Group, device: torch.device) -> dict[str, Any]:
    """Medians over a few plain steps, while the other ranks wait."""
    parameters = [one for one in workload.model.parameters() if one.requires_grad]
    make = workload.make_optimizer or optimizer_factory(trial.options(Training))
    optimizer = make(iter(parameters))
    feed = build_feed(trial, workload, group, device)
    ready: list[dict[int, float]] = []
    handles = [
        one.register_post_accumulate_grad_hook(
            lambda _, number=number: ready[-1].__setitem__(number, time.perf_counter())
        )
        for number, one in enumerate(parameters)
    ]
    forward_s, backward_at, optimizer_s = [], [], []
    for _ in range(_WARMUPS + _MEASURED):
        batch = next(feed.batches)
        ready.append({})
        began = time.perf_counter()
        loss = workload.loss_of(workload.model, batch)
        backward_at.append(time.perf_counter())
        forward_s.append(backward_at[-1] - began)
        loss.backward()
        applied = time.perf_counter()
        optimizer.step()
        optimizer_s.append(time.perf_counter() - applied)
        optimizer.zero_grad()
    for handle in handles:
        handle.remove()
    feed.close()
    used = ready[-1]
    after = {
        number: statistics.median(
            one[number] - at for one, at in zip(ready[_WARMUPS:], backward_at[_WARMUPS:], strict=True)
        )
        for number in used
    }
    order = sorted(after, key=lambda number: after[number])
    return {
        "forward_s": statistics.median(forward_s[_WARMUPS:]),
        "optimizer_s": statistics.median(optimizer_s[_WARMUPS:]),
        "ready_order": order,
        "gradient_ready_s": [after[number] for number in order],
    }
