"""The blocks of a model: the units of checkpointing, and of FSDP's gathering."""

from typing import Any

from torch import nn

from scalescope.worker.rank_profile.units import units_of

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
