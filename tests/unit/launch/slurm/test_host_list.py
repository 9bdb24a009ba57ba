"""SLURM's short forms, written out."""

import pytest

from scalescope.errors import BadInput
from scalescope.launch.slurm.host_list import counts_of, hosts_of


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n1,gpu-a", ["n1", "gpu-a"]),
        ("n[1-3,7],gpu-a", ["n1", "n2", "n3", "n7", "gpu-a"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1,3].site", ["r1n1.site", "r1n3.site", "r2n1.site", "r2n3.site"]),
        ("a[1]b,c[2]", ["a1b", "c2"]),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert hosts_of(text) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "n[", "n[]", "n[1-]", "n[3-1]", "n[a-b]", "n1 n2", "$(reboot)", "n[1]]", "n;1"]
)
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(BadInput):
        hosts_of(text)


def test_a_list_that_never_ends_is_refused() -> None:
    with pytest.raises(BadInput, match="more than 100,000 hosts"):
        hosts_of("n[1-999999999999]")
    with pytest.raises(BadInput, match="not a list of counts"):
        counts_of("1(x999999999999)")


def test_counts_for_each_node() -> None:
    assert counts_of("4") == [4]
    assert counts_of("4(x2),1") == [4, 4, 1]
    with pytest.raises(BadInput, match="not a list of counts such as"):
        counts_of("four")
