"""`scalescope.step()`: marks the end of a training step in a script whose steps nothing else shows."""

TYPE_CHECKING = False  # as in typing, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

_LISTENERS: "list[Callable[[], None]]" = []


def step() -> None:
    """The end of a training step; nothing happens where scalescope does not measure this process."""
    for listener in _LISTENERS:
        listener()


def listen(listener: "Callable[[], None]") -> None:
    """Call `listener` at the end of every marked step."""
    _LISTENERS.append(listener)
