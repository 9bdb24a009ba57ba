"""Values are read from text by the setting's own type, and refused in one line that names what would work."""

from dataclasses import dataclass
from typing import Any

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import (
    Kind,
    PerDevice,
    Setting,
    check_value,
    nearest,
    parse_value,
    setting,
    settings_of,
)
from scalescope.errors import BadInput


def make(kind: Kind, **limits: Any) -> Setting:
    return Setting(name="size", kind=kind, default=None, help="A size.", card="Example", **limits)


def refusal(setting: Setting, text: str) -> str:
    """The message that refuses `text`, which is always one line that begins with where it stood."""
    with pytest.raises(BadInput) as caught:
        parse_value(setting, text, "f.yaml:3: size")
    message = str(caught.value)
    assert message.startswith("f.yaml:3: size: ")
    assert message.isprintable()
    assert len(message) < 200
    return message


def test_whole_numbers() -> None:
    values = {
        "0": 0,
        "+7": 7,
        "-7": -7,
        " 12 ": 12,
        "1e3": 1000,
        "1E3": 1000,
        "1.5e1": 15,
        "2147483648": 2**31,
    }
    for text, value in values.items():
        parsed = parse_value(make("int"), text, "here")
        assert parsed == value and type(parsed) is int


NOT_WHOLE = (
    *(
        "",
        "0777",
        "00",
        "1:30",
        "0x10",
        "0o17",
        "1_000",
        "1.0",
        "1.5",
        "1.5e0",
        "1e-1",
        "1e400",
        "no",
        "true",
    ),
    *("nan", ".inf", "none", "null", "~", "auto", "١٢", "²", "1 2", "--3", "9" * 41),
)


def test_what_is_no_whole_number() -> None:
    for text in NOT_WHOLE:
        assert "expected a whole number" in refusal(make("int"), text)


def test_numbers() -> None:
    values = {"1": 1.0, "0.5": 0.5, ".5": 0.5, "5.": 5.0, "1e3": 1000.0, "-1.0e-05": -1e-5}
    for text, value in values.items():
        parsed = parse_value(make("float"), text, "here")
        assert parsed == value and type(parsed) is float
    for text in ("", ".", "e3", ".nan", "NaN", "inf", "-.inf", "Infinity", "1e999", "1:30", "1,5", "no"):
        assert "expected a finite number" in refusal(make("float"), text)


def test_booleans() -> None:
    values = {"true": True, "Yes": True, "ON": True, "false": False, "no": False, "off": False}
    for text, value in values.items():
        assert parse_value(make("bool"), text, "here") is value
    for text in ("", "1", "0", "y", "none", "truee"):
        assert "expected true or false" in refusal(make("bool"), text)


def test_words_stay_as_they_were_written() -> None:
    for text in ("no", "0777", "null", "größe", "a b"):
        assert parse_value(make("str"), text, "here") == text
    for text in ("", "  ", "a\nb", "a\x1b[31m", "a\u202eb", "a\0b"):
        assert "expected a printable word" in refusal(make("str"), text)


def test_durations() -> None:
    values = {"90": 90, "90s": 90, "1.5m": 90, "2h": 7200, "250ms": 0.25, "1e3": 1000, "300.0": 300}
    for text, seconds in values.items():
        assert parse_value(make("duration"), text, "here") == pytest.approx(seconds)
    for text in ("", "s", "-5", "1:30", "90 s", "5d", "1h30m", "nan", "inf", "1e999", "1e307h", "9" * 41):
        assert "expected a time such as 90s, 10m or 2h" in refusal(make("duration"), text)


def test_an_endless_value_is_refused_without_being_repeated() -> None:
    for kind in ("bool", "int", "float", "str", "duration"):
        message = refusal(make(kind), "9" * 5000)
        assert message == "f.yaml:3: size: a value has at most 4096 characters, got 5000"
    assert refusal(make("int"), "9" * 4000).endswith("9...'")


