"""In place of waiting for the GPU: values that the same step read before.

Steps that read values from the GPU (`item`, `float`, `if tensor`) get those of an earlier step, so the host
takes the same branches and does not wait. Operations that must know a size, such as `nonzero`, still wait.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from scalescope.worker.training.step import Step

_READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__")
_ALIKE = 2  # steps in a row that read equally often, before their values are used


class RememberedValues:
    """Reads of tensors on a GPU: real until steps read equally often, then those of the last real step."""

    def __init__(self) -> None:
        self._values: list[tuple[str, Any]] = []
        self._position = 0
        self._alike = 0
        self._count: int | None = None
        self._used = 0
        self._steps = 0  # since values are ready

    @property
    def is_ready(self) -> bool:
        return self._alike >= _ALIKE

    def end_step(self) -> None:
        """The next read is the first of a step."""
        self._steps += self.is_ready
        if not self.is_ready:
            self._alike = self._alike + 1 if len(self._values) == self._count else 0
            self._count = len(self._values)
            if not self.is_ready:
                self._values.clear()
        self._position = 0

    def read(self, name: str, real: Callable[[], Any]) -> Any:
        """A remembered value, or the real one."""
        if not self.is_ready:
            value = real()
            self._values.append((name, value))
            return value
        if self._position < len(self._values) and self._values[self._position][0] == name:
            self._position += 1
            self._used += 1
            return self._values[self._position - 1][1]
        return real()

    def counters(self) -> dict[str, float | int | str | None]:
        return {"remembered_reads_per_step": self._used / self._steps if self._steps else None}


def with_remembered_values(step: Step) -> Step:
    """The step without waiting for values. It changes torch's tensors until its counters are read."""
    remembered = RememberedValues()
    real = {name: getattr(torch.Tensor, name) for name in _READS}
    for name, read in real.items():
        setattr(torch.Tensor, name, _remembering(name, read, remembered))

    def clear() -> None:
        step.clear()
        remembered.end_step()

    def counters() -> dict[str, float | int | str | None]:
        for name, read in real.items():
            setattr(torch.Tensor, name, read)
        return {**step.counters(), **remembered.counters()}

    return dataclasses.replace(step, clear=clear, counters=counters)


def _remembering(name: str, real: Callable[..., Any], remembered: RememberedValues) -> Callable[..., Any]:
    def read(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not tensor.is_cuda:
            return real(tensor, *arguments, **options)
        return remembered.read(name, lambda: real(tensor, *arguments, **options))

    return read
