"""Names that would leave their folder, their line, their cell or the terminal."""

from tests.bad_input.case import Case

_NAMES = {
    "parent folder": "../x",
    "65 letters": "n" * 65,
    "dot": ".",
    "begins with a dash": "-rf",
    "substitution": "$(id)",
    "line break": "a\nb",
    "blank": "a b",
    "NUL": "a\0b",
    "escape codes": "\x1b]0;title\x07",
    "right-to-left override": "a\u202etxt.exe",
    "script tag": "<script>alert(1)</script>",
    "letters of another script": "имя",
    "lone surrogate": "a\udcff",
}

CASES = tuple(
    Case(name=f"run name: {what}", command=("train", f"--name={name}"), says=("--name: expected ",))
    for what, name in _NAMES.items()
)
