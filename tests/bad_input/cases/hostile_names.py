"""Names that would leave their folder, their line, their cell or the terminal."""

from tests.bad_input.case import Case

_NAMES = {
    "parent folder": "../x",
    "absolute path": "/etc/passwd",
    "300 letters": "n" * 300,
    "dot": ".",
    "begins with a dash": "-rf",
    "semicolon": "a;id",
    "substitution": "$(id)",
    "backticks": "`id`",
    "line break": "a\nb",
    "return": "a\rb",
    "tab": "a\tb",
    "blank": "a b",
    "NUL": "a\0b",
    "escape codes": "\x1b]0;title\x07",
    "C1 control": "a\x9b31m",
    "right-to-left override": "a\u202etxt.exe",
    "zero width": "a\u200bb",
    "line separator": "a\u2028b",
    "script tag": "<script>alert(1)</script>",
    "end of a script": "</script>",
    "TeX": "\\input{/etc/passwd}",
    "formula": "=cmd|' /C calc'!A1",
    "letters of another script": "имя",
    "lone surrogate": "a\udcff",
}

CASES = tuple(
    Case(name=f"run name: {what}", command=("train", f"--name={name}"), says=("--name: expected ",))
    for what, name in _NAMES.items()
)
