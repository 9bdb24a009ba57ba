"""Pairs of ranks and of nodes: what each carries, and which link stands out."""

import dataclasses

from scalescope.analysis.comm.pairs import (
    PairRow,
    SlowLink,
    node_rates,
    pair_rows,
    slow_ends,
    slow_links,
    slow_pairs,
)
from scalescope.results.result import Result
from tests.builders.topologies import environment_of, two_sockets_of_pairs

from ..test_collectives import KEY, make_result

FOUR = {(0, 1): 100.0, (0, 2): 100.0, (0, 3): 100.0, (1, 2): 100.0, (1, 3): 100.0, (2, 3): 100.0}


def pairs_of(rates: dict[tuple[int, int], float], layout: str = "") -> tuple[PairRow, ...]:
    """Pairs with these rates; the layout has a letter, its node, for every rank."""
    return tuple(
        PairRow(
            low=low,
            high=high,
            size_bytes=1000,
            time_s=1000 / rate,
            nodes=(layout[low], layout[high]) if layout else ("", ""),
        )
        for (low, high), rate in rates.items()
    )


def named(rates: dict[tuple[int, int], float], layout: str = "") -> list[str]:
    return [link.name for link in slow_links(pairs_of(rates, layout))]


def test_a_pair_is_its_largest_size_and_its_slower_end() -> None:
    rows = pair_rows(
        [
            make_result(
                {"pair/0-1/64": [9.0], "pair/0-1/1024": [1.0, 2.0, 30.0]},
                {"pair/0-1/64": [9.0], "pair/0-1/1024": [4.0, 4.0, 1.0], "pair/1-2/1024": [8.0]},
                {"pair/1-2/1024": [6.0], "pair/0-2/1024": []},
            )
        ]
    )
    here = ("here", "here")
    assert rows == (
        PairRow(low=0, high=1, size_bytes=1024, time_s=4.0, nodes=here),
        PairRow(low=1, high=2, size_bytes=1024, time_s=8.0, nodes=here),
    )
    assert rows[0].bytes_per_s == 256.0
    assert pair_rows([make_result({KEY: [1.0]}, {KEY: [1.0]})]) == ()
    failed = make_result({"pair/0-1/64": [9.0]}, {"pair/0-1/64": [9.0]}, status="failed")
    assert pair_rows([failed]) == ()


def test_slow_ranks_and_pairs_are_named() -> None:
    (link,) = slow_links(pairs_of({**FOUR, (0, 2): 10.0, (1, 2): 10.0, (2, 3): 11.0}))
    assert link.name == "rank 2's link"
    assert (round(link.bytes_per_s), round(link.usual_bytes_per_s)) == (11, 100)
    assert named({**FOUR, (0, 3): 10.0}) == ["the link between ranks 0 and 3"]
    assert named({(0, 1): 1.0}) == []


def test_what_is_half_as_fast_does_not_stand_out() -> None:
    rates = {(0, 1): 100.0, (0, 2): 50.0, (1, 2): 50.0}
    assert slow_ends(rates) == () and slow_pairs(rates) == ()
    assert slow_ends({**rates, (0, 2): 49.0, (1, 2): 49.0}) == (2,)


def test_nodes_exchange_what_their_ranks_exchange_together() -> None:
    pairs = pairs_of({(0, 1): 500.0, (0, 2): 30.0, (1, 3): 40.0, (2, 3): 500.0}, "aabb")
    assert node_rates(pairs) == {("a", "b"): 70.0}
    pairs = pairs_of({(0, 1): 30.0, (2, 3): 40.0}, "abba")
    assert node_rates(pairs) == {("a", "b"): 70.0}
    layout = "aabbccd"
    rates = {(0, 2): 100.0, (1, 3): 100.0, (0, 4): 100.0, (1, 5): 100.0, (2, 4): 100.0, (3, 5): 100.0}
    fewer = {(0, 6): 100.0, (2, 6): 100.0, (4, 6): 100.0}
    assert named({**rates, **fewer}, layout) == []
    assert node_rates(pairs_of({**rates, **fewer}, layout))["a", "d"] == 100.0


def test_links_inside_and_between_nodes_are_not_compared() -> None:
    between = dict.fromkeys(((0, 2), (1, 3), (0, 4), (1, 5), (2, 4), (3, 5)), 10.0)
    assert named({(0, 1): 500.0, (2, 3): 500.0, (4, 5): 500.0, **between}, "aabbcc") == []
    inside = {(0, 1): 500.0, (2, 3): 500.0, (4, 5): 50.0}
    between = {(0, 2): 20.0, (1, 3): 20.0, (0, 4): 20.0, (1, 5): 20.0, (2, 4): 20.0, (3, 5): 20.0}
    assert named({**inside, **between}, "aabbcc") == ["the link between ranks 4 and 5"]


