"""Card of the `cnn` workload."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scalescope.catalog.setting import Lever, PerDevice, setting
from scalescope.catalog.traits import ModelSize, WorkloadTraits
from scalescope.errors import BadInput

# Residual blocks in each of the four stages (He et al. 2016, table 1).
_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_FIRST_WITH_BOTTLENECKS = 50
_EXPANSION = 4  # a bottleneck's last convolution widens by this
_LARGE_IMAGE = 64  # from here on ImageNet's stem and classes, below CIFAR's


class Convolution(NamedTuple):
    """A square convolution without bias, padded: only a stride makes its output smaller."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1


class Block(NamedTuple):
    """Convolutions in a row, and the parallel one where input and output differ in shape."""

    path: tuple[Convolution, ...]
    shortcut: Convolution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cnn(WorkloadTraits):
    """A ResNet on random images: much compute for few gradients, batch-norm statistics in buffers."""

    unit = "images"
    has_convolutions = True
    defaults = {"batch_size": PerDevice(cpu=32, cuda=256)}  # noqa: RUF012

    image_size: int = setting(
        PerDevice(cpu=32, cuda=224),
        "Height and width of an image. From 64, the network starts with ResNet's 7×7 convolution and "
        "pooling; below, with a 3×3 convolution.",
        low=16,
        high=4096,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    channels: int = setting(
        PerDevice(cpu=16, cuda=64), "Width of the first stage; each later stage doubles it.", low=1, high=4096
    )
    depth: int = setting(
        PerDevice(cpu=18, cuda=50),
        "Number of layers as ResNet counts them: 18 or 34 (basic blocks), 50, 101 or 152 (bottlenecks).",
        low=18,
        high=152,
    )
    num_classes: int | None = setting(
        None,
        "Number of classes; auto is 1000 for images of 64 pixels or more, 10 for smaller images, and the "
        "data set's number for texts.",
        low=1,
        high=2**20,
        none_word="auto",
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a depth that no ResNet has."""
        depth = values["depth"]
        if depth not in _BLOCKS:
            known = ", ".join(map(str, _BLOCKS))
            near = min(_BLOCKS, key=lambda known_depth: abs(known_depth - depth))
            raise BadInput(f"depth must be one of {known}, got {depth}; the nearest is {near}")

    @property
    def classes(self) -> int:
        """How many classes there are, `auto` settled."""
        return self.num_classes or (1000 if self.has_large_images else 10)

    @property
    def has_large_images(self) -> bool:
        """Whether images are shrunk to a quarter before the first block."""
        return self.image_size >= _LARGE_IMAGE

    @property
    def stem(self) -> Convolution:
        """What reads the image; large images are pooled by two after it."""
        return (
            Convolution(3, self.channels, 7, 2) if self.has_large_images else Convolution(3, self.channels, 3)
        )

    def blocks(self) -> tuple[Block, ...]:
        """All residual blocks, first to last."""
        blocks: list[Block] = []
        inputs = self.channels
        for stage, count in enumerate(_BLOCKS[self.depth]):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(_block(inputs, self.channels << stage, stride, self.depth))
                inputs = blocks[-1].path[-1].outputs
        return tuple(blocks)

    @property
    def features(self) -> int:
        """What the last block hands to the classifier."""
        return self.blocks()[-1].path[-1].outputs

    def convolutions(self) -> Iterator[tuple[int, Convolution]]:
        """Every convolution with the size of the image that it reads."""
        yield self.image_size, self.stem
        size = _after(self.image_size, self.stem)
        if self.has_large_images:
            size = _halved(size)
        for block in self.blocks():
            inner = size
            for convolution in block.path:
                yield inner, convolution
                inner = _after(inner, convolution)
            if block.shortcut is not None:
                yield size, block.shortcut
            size = inner

    def forward_macs(self) -> int:
        """Multiplications with addition of one image's forward pass, in convolutions and classifier."""
        total = sum(_macs(size, convolution) for size, convolution in self.convolutions())
        return total + self.features * self.classes

    def model_size(self) -> ModelSize:
        """Of each convolution at least the output is kept, which its normalisation reads."""
        layers = list(self.convolutions())
        weights = sum(layer.inputs * layer.outputs * layer.kernel**2 for _, layer in layers)
        norms = sum(2 * layer.outputs for _, layer in layers)
        return ModelSize(
            parameters=weights + norms + (self.features + 1) * self.classes,
            sample_bytes=4 * 3 * self.image_size**2,
            kept_values=sum(layer.outputs * _after(size, layer) ** 2 for size, layer in layers),
        )

    def flops_per_sample(self) -> int:
        """Floating-point operations of forward and backward for one image.

        Two per multiplication forward and four backward (input and weight gradients); the stem has no
        input gradient to compute. Normalisation and activations are left out, as is usual.
        """
        return 6 * self.forward_macs() - 2 * _macs(self.image_size, self.stem)


def _block(inputs: int, width: int, stride: int, depth: int) -> Block:
    path: tuple[Convolution, ...]
    if depth < _FIRST_WITH_BOTTLENECKS:
        path = (Convolution(inputs, width, 3, stride), Convolution(width, width, 3))
    else:  # the stride sits on the 3×3, as in torchvision's and most others' ResNet-50
        wide = width * _EXPANSION
        path = (
            Convolution(inputs, width, 1),
            Convolution(width, width, 3, stride),
            Convolution(width, wide, 1),
        )
    outputs = path[-1].outputs
    same = stride == 1 and inputs == outputs
    return Block(path, None if same else Convolution(inputs, outputs, 1, stride))


def _after(size: int, convolution: Convolution) -> int:
    return -(-size // convolution.stride)


def _halved(size: int) -> int:
    return -(-size // 2)


def _macs(size: int, convolution: Convolution) -> int:
    return convolution.inputs * convolution.outputs * convolution.kernel**2 * _after(size, convolution) ** 2
