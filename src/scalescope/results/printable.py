"""Text that any file and terminal can take, whatever a library or a user's code put into a message."""

from typing import Any


def printable(text: str) -> str:
    """The text with control characters and broken characters spelled out, such as `\\x1b` and `\\udcff`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def encodable(value: Any) -> Any:
    """The same JSON value with lone surrogates spelled out: UTF-8 and strict JSON readers refuse them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value
