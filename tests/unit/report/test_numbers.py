"""Numbers as people read them."""

import random

import pytest

from scalescope.analysis.statistics import Estimate
from scalescope.report.numbers import (
    counted,
    detectable,
    detection_limit,
    duration,
    in_ms,
    in_us_or_ms,
    milliseconds,
    percent,
    percent_with_interval,
    range_ms,
    short_percent,
    signed_percent,
    significant,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (0.12345, "0.123"),
        (0.0012345, "0.00123"),
        (0.000012345, "0.0000123"),
        (-0.000012345, "-0.0000123"),
        (1.23456, "1.23"),
        (-1.23456, "-1.23"),
        (12.3456, "12.3"),
        (123.456, "123"),
        (1234.56, "1,235"),
        (1234567.8, "1,234,568"),
        (1.2e15, "1,200,000,000,000,000"),
    ],
)
def test_significant(value: float, text: str) -> None:
    assert significant(value) == text


def test_significant_keeps_the_digits_and_has_no_exponent() -> None:
    source = random.Random("digits")
    for _ in range(500):
        value = 10 ** source.uniform(-12, 15)
        text = significant(value, 4)
        assert "e" not in text.lower()
        assert float(text.replace(",", "")) == pytest.approx(value, rel=0.6e-3)


def test_units() -> None:
    assert milliseconds(0.0123456) == "12.3"
    assert milliseconds(1e-9) == "0.000001"
    assert milliseconds(2.5) == "2,500"
    assert percent(0.614) == "61 %"


def test_percent_with_interval() -> None:
    assert percent_with_interval(Estimate(0.614, 0.58, 0.641)) == "61 % [58, 64]"
    assert percent_with_interval(Estimate(0.614)) == "61 %"


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (1, "rank", "1 rank"),
        (2, "rank", "2 ranks"),
        (0, "launch", "0 launches"),
        (1, "launch", "1 launch"),
        (5, "launch", "5 launches"),
        (12345, "trial", "12,345 trials"),
    ],
)
def test_counted(number: int, thing: str, text: str) -> None:
    assert counted(number, thing) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (5399.0, "90 min"), (5400.0, "1.5 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (in_ms(0.0129), "12.9 ms"),
        (in_ms(0.0129, 2), "12.90 ms"),
        (in_ms(-0.00035), "−0.35 ms"),
        (in_ms((0.1 + 0.2 - 0.3) * -1e-3), "0 ms"),
        (range_ms(0.01286, 0.01294, 2), "12.86 to 12.94 ms"),
        (in_us_or_ms(85e-6), "85.0 µs"),
        (in_us_or_ms(0.0129), "12.9 ms"),
        (in_us_or_ms(None), "unknown"),
        (percent(-0.002), "0 %"),
        (short_percent(0.03), "3 %"),
        (short_percent(0.025), "2.5 %"),
        (signed_percent(0.05), "+5.0 %"),
        (detectable(None), "—"),
        (detectable(13.0), "over 100 %"),
    ],
)
def test_times_and_shares(text: str, expected: str) -> None:
    assert text == expected


def test_the_detection_limit_names_the_smallest_and_the_largest() -> None:
    assert detection_limit([None]) == ()
    (line,) = detection_limit([0.02, None, 0.055])
    assert "2 %" in line and "5.5 %" in line
    (line,) = detection_limit([0.02])
    assert line.startswith("Differences below 2 % cannot")
