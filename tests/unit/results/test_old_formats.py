"""What earlier versions stored in another way is read as what is stored today."""

import pytest

from scalescope.experiment.machines.nodes import NodeDifference
from scalescope.results.old_formats import bucket_bytes_of, node_differences_of
from scalescope.results.result import RankRecord


def record(**kept: object) -> RankRecord:
    return RankRecord(rank=0, host="h", device="d", placement="p", **kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kept", "sizes"),
    [
        ({"samples": {"bucket_bytes": [4000.0, 16.0]}}, (4000, 16)),
        ({"counters": {"bucket_bytes": "4000,16"}}, (4000, 16)),
        ({"counters": {"bucket_bytes": "30"}}, (30,)),
        ({"samples": {"bucket_bytes": []}}, None),
        ({}, None),
    ],
)
def test_bucket_sizes(kept: dict[str, object], sizes: tuple[int, ...] | None) -> None:
    assert bucket_bytes_of(record(**kept)) == sizes


DIFFERENCE = NodeDifference(name="GPUs", hosts_by_value={"8 x NVIDIA H100": ("n1", "n2"), "none": ("n3",)})


@pytest.mark.parametrize("stored", [DIFFERENCE.to_json(), DIFFERENCE.text])
def test_node_differences(stored: object) -> None:
    assert node_differences_of({"node_differences": [stored]}) == (DIFFERENCE,)


def test_a_run_that_recorded_no_differences_has_none() -> None:
    assert node_differences_of({}) == node_differences_of({"node_differences": None}) == ()


def test_a_difference_as_a_sentence() -> None:
    assert DIFFERENCE.text == "GPUs: 8 x NVIDIA H100 on n1, n2; none on n3"
