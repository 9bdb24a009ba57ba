"""Products: the operations of matrix products, convolutions and attention, from the shapes in a trace.

Every product is counted where torch dispatches it with its shapes: inside of a compiled model these are the
same operations. Two counts: what the device computes, and what the model needs. They differ in activations
that are computed again, and in attention, whose backward pass needs two of its forward passes and computes
two and a half.
"""

import ast
import bisect
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scalescope.results.traces.names import is_product, uses_matrix_units

PADDED_PRODUCTS = "padded_products"  # the table of a rank: products as they are, and padded
FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_SCORES_AGAIN = 2.5  # times the forward pass of attention: its backward pass computes the scores again
_BACKWARD = 2.0  # times the forward pass: what more a compiled backward pass has is computed again
_NAMES = {"float": "fp32", "c10::bfloat16": "bf16", "c10::half": "fp16"}
Shape = Sequence[int]


class Flops(NamedTuple):
    """Floating-point operations: of the device, and of the model."""

    device: float
    model: float


class Factor(NamedTuple):
    """A matrix, or several: its shape, and how far its elements are apart where that was recorded."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product that the host called for, by shapes."""

    name: str
    thread: object
    start_s: float
    end_s: float
    flops: Flops
    number_format: str | None  # of its first factor
    factors: tuple[Factor, ...] = ()  # of a matrix product: its two factors


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """All matrix products of some shapes in a step."""

    name: str
    factors: tuple[Factor, ...]
    number_format: str
    per_step: float
    gpu_s: float  # per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A kernel, and from where the host launched it."""

    name: str
    time_s: float
    thread: object
    launched_s: float


def product_of(event: dict[str, Any], start_s: float, end_s: float) -> Product | None:
    """The product that an operation of torch is; None for what is none, or has no shapes."""
    name, arguments = str(event.get("name", "")), event.get("args") or {}
    flops = flops_of(name, arguments)
    if flops is None:
        return None
    kinds = [str(kind).lower() for kind in _list(arguments.get("Input type"))]
    names = (_NAMES.get(kind, "fp8" if "float8" in kind else None) for kind in kinds)
    return Product(
        name=name,
        thread=event.get("tid"),
        start_s=start_s,
        end_s=end_s,
        flops=flops,
        number_format=next((name for name in names if name is not None), None),
        factors=_factors(name, arguments),
    )


def _factors(name: str, arguments: dict[str, Any]) -> tuple[Factor, ...]:
    """The factors of a matrix product; nothing for what else counts as a product."""
    first = _FACTORS.get(name.removeprefix("aten::"))
    if first is None:
        return ()
    strides = _list(arguments.get("Input Strides"))
    return tuple(
        Factor(tuple(arguments["Input Dims"][n]), tuple(_list(strides[n])) if len(strides) > n else None)
        for n in (first, first + 1)
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class CountedProducts:
    """The products of some steps, each counted once, and the kernels that they launched."""

    def __init__(self, products: Iterable[Product], kernels: Iterable[Launched]) -> None:
        self._of_thread: dict[object, list[Product]] = defaultdict(list)
        for product in sorted(products, key=lambda product: (product.start_s, -product.end_s)):
            before = self._of_thread[product.thread]
            if not before or product.start_s >= before[-1].end_s:
                before.append(product)
            elif (
                before[-1].name in _MATRIX
            ):  # of tensors that are cut, or scaled: what is computed lies inside
                inside = dataclasses.replace(product, start_s=before[-1].start_s, end_s=before[-1].end_s)
                before[-1] = inside
        self._begins = {
            thread: [product.start_s for product in members] for thread, members in self._of_thread.items()
        }
        self.linked_s = self.unlinked_s = 0.0
        self._short_s: dict[int, float] = {}  # by product: on matrix units, less time outside of them
        self._kernel_s: dict[int, float] = defaultdict(float)
        for kernel in kernels:
            launcher = self._around(kernel)
            if launcher is not None:
                self._short_s.setdefault(id(launcher), 0.0)
                self._kernel_s[id(launcher)] += kernel.time_s
            if not is_product(kernel.name):
                continue
            if launcher is None:
                self.unlinked_s += kernel.time_s
            else:
                self.linked_s += kernel.time_s
                self._short_s[id(launcher)] += kernel.time_s * (1 if uses_matrix_units(kernel.name) else -1)

    def __iter__(self) -> Iterator[Product]:
        """Those that launched a kernel: checkpointing calls a last product again and stops before it runs."""
        every = (product for members in self._of_thread.values() for product in members)
        return (product for product in every if id(product) in self._short_s)

    def _around(self, kernel: Launched) -> Product | None:
        members = self._of_thread.get(kernel.thread, [])
        index = bisect.bisect_right(self._begins.get(kernel.thread, []), kernel.launched_s) - 1
        return members[index] if index >= 0 and kernel.launched_s <= members[index].end_s else None

    def format_of(self, product: Product) -> str | None:
        """What it computes in: fp32 on matrix units is tf32."""
        if product.number_format == "fp32" and self._short_s[id(product)] > 0.0:
            return "tf32"
        return product.number_format

    def longest(self, steps: int, most: int) -> list[ProductTime]:
        """Matrix products of equal shapes together, those with the most time first."""
        times: dict[tuple[str, tuple[Factor, ...], str], list[float]] = defaultdict(list)
        for product in self:
            if product.factors and product.number_format is not None:
                key = (product.name, product.factors, self.format_of(product) or product.number_format)
                times[key].append(self._kernel_s[id(product)])
        rows = [
            ProductTime(
                name=name,
                factors=factors,
                number_format=number_format,
                per_step=len(each) / steps,
                gpu_s=math.fsum(each) / steps,
            )
            for (name, factors, number_format), each in times.items()
        ]
        return sorted(rows, key=lambda row: -row.gpu_s)[:most]

    def by_format(self) -> dict[str, float]:
        """The device's operations in each number format."""
        counts: dict[str, float] = defaultdict(float)
        for product in self:
            counts[self.format_of(product) or "other"] += product.flops.device
        return dict(counts)


def model_flops(forward: float, backward: float, *, is_compiled: bool) -> float:
    """What the model needs: where a compiled backward pass computes activations again, no operation tells."""
    return forward + (min(backward, _BACKWARD * forward) if is_compiled else backward)


def flops_of(name: str, arguments: dict[str, Any]) -> Flops | None:
    """The operations of one event; None for what is not a product, or has no shapes."""
    kind = _KINDS.get(name.removeprefix("aten::")) if name.startswith("aten::") else None
    shapes = arguments.get("Input Dims")
    if kind is None or not isinstance(shapes, list):
        return None
    try:
        flops = kind(shapes, arguments.get("Concrete Inputs") or [])
    except (LookupError, TypeError, ValueError, ArithmeticError, SyntaxError, RecursionError):
        return None
    return flops if math.isfinite(flops.device) else None


def _same(count: float) -> Flops:
    return Flops(count, count)


def _product(first: int) -> Callable[[Sequence[Shape], Sequence[str]], Flops]:
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
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1}
_MATRIX = tuple(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"))
_KINDS: dict[str, Callable[[Sequence[Shape], Sequence[str]], Flops]] = {
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
