"""The work of a rank: how many elements its batches hold, padding included."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

_CONSTANT = 1e-9


class BatchWork(NamedTuple):
    """What a batch holds, or all batches of a step."""

    elements: int  # of all tensors
    input_elements: int  # of the first
    tokens: int | None  # of the first of whole numbers in two dimensions, which is text


def work_of(batch: Any) -> BatchWork:
    """What a batch holds, wherever it lies: no tensor is read."""
    elements, first, tokens = 0, None, None
    for tensor in tensors_of(batch):
        count = tensor.numel()
        elements += count
        first = count if first is None else first
        if tokens is None and tensor.ndim == 2 and not tensor.is_floating_point():
            tokens = count
    return BatchWork(elements, first or 0, tokens)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """All tensors of a batch, from the first."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_of(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from tensors_of(part)


def by_step(batches: Sequence[tuple[int, BatchWork]]) -> list[BatchWork]:
    """The work of each step, from its batches with the number of their step."""
    steps: dict[int, list[BatchWork]] = {}
    for number, work in batches:
        steps.setdefault(number, []).append(work)
    return [_together(works) for works in steps.values()]


def _together(works: Sequence[BatchWork]) -> BatchWork:
    tokens = [work.tokens for work in works if work.tokens is not None]
    return BatchWork(
        elements=sum(work.elements for work in works),
        input_elements=sum(work.input_elements for work in works),
        tokens=sum(tokens) if len(tokens) == len(works) else None,
    )


def work_counters(steps: Sequence[BatchWork]) -> dict[str, float | int | str | None]:
    """Per step: the means, and how much steps differ."""
    elements = [step.elements for step in steps]
    mean = statistics.fmean(elements)
    tokens = [step.tokens for step in steps if step.tokens is not None]
    return {
        "work/elements": mean,
        "work/input_elements": statistics.fmean(step.input_elements for step in steps),
        "work/tokens": statistics.fmean(tokens) if len(tokens) == len(steps) else None,
        "work/variation": statistics.pstdev(elements) / mean if mean else 0.0,
    }


def work_samples(steps: Sequence[BatchWork]) -> dict[str, list[float]]:
    """The elements of each step, where steps differ."""
    elements = [float(step.elements) for step in steps]
    if math.isclose(min(elements), max(elements), rel_tol=_CONSTANT):
        return {}
    return {"work/elements": elements}