def test_bounds_are_shown_exactly() -> None:
    bounded = make("int", low=1, high=1_000_000)
    for text, message in (
        ("0", "must be at least 1, got 0"),
        ("1000001", "must be at most 1000000, got 1000001"),
        ("1e18", "must be at most 1000000, got 1e+18"),
        ("9" * 40, "must be at most 1000000, got 1e+40"),
    ):
        assert refusal(bounded, text) == f"f.yaml:3: size: {message}"
    assert [parse_value(bounded, text, "here") for text in ("1", "1000000")] == [1, 1_000_000]
    assert refusal(make("float", low=0.001), "0.0001").endswith("must be at least 0.001, got 0.0001")
    assert check_value(make("bool", low=5), True, "here") is True  # not held against numeric bounds


def test_a_choice_that_is_nearly_right_gets_a_hint() -> None:
    message = refusal(make("str", choices=("gloo", "nccl")), "ncll")
    assert message == "f.yaml:3: size: must be one of gloo, nccl, got 'ncll'; did you mean nccl?"
    message = refusal(make("str", choices=("gloo", "nccl")), "mpi")
    assert message == "f.yaml:3: size: must be one of gloo, nccl, got 'mpi'"
    assert nearest("batchsize", ["batch_size", "global_batch_size"]) == "; did you mean batch_size?"
    assert nearest("zzz", ["batch_size"]) == ""


def test_an_optional_setting_can_be_none_in_its_own_word() -> None:
    for text in ("none", "None", "null", "~"):
        assert parse_value(make("int", low=1, optional=True), text, "here") is None
    assert parse_value(make("int", optional=True, none_word="auto"), "auto", "here") is None
    assert "expected a whole number" in refusal(make("int", optional=True, none_word="auto"), "none")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A card with one setting of each shape."""

    wide_name: int = setting(PerDevice(cpu=1, cuda=2), "By device.", low=1)
    maybe: float | None = setting(None, "Perhaps.", none_word="auto")
    wait: float = setting(3.0, "A time.", kind="duration", sweep=False)


def test_settings_are_read_off_a_card() -> None:
    wide, maybe, wait = settings_of(Example)
    assert (wide.name, wide.kind, wide.optional, wide.card) == ("wide_name", "int", False, "Example")
    assert wide.flag == "--wide-name"
    assert (maybe.kind, maybe.optional, maybe.none_word) == ("float", True, "auto")
    assert (wait.kind, wait.sweep) == ("duration", False)


def test_a_default_may_differ_by_device() -> None:
    wide, _, wait = settings_of(Example)
    assert (wide.default_for("cpu"), wide.default_for("cuda")) == (1, 2)
    assert wait.default_for("cpu") == wait.default_for("cuda") == 3.0


def test_mistakes_of_a_card_are_refused() -> None:
    @dataclass
    class Ambiguous:
        both: int | str = setting(1, "Either.")

    with pytest.raises(AssertionError, match="one type"):
        settings_of(Ambiguous)
    # Defaults are resolved by the expansion alone, so a card never fills in its own.
    with pytest.raises(TypeError, match="missing"):
        Measuring()


def test_sizes_are_read_as_nccl_tests_reads_them() -> None:
    small = {"0": 0, "8": 8, "8B": 8, "1K": 1 << 10, "64k": 64 << 10, "32M": 32 << 20}
    large = {"32MB": 32 << 20, "1GiB": 1 << 30, "2gib": 2 << 30, "3T": 3 << 40}
    for text, value in {**small, **large}.items():
        assert parse_value(make("bytes"), text, "-b") == value
    for text in ("", "1X", "1.5M", "-8", "M", "1 M", "1Mi", "1KK", "1e6", "0x8", "9" * 41, "٣"):
        assert "expected a size such as 8, 64K, 32M or 1GiB" in refusal(make("bytes"), text)
    setting = make("bytes", low=1, high=1 << 40)
    assert parse_value(setting, "1T", "-e") == 1 << 40
    assert "must be at least 1, got 0" in refusal(setting, "0")
    assert "must be at most 1099511627776, got 2199023255552" in refusal(setting, "2T")


def test_a_link_is_a_kind_of_setting() -> None:
    setting = make("link", optional=True)
    assert parse_value(setting, "1:1GBIT,0:2gbit", "--link") == "0:2gbit,1:1gbit"
    assert parse_value(setting, "none", "--link") is None
    assert "expected a rate such as" in refusal(setting, "fast")
