"""Characters that an encoding lacks are written with others, and never with a question mark of ours."""

import json
from pathlib import Path

import pytest

import scalescope
from scalescope.results.printable import encodable, in_encoding, printable

_SOURCES = Path(scalescope.__file__).parent
# Its letters with accents are those of names that users give, replaced there for TeX.
_LETTERS_OF_NAMES = "tables.py"


@pytest.mark.parametrize(
    ("text", "in_ascii"),
    [
        ("−0.42 – 1.5×", "-0.42 - 1.5x"),
        ("20 µs ± 3 … 5", "20 us +/- 3 ... 5"),
        ("≥ 2 → 4", ">= 2 -> 4"),
        ("—", "-"),
        ("ünï", "?n?"),  # a name: a letter that looks right would be wrong
    ],
)
def test_ascii_has_something_for_every_sign(text: str, in_ascii: str) -> None:
    assert in_encoding(text, "ascii") == in_ascii
    assert in_encoding(text, "utf-8") == text


def test_an_encoding_keeps_what_it_has() -> None:
    assert in_encoding("−1.5× in µs, ü", "latin-1") == "-1.5× in µs, ü"


def test_no_sign_of_the_source_becomes_a_question_mark() -> None:
    signs = {
        sign
        for path in _SOURCES.rglob("*.py")
        if path.name != _LETTERS_OF_NAMES
        for sign in path.read_text(encoding="utf-8")
        if not sign.isascii()
    }
    assert [sign for sign in sorted(signs) if "?" in in_encoding(sign, "ascii")] == []


def test_control_characters_and_broken_ones_are_spelled_out() -> None:
    assert printable("a\x1b[1m\udcff ü") == "a\\x1b[1m\\udcff ü"


def test_json_values_become_encodable_whatever_they_hold() -> None:
    value = {"\udcff": ["\ud800", 1.5, None, ("ü", {"a": True})]}
    assert encodable(value) == {"\\udcff": ["\\ud800", 1.5, None, ["ü", {"a": True}]]}
    assert json.dumps(encodable(value)).encode()
