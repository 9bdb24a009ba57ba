"""What the allocator's history says: which blocks live, and for what."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from scalescope.worker.rank_profile import units_of

# ---- The blocks of a model: the units of checkpointing, and of FSDP's gathering


_PREFETCHED = 2  # the block that computes, and the next one, which is gathered meanwhile


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks to checkpoint: the children of one type in one container with the most parameters.

    A block has children: checkpointing a single layer saves nothing, since its input is kept anyway. It also
    has siblings of its type: a model checkpointed as one block would recompute all activations at once.
    """
    containers = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    return max((_repeated(list(container.children())) for container in containers), key=_weight, default=[])


def _repeated(children: list[nn.Module]) -> list[nn.Module]:
    kinds: dict[type[nn.Module], list[nn.Module]] = {}
    for child in children:
        if any(True for _ in child.children()):
            kinds.setdefault(type(child), []).append(child)
    return max((siblings for siblings in kinds.values() if len(siblings) > 1), key=_weight, default=[])


def _weight(blocks: list[nn.Module]) -> int:
    return sum(map(parameter_bytes, blocks))


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all parameters of a module."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def checkpoint_blocks(model: nn.Module) -> None:
    """Let every block drop its activations and recompute them in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks_of(model):
        plain = block.forward

        def forward(*inputs: Any, _plain: Any = plain, **named: Any) -> Any:
            return checkpoint(_plain, *inputs, use_reentrant=False, preserve_rng_state=False, **named)

        block.forward = forward


def gathered_bytes(model: nn.Module) -> int:
    """The most parameter bytes FSDP gathers at a time: the largest blocks, and what is in no block."""
    units = sorted((parameter_bytes(unit) for unit in units_of(model)), reverse=True)
    return parameter_bytes(model) - sum(units[_PREFETCHED:])


# ---- Replays an allocator's events of one step: when the peak was, and what was allocated then


FORWARD = "forward"
BACKWARD = "backward"
_ALLOCATES = ("alloc",)
_FREES = ("free_requested", "free_completed", "free")


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """Memory allocated or freed; other actions are ignored."""

    action: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class AllocatorPhase:
    """A part of the step, from this event on until the next phase begins."""

    name: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """What the step had allocated at its peak, in bytes, beyond what was there before."""

    growth: int
    activations: int
    gradients: int
    temporary: int
    given_back: int  # freed memory from before the step
    held_after_forward: int


@dataclass(slots=True)
class _Block:
    address: int
    size: int
    taken: int
    freed: int | None = None

    def lives_at(self, index: int) -> bool:
        """Whether the block is allocated after the event with that index."""
        return self.taken <= index and (self.freed is None or self.freed > index)


def replay(
    events: Sequence[AllocatorEvent], phases: Sequence[AllocatorPhase], gradients: Iterable[int]
) -> MemoryBreakdown:
    """The breakdown at the peak; `gradients` are the addresses of gradients after backward."""
    blocks, peak, growth, given_back = _follow(events)
    spans = _spans(phases, len(events))
    backward_end = max((end for name, _, end in spans if name == BACKWARD), default=0)
    addresses = set(gradients)
    sizes = {"activations": 0, "gradients": 0, "temporary": 0}
    for block in blocks:
        if block.lives_at(peak):
            sizes[_kind(block, spans, addresses, backward_end)] += block.size
    forward_ends = [end for name, _, end in spans if name == FORWARD]
    held = [
        block.size
        for block in blocks
        if _is_activation(block, spans) and block.lives_at(forward_ends[-1] - 1)
    ]
    return MemoryBreakdown(growth=growth, given_back=given_back, held_after_forward=sum(held), **sizes)


def _follow(events: Sequence[AllocatorEvent]) -> tuple[list[_Block], int, int, int]:
    """All blocks of the step, the event of the peak, and the growth and freed bytes by then."""
    blocks: list[_Block] = []
    live: dict[int, _Block] = {}
    returned: set[int] = set()
    total = given_back = 0
    peak, growth, given_back_at_peak = -1, 0, 0
    for index, event in enumerate(events):
        if event.action in _ALLOCATES:
            block = _Block(event.address, event.size, index)
            blocks.append(block)
            live[event.address] = block
            returned.discard(event.address)
            total += event.size
        elif event.action in _FREES:
            if event.address in live:
                block = live.pop(event.address)
                block.freed = index
                total -= block.size
            elif event.address not in returned:  # older than the step; its end is reported twice
                given_back += event.size
                total -= event.size
            returned.add(event.address)
        if total > growth:
            peak, growth, given_back_at_peak = index, total, given_back
    return blocks, peak, growth, given_back_at_peak


def _spans(phases: Sequence[AllocatorPhase], end: int) -> list[tuple[str, int, int]]:
    closed = [*phases, AllocatorPhase("end", end)]
    return [(phase.name, phase.start, following.start) for phase, following in pairwise(closed)]


def _kind(block: _Block, spans: list[tuple[str, int, int]], gradients: set[int], backward_end: int) -> str:
    if block.address in gradients and block.lives_at(backward_end - 1):
        return "gradients"
    return "activations" if _is_activation(block, spans) else "temporary"


def _is_activation(block: _Block, spans: list[tuple[str, int, int]]) -> bool:
    """Allocated in a forward pass and kept for the backward pass that follows."""
    return any(
        name == FORWARD and start <= block.taken < end and block.lives_at(end - 1)
        for name, start, end in spans
    )
