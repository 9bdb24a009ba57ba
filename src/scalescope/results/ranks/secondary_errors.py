"""Secondary errors: those that a healthy rank reports only because another rank has ended."""

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
    """Whether the end of another rank explains this error."""
    lowered = message.lower()
    return any(word in lowered for word in _WORDS)
