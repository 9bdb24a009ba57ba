"""Products: the operations of matrix products, convolutions and attention, from the shapes in a trace.

Every product is counted where torch dispatches it last with its shapes: inside of a compiled model these are
the same operations. Two counts: what the device computes, and what the model needs, without activations that
are computed again and with attention's backward pass as two of its forward passes.
"""

import ast
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_SCORES_AGAIN = 2.5  # backward passes of attention compute the scores again
Shape = Sequence[int]


class Flops(NamedTuple):
    """Floating-point operations: of the device, and of the model."""

    device: float
    model: float


def flops_of(name: str, arguments: dict[str, Any]) -> Flops | None:
    """The operations of one event; None for what is no product, or has no shapes."""
    kind = _KINDS.get(name.removeprefix("aten::")) if name.startswith("aten::") else None
    shapes = arguments.get("Input Dims")
    if kind is None or not isinstance(shapes, list):
        return None
    try:
        return kind(shapes, arguments.get("Concrete Inputs") or [])
    except (IndexError, TypeError, ValueError, ZeroDivisionError, SyntaxError):
        return None


def _same(count: float) -> Flops:
    return Flops(count, count)


def _product(first: int) -> Any:
    def counted(shapes: Sequence[Shape], _: Sequence[str]) -> Flops:
        left, right = shapes[first], shapes[first + 1]
        return _same(2.0 * math.prod(left) * right[-1])

    return counted


def _convolution(shapes: Sequence[Shape], values: Sequence[str]) -> Flops:
    images, weight = shapes[0], shapes[1]
    if _value(values[6]):  # transposed: every input value meets the kernel once
        return _same(2.0 * images[0] * math.prod(images[2:]) * math.prod(weight))
    outputs = [
        (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, padding, dilation in zip(
            images[2:], weight[2:], _value(values[3]), _value(values[4]), _value(values[5]), strict=True
        )
    ]
    return _same(2.0 * images[0] * math.prod(outputs) * math.prod(weight))


def _convolution_backward(shapes: Sequence[Shape], values: Sequence[str]) -> Flops:
    """Of the input and of the weight, as far as they are asked for."""
    gradient, images, weight = shapes[0], shapes[1], shapes[2]
    places = images[2:] if _value(values[7]) else gradient[2:]
    once = 2.0 * gradient[0] * math.prod(places) * math.prod(weight)
    return _same(once * sum(_value(values[10])[:2]))


def _attention(shapes: Sequence[Shape], _: Sequence[str]) -> Flops:
    return _same(_scores_and_values(shapes[0], shapes[1], shapes[2]))


def _attention_backward(shapes: Sequence[Shape], _: Sequence[str]) -> Flops:
    once = _scores_and_values(shapes[1], shapes[2], shapes[3])
    return Flops(_SCORES_AGAIN * once, 2.0 * once)


def _scores_and_values(query: Shape, key: Shape, value: Shape) -> float:
    batch, heads, length, width = query
    return 2.0 * batch * heads * length * key[-2] * (width + value[-1])


def _value(text: str) -> Any:
    return ast.literal_eval(text)


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_KINDS: dict[str, Any] = {
    "mm": _product(0),
    "bmm": _product(0),
    "_scaled_mm": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "_addmm_activation": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_ATTENTIONS, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
}
