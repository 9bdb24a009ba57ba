"""Values are read from text by the setting's own type, and refused in one line that names what would work."""

from dataclasses import dataclass

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import (
    UNSET,
    Kind,
    PerDevice,
    Scalar,
    Setting,
    check_value,
    nearest,
    parse_value,
    setting,
    settings_of,
)
from scalescope.errors import BadInput


def make(
    kind: Kind,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    optional: bool = False,
    none_word: str = "none",
) -> Setting:
    return Setting(
        name="size",
        kind=kind,
        default=None,
        help="A size.",
        card="Example",
        low=low,
        high=high,
        choices=choices,
        optional=optional,
        none_word=none_word,
    )


def refusal(setting: Setting, text: str) -> str:
    """The message that refuses `text`, which is always one line that begins with where it stood."""
    with pytest.raises(BadInput) as caught:
        parse_value(setting, text, "f.yaml:3: size")
    message = str(caught.value)
    assert message.startswith("f.yaml:3: size: ")
    assert message.isprintable()
    assert len(message) < 200
    return message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("7", 7),
        ("+7", 7),
        ("-7", -7),
        (" 12 ", 12),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1.5e1", 15),
        ("2147483648", 2**31),
    ],
)
def test_whole_numbers(text: str, value: int) -> None:
    parsed = parse_value(make("int"), text, "here")
    assert parsed == value
    assert type(parsed) is int


@pytest.mark.parametrize(
    "text",
    [
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
        "nan",
        ".nan",
        "inf",
        ".inf",
        "١٢",
        "²",
        "1 2",
        "--3",
        "9" * 41,
    ],
)
def test_what_is_no_whole_number(text: str) -> None:
    assert "expected a whole number" in refusal(make("int"), text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("-1.0e-05", -1e-5)],
)
def test_numbers(text: str, value: float) -> None:
    parsed = parse_value(make("float"), text, "here")
    assert parsed == value
    assert type(parsed) is float


@pytest.mark.parametrize(
    "text",
    ["", ".", "e3", "nan", ".nan", "NaN", "inf", ".inf", "-.inf", "Infinity", "1e999", "1:30", "1,5", "no"],
)
def test_what_is_no_finite_number(text: str) -> None:
    assert "expected a finite number" in refusal(make("float"), text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("Yes", True), ("ON", True), ("false", False), ("no", False), ("off", False)],
)
def test_booleans(text: str, value: bool) -> None:
    assert parse_value(make("bool"), text, "here") is value


@pytest.mark.parametrize("text", ["", "1", "0", "y", "none", "truee"])
def test_what_is_no_boolean(text: str) -> None:
    assert "expected true or false" in refusal(make("bool"), text)


@pytest.mark.parametrize("text", ["no", "0777", "1:30", "true", "null", "none", "größe", "a b"])
def test_words_stay_as_they_were_written(text: str) -> None:
    assert parse_value(make("str"), text, "here") == text


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "a\x1b[31m", "a\u202eb", "a\0b"])
def test_what_is_no_printable_word(text: str) -> None:
    assert "expected a printable word" in refusal(make("str"), text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("10m", 600),
        ("2h", 7200),
        ("250ms", 0.25),
        ("1e3", 1000),
        ("300.0", 300),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_value(make("duration"), text, "here") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-5", "1:30", "90 s", "5d", "1h30m", "nan", "inf", "1e999", "1e307h", "9" * 41, "no"]
)
def test_what_is_no_duration(text: str) -> None:
    assert "expected a time such as 90s, 10m or 2h" in refusal(make("duration"), text)


@pytest.mark.parametrize("kind", ["bool", "int", "float", "str", "duration"])
def test_an_endless_value_is_refused_without_being_repeated(kind: Kind) -> None:
    assert refusal(make(kind), "9" * 5000) == "f.yaml:3: size: a value has at most 4096 characters, got 5000"


def test_a_long_value_is_shown_in_part() -> None:
    assert refusal(make("int"), "9" * 4000).endswith("9...'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "must be at least 1, got 0"),
        ("-5", "must be at least 1, got -5"),
        ("1000001", "must be at most 1000000, got 1000001"),
        ("1e18", "must be at most 1000000, got 1e+18"),
        ("9" * 40, "must be at most 1000000, got 1e+40"),
    ],
)
def test_bounds_are_shown_exactly(text: str, message: str) -> None:
    assert refusal(make("int", low=1, high=1_000_000), text) == f"f.yaml:3: size: {message}"


def test_bounds_of_a_fraction() -> None:
    assert refusal(make("float", low=0.001), "0.0001").endswith("must be at least 0.001, got 0.0001")


