"""Real ranks record who waits for whom, and the waterfall separates a slow rank from communication."""

import json
import statistics

import pytest

from scalescope.results.traces.summary import TraceSummary
from tests.conftest import TINY
from tests.gloo.real_runs import RunsHere

pytestmark = pytest.mark.gloo
_SLOW_MS = 60


def test_ranks_record_when_they_arrive(run_here: RunsHere) -> None:
    finished = run_here(
        "scale",
        *TINY,
        "--world-size=1,2",
        "--repeats=2",
        SCALESCOPE_FAULT=f"slow:{_SLOW_MS}@1:0",
    )
    assert finished.returncode == 0, finished.stderr
    recorded = [line for line in finished.results if line["settings"]["benchmark"] == "arrivals"]
    assert len(recorded) == 2
    for line in recorded:
        early, late = (TraceSummary.from_record(rank["samples"]) for rank in line["ranks"])
        assert early is not None and late is not None
        assert early.collective_s is not None and late.collective_s is not None
        # The other rank waits in its exchange; on a busy machine it may come late to one itself.
        waits = [sum(early.collective_s[step]) - sum(late.collective_s[step]) for step in range(early.steps)]
        assert statistics.median(waits) > 0.0
    summary = json.loads((finished.folder / "results.json").read_text())
    waterfall = summary["results"]["scaling"][-1]["waterfall"]
    names = [term["name"] for term in waterfall["terms"]]
    assert names == ["wrapper", "contention", "stragglers", "random skew", "communication"]
    assert waterfall["slowest_rank"]["rank"] == 1
    assert waterfall["slowest_rank"]["time_s"] > 0.0
    assert waterfall["communication_parts"] is not None
