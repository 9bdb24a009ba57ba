"""Collectives of the model itself, which no strategy can leave out."""

from torch import nn

from scalescope.errors import BadInput


def count_model_collectives(model: nn.Module) -> int:
    """Layers that exchange something themselves in every forward and backward."""
    return sum(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())


def refuse_model_collectives(model: nn.Module) -> None:
    """Ranks whose model communicates wait for each other, whatever the strategy sends."""
    count = count_model_collectives(model)
    if count:
        layers = "a SyncBatchNorm layer" if count == 1 else f"{count} SyncBatchNorm layers"
        raise BadInput(f"a model with {layers} cannot be trained without communication")