@pytest.mark.parametrize("text", ["1", "1000000"])
def test_the_bounds_themselves_are_allowed(text: str) -> None:
    assert parse_value(make("int", low=1, high=1_000_000), text, "here") == int(text)


def test_a_choice_that_is_nearly_right_gets_a_hint() -> None:
    message = refusal(make("str", choices=("gloo", "nccl")), "ncll")
    assert message == "f.yaml:3: size: must be one of gloo, nccl, got 'ncll'; did you mean nccl?"


def test_a_choice_far_from_all_gets_the_list_alone() -> None:
    message = refusal(make("str", choices=("gloo", "nccl")), "mpi")
    assert message == "f.yaml:3: size: must be one of gloo, nccl, got 'mpi'"


@pytest.mark.parametrize("text", ["none", "None", "null", "~"])
def test_an_optional_setting_can_be_none(text: str) -> None:
    assert parse_value(make("int", low=1, optional=True), text, "here") is None


def test_a_setting_has_its_own_word_for_none() -> None:
    assert parse_value(make("int", optional=True, none_word="auto"), "auto", "here") is None
    assert "expected a whole number" in refusal(make("int", optional=True, none_word="auto"), "none")


@pytest.mark.parametrize("text", ["none", "null", "~", "auto"])
def test_a_setting_that_is_not_optional_cannot_be_none(text: str) -> None:
    assert "expected a whole number" in refusal(make("int"), text)


def test_a_boolean_is_not_held_against_numeric_bounds() -> None:
    assert check_value(make("bool", low=5), True, "here") is True


def test_nearest_finds_the_closest_word_or_returns_nothing() -> None:
    assert nearest("batchsize", ["batch_size", "global_batch_size"]) == "; did you mean batch_size?"
    assert nearest("zzz", ["batch_size"]) == ""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A card with one setting of each shape."""

    wide_name: int = setting(PerDevice(cpu=1, cuda=2), "By device.", low=1)
    maybe: float | None = setting(None, "Perhaps.", none_word="auto")
    wait: float = setting(3.0, "A time.", kind="duration", neutral=3.0, sweep=False)


def test_settings_are_read_off_a_card() -> None:
    wide, maybe, wait = settings_of(Example)
    assert (wide.name, wide.kind, wide.optional, wide.card) == ("wide_name", "int", False, "Example")
    assert wide.flag == "--wide-name"
    assert wide.neutral is UNSET
    assert (maybe.kind, maybe.optional, maybe.none_word) == ("float", True, "auto")
    assert (wait.kind, wait.sweep, wait.neutral) == ("duration", False, 3.0)


@pytest.mark.parametrize(("device", "value"), [("cpu", 1), ("cuda", 2)])
def test_a_default_may_differ_by_device(device: str, value: Scalar) -> None:
    wide, _, wait = settings_of(Example)
    assert wide.default_for(device) == value
    assert wait.default_for(device) == 3.0


def test_a_setting_of_two_types_is_a_mistake_of_the_card() -> None:
    @dataclass
    class Ambiguous:
        both: int | str = setting(1, "Either.")

    with pytest.raises(AssertionError, match="one type"):
        settings_of(Ambiguous)


def test_a_field_without_a_value_must_be_given() -> None:
    """Defaults are resolved by the expansion alone, so a card never fills in its own."""
    with pytest.raises(TypeError, match="missing"):
        Measuring()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("8", 8),
        ("8B", 8),
        ("1K", 1 << 10),
        ("64k", 64 << 10),
        ("32M", 32 << 20),
        ("32MB", 32 << 20),
        ("1GiB", 1 << 30),
        ("2gib", 2 << 30),
        ("3T", 3 << 40),
    ],
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, value: int) -> None:
    assert parse_value(make("bytes"), text, "-b") == value


@pytest.mark.parametrize(
    "text", ["", "1X", "1.5M", "-8", "M", "1 M", "1Mi", "1KK", "1e6", "0x8", "9" * 41, "٣"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    assert "expected a size such as 8, 64K, 32M or 1GiB" in refusal(make("bytes"), text)


def test_sizes_have_bounds() -> None:
    setting = make("bytes", low=1, high=1 << 40)
    assert parse_value(setting, "1T", "-e") == 1 << 40
    assert "must be at least 1, got 0" in refusal(setting, "0")
    assert "must be at most 1099511627776, got 2199023255552" in refusal(setting, "2T")


def test_a_link_is_a_kind_of_setting() -> None:
    setting = make("link", optional=True)
    assert parse_value(setting, "1:1GBIT,0:2gbit", "--link") == "0:2gbit,1:1gbit"
    assert parse_value(setting, "none", "--link") is None
    assert "expected a rate such as" in refusal(setting, "fast")
