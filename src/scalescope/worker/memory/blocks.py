"""The blocks of a model: what is checkpointed, and what FSDP gathers at a time."""

from typing import Any

from torch import nn

_PREFETCHED = 2  # the block that computes, and the next one, which is fetched meanwhile


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What is checkpointed: of all containers' children that are of one kind, the weightiest.

    A block has parts: checkpointing a lone layer keeps its input, which was kept anyway. It has others of its
    kind: a model checkpointed as one block computes all activations again at once.
    """
    containers = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    return max((_repeated(list(container.children())) for container in containers), key=_weight, default=[])


def _repeated(children: list[nn.Module]) -> list[nn.Module]:
    kinds: dict[type[nn.Module], list[nn.Module]] = {}
    for child in children:
        if any(True for _ in child.children()):
            kinds.setdefault(type(child), []).append(child)
    return max((alike for alike in kinds.values() if len(alike) > 1), key=_weight, default=[])


def _weight(blocks: list[nn.Module]) -> int:
    return sum(map(parameter_bytes, blocks))


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all parameters of a module."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def checkpoint_blocks(model: nn.Module) -> None:
    """Let every block forget its activations and compute them again when backward needs them."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks_of(model):
        plain = block.forward

        def forward(*inputs: Any, _plain: Any = plain, **named: Any) -> Any:
            return checkpoint(_plain, *inputs, use_reentrant=False, preserve_rng_state=False, **named)

        block.forward = forward


def gathered_bytes(model: nn.Module) -> int:
    """Parameter bytes that FSDP has whole at a time, at most: the largest blocks, and all that is in none."""
    from scalescope.worker.strategies.fsdp import units_of

    units = sorted((parameter_bytes(unit) for unit in units_of(model)), reverse=True)
    return parameter_bytes(model) - sum(units[_PREFETCHED:])
