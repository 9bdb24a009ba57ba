"""Link rates are read as people write them, kept in one form, and refused in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.catalog.link import parse_link, parse_rate, rates_of
from scalescope.errors import BadInput


def test_rates_are_bits_per_second() -> None:
    rates = {"100mbit": 1e8, "2.5gbit": 2.5e9, "10Gbit": 1e10, " 100kbit ": 1e5, "1000gbit": 1e12}
    assert {text: parse_rate(text, "--link") for text in rates} == rates


def test_what_is_no_rate_is_refused_with_an_example() -> None:
    for text in (
        "",
        "1",
        "1gb",
        "gbit",
        "-1gbit",
        "0gbit",
        "99kbit",
        "1001gbit",
        "1e3mbit",
        "1 gbit",
        "٣gbit",
    ):
        with pytest.raises(BadInput) as caught:
            parse_rate(text, "--link")
        expected = f"--link: expected a rate such as 100mbit, 1gbit or 10gbit, got {text!r}"
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1gbit", "1gbit"),
        (" 1GBIT ", "1gbit"),
        ("1:100mbit,0:1gbit", "0:1gbit,1:100mbit"),
        ("0:1Gbit, 10:2gbit, 2:3gbit", "0:1gbit,2:3gbit,10:2gbit"),
    ],
)
def test_links_have_one_form(text: str, canonical: str) -> None:
    assert parse_link(text, "--link") == canonical
    assert parse_link(canonical, "--link") == canonical


def test_each_rank_is_named_once() -> None:
    for text in ("1gbit,2gbit", "0:1gbit,00:2gbit", "a:1gbit", ":1gbit", "-1:1gbit", "0:1gbit,"):
        with pytest.raises(BadInput, match=r"^e.yaml:3: link: .*expected RANK:RATE for each rank once"):
            parse_link(text, "e.yaml:3: link")
    with pytest.raises(BadInput, match="got '1gb'"):
        parse_link("0:1gbit,1:1gb", "--link")


def test_rates_are_of_every_rank_or_of_named_ones_in_their_order() -> None:
    assert rates_of("100mbit", 3) == [1e8] * 3
    assert rates_of("0:1gbit,1:100mbit,2:2gbit", 2) == [1e9, 1e8]
    with pytest.raises(BadInput) as caught:
        rates_of("0:1gbit,2:1gbit", 3)
    assert str(caught.value) == "--link 0:1gbit,2:1gbit: has no rate for rank 1"


@settings(max_examples=30)
@given(st.dictionaries(st.integers(0, 99), st.integers(1, 999), min_size=1))
def test_the_order_of_ranks_does_not_matter(rates: dict[int, int]) -> None:
    parts = [f"{rank}:{rate}mbit" for rank, rate in rates.items()]
    link = parse_link(",".join(parts), "--link")
    assert link == parse_link(",".join(reversed(parts)), "--link")
    if set(rates) == set(range(len(rates))):
        assert rates_of(link, len(rates)) == [rates[rank] * 1e6 for rank in range(len(rates))]