def test_a_slow_node_or_pair_of_nodes_is_named_and_not_its_ranks() -> None:
    rates = {(0, 1): 100.0, (0, 2): 10.0, (1, 2): 10.0, (0, 3): 100.0, (1, 3): 100.0, (2, 3): 10.0}
    assert named(rates, "abcd") == ["node c's link"]
    assert named({**FOUR, (1, 3): 10.0}, "abcd") == ["the link between nodes b and d"]


def test_one_card_of_a_node_is_the_link_of_the_ranks_behind_it() -> None:
    rates = {(0, 4): 100.0, (1, 5): 100.0, (2, 6): 10.0, (3, 7): 100.0}
    assert named(rates, "aaaabbbb") == ["the link between ranks 2 and 6"]
    first = {(0, 2): 100.0, (0, 4): 100.0, (2, 4): 100.0, (0, 6): 100.0, (2, 6): 100.0, (4, 6): 100.0}
    second = {(1, 3): 10.0, (1, 5): 10.0, (3, 5): 100.0, (1, 7): 10.0, (3, 7): 100.0, (5, 7): 100.0}
    assert named({**first, **second}, "aabbccdd") == ["rank 1's link"]


def on_paths(rates: dict[tuple[int, int], float], paths: dict[tuple[int, int], str]) -> list[SlowLink]:
    pairs = (dataclasses.replace(pair, path=paths.get((pair.low, pair.high))) for pair in pairs_of(rates))
    return list(slow_links(tuple(pairs)))


EIGHT = [(low, high) for low in range(8) for high in range(low + 1, 8)]


def test_slower_kinds_of_path_are_not_faults() -> None:
    """NVLink in pairs, PCIe switches inside a socket, and the way to the other socket with two GPUs."""
    paths = {pair: "SYS" if pair[0] // 6 != pair[1] // 6 else "PIX" for pair in EIGHT}
    paths |= {(0, 1): "NV12", (2, 3): "NV12", (4, 5): "NV12", (6, 7): "NV12"}
    rates = {pair: {"NV12": 200.0, "PIX": 40.0, "SYS": 10.0}[path] for pair, path in paths.items()}
    assert on_paths(rates, paths) == []
    assert on_paths(rates, {}) != []  # of unknown paths, the slow ones stand out


def test_a_link_is_held_against_its_own_kind_of_path() -> None:
    paths = {pair: "SYS" if pair[0] // 4 != pair[1] // 4 else "PIX" for pair in EIGHT}
    rates = {pair: 40.0 if path == "PIX" else 10.0 for pair, path in paths.items()}
    (link,) = on_paths({**rates, (1, 2): 12.0}, paths)
    assert (link.name, link.path) == ("the link between ranks 1 and 2", "PIX")
    assert (round(link.bytes_per_s), round(link.usual_bytes_per_s)) == (12, 40)
    slow = {pair: rate / 8 for pair, rate in rates.items() if 5 in pair}
    (link,) = on_paths({**rates, **slow}, paths)
    assert link.name == "rank 5's link"


def test_the_path_of_a_pair_comes_from_the_topology() -> None:
    result = placed("aaa")
    result.ranks[:] = [dataclasses.replace(record, device=f"cuda:{record.rank}") for record in result.ranks]
    rows = pair_rows([result], environment_of({"a": two_sockets_of_pairs()}))
    assert {(row.low, row.high): row.path for row in rows} == {(0, 1): "NV12", (0, 2): "SYS", (1, 2): "SYS"}
    assert {row.path for row in pair_rows([result], {})} == {None}


def placed(hosts: str, slow: int | None = None) -> Result:
    """A launch on these hosts in which the pairs of one rank are slow."""
    samples: list[dict[str, list[float]]] = [{} for _ in hosts]
    for low, high in ((0, 1), (0, 2), (1, 2)):
        for rank in (low, high):
            samples[rank][f"pair/{low}-{high}/1000"] = [10.0 if slow in (low, high) else 1.0]
    result = make_result(*samples)
    result.ranks[:] = [dataclasses.replace(record, host=hosts[record.rank]) for record in result.ranks]
    return result


def test_launches_on_other_nodes_are_not_mixed() -> None:
    before, after = placed("abc", slow=2), placed("def")
    assert slow_links(pair_rows([before, after])) == ()
    (link,) = slow_links(pair_rows([after, before]))
    assert link.name == "node c's link"
