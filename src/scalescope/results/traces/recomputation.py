"""Recomputation: where a backward pass computes activations again, by operations of forward passes alone.

Activation checkpointing runs a part of the forward pass inside the backward pass. torch's own backward
formulas call none of these operations, so all that the host does inside one node of the graph until the last
of them is recomputation. Compiled models have no such operations: it is not seen there.
"""

import bisect
from collections import defaultdict
from collections.abc import Sequence

from scalescope.results.traces.intervals import Interval, merged
from scalescope.results.traces.rank_trace import BACKWARD_OPERATION, TraceEvent

_ONLY_FORWARD = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "batch_norm", "group_norm",
        "scaled_dot_product_attention", "embedding", "dropout", "gelu", "silu", "relu", "leaky_relu",
        "softmax", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "cross_entropy_loss",
    )
)  # fmt: skip


def recomputations(operations: Sequence[TraceEvent]) -> list[Interval]:
    """The host's time in which activations are computed again; `operations` by their begin."""
    nodes: dict[object, list[TraceEvent]] = defaultdict(list)
    for operation in operations:
        if operation.name.startswith(BACKWARD_OPERATION):
            nodes[operation.thread].append(operation)
    begins = {thread: [node.start_s for node in of_thread] for thread, of_thread in nodes.items()}
    found: dict[tuple[object, int], list[TraceEvent]] = defaultdict(list)
    for operation in operations:
        if operation.name in _ONLY_FORWARD and operation.thread in nodes:
            index = _innermost(nodes[operation.thread], begins[operation.thread], operation)
            if index is not None:
                found[operation.thread, index].append(operation)
    return merged(
        (nodes[thread][index].start_s, _own_work_s(nodes[thread][index], operations, members))
        for (thread, index), members in found.items()
    )


def _own_work_s(node: TraceEvent, operations: Sequence[TraceEvent], again: Sequence[TraceEvent]) -> float:
    """When a node that had to compute activations again begins with its own work: random states were set
    before and are set back after that."""
    done_s = max(operation.end_s for operation in again)
    first = bisect.bisect_left(operations, done_s, key=lambda operation: operation.start_s)
    for operation in operations[first:]:
        if operation.start_s > node.end_s:
            break
        if operation.thread == node.thread:
            return operation.start_s
    return node.end_s


def _innermost(nodes: Sequence[TraceEvent], begins: Sequence[float], operation: TraceEvent) -> int | None:
    """The node of the backward pass that an operation is part of; None outside of all."""
    for index in range(bisect.bisect_right(begins, operation.start_s) - 1, -1, -1):
        if nodes[index].end_s >= operation.end_s:
            return index
        if begins[index] < operation.start_s - _LONGEST_NODE_S:
            return None
    return None


_LONGEST_NODE_S = 2.0  # nodes that began longer ago are not looked at
