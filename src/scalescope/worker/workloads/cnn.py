"""The `cnn` workload: a ResNet as a plain sequence of blocks on random images and classes."""

import torch
from torch import Tensor, nn

from scalescope.catalog.workloads.cnn import Block, Cnn, Convolution
from scalescope.worker.training.step import Batch, BuildContext, Data, Workload


def build(options: Cnn, device: torch.device, context: BuildContext) -> Workload:
    """The model with freshly initialised parameters on `device`."""
    model = nn.Sequential(
        _stem(options, device),
        *(Residual(block, device) for block in options.blocks()),
        _head(options, device),
    )

    def synthesize(count: int, generator: torch.Generator) -> Batch:
        images = torch.randn(count, 3, options.image_size, options.image_size, generator=generator)
        classes = torch.randint(options.classes, (count,), generator=generator)
        return images, classes

    return Workload(model=model, data=Data(synthesize=synthesize), loss=nn.functional.cross_entropy)


class Residual(nn.Module):
    """A residual block: the output of the convolutions is added to the input."""

    def __init__(self, block: Block, device: torch.device) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for convolution in block.path:
            layers += [*_normalised(convolution, device), nn.ReLU(inplace=True)]
        self.path = nn.Sequential(*layers[:-1])
        self.shortcut = (
            nn.Sequential(*_normalised(block.shortcut, device)) if block.shortcut else nn.Identity()
        )

    def forward(self, images: Tensor) -> Tensor:
        """The block's output, rectified."""
        return nn.functional.relu(self.path(images) + self.shortcut(images), inplace=True)


def _stem(options: Cnn, device: torch.device) -> nn.Sequential:
    layers = [*_normalised(options.stem, device), nn.ReLU(inplace=True)]
    if options.has_large_images:
        layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    return nn.Sequential(*layers)


def _head(options: Cnn, device: torch.device) -> nn.Sequential:
    classifier = nn.Linear(options.features, options.classes, device=device)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier)


def _normalised(convolution: Convolution, device: torch.device) -> list[nn.Module]:
    layer = nn.Conv2d(
        convolution.inputs,
        convolution.outputs,
        convolution.kernel,
        stride=convolution.stride,
        padding=convolution.kernel // 2,
        bias=False,  # the normalisation has one
        device=device,
    )
    return [layer, nn.BatchNorm2d(convolution.outputs, device=device)]
