"""Text that any file and terminal can take, whatever a library or a user's code put into a message."""

import codecs

# For terminals and files without these characters; a letter of a name stays unknown rather than wrong.
_IN_ASCII = {
    **dict.fromkeys("−–—‐‑", "-"),
    "×": "x",
    "÷": "/",
    "·": "-",
    "•": "-",
    "…": "...",
    "±": "+/-",
    "√": "sqrt",
    "²": "^2",
    "³": "^3",
    "µ": "u",
    "μ": "u",
    "α": "alpha",
    "Δ": "delta",
    "°": "deg",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "≠": "!=",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "⇒": "=>",
    "█": "#",
    "▒": ".",
    "░": ":",
    "▏": "|",
    "│": "|",
    "─": "-",
    "✓": "ok",
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
}
_LAYOUT = "\n\t\u00a0\u2009\u202f"
IN_ASCII = "scalescope.in_ascii"  # the name under which encoders replace what they lack


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(letter, "?") for letter in lacking), error.end


codecs.register_error(IN_ASCII, _replace)


def in_encoding(text: str, encoding: str) -> str:
    """The text as it appears in an encoding: characters that this lacks are written with others."""
    return text.encode(encoding, IN_ASCII).decode(encoding)


def printable(text: str) -> str:
    """The text with control characters and broken characters spelled out, such as `\\x1b` and `\\udcff`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def printable_lines(text: str) -> str:
    """The text with everything but its line breaks, tabs and narrow spaces spelled out as by `printable`."""
    if not isinstance(text, str):
        raise TypeError(f"expected text, got {type(text).__name__}")
    odd = {ord(letter): printable(letter) for letter in set(text).difference(_LAYOUT)}
    return text.translate(odd)


def encodable(value: object) -> object:
    """The same JSON value with lone surrogates spelled out: UTF-8 and strict JSON readers refuse them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value
