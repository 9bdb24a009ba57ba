"""Echoes: errors that a healthy rank reports only because another one is gone."""

_WORDS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "remote process",
    "connection refused",
    "timed out",
    "timeout",
)


def is_secondary_error(message: str) -> bool:
    """Whether somebody else's end explains this error."""
    lowered = message.lower()
    return any(word in lowered for word in _WORDS)
