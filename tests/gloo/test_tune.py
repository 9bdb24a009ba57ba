"""`tune` on attached ranks: two real ranks, one launch of everything, no verdict."""

import json

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start, start_as_ranks

pytestmark = pytest.mark.gloo


def test_tune_on_attached_ranks_launches_everything_once_and_judges_nothing(start: Start) -> None:
    levers = "--levers=bucket_cap_mb=1,comm_hook=fp16,pin_cores,env=OMP_NUM_THREADS=1"
    run, other = start_as_ranks(start, "tune", *TINY, levers)
    finished = run.finish()
    assert finished.returncode == 0, finished.stderr
    assert other.finish().returncode == 0
    assert run.leftovers() == other.leftovers() == []
    assert {(result["launch"], result["status"], len(result["ranks"])) for result in finished.results} == {
        (0, "ok", 2)
    }
    assert len({result["trial_id"] for result in finished.results}) == len(finished.results) == 3
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    rows = {
        tuple(row["levers"]): (row["verdict"], row["ci95_speedup"], row["launches"])
        for row in tuning["combinations"]
    }
    once = (None, None, 1)
    assert rows == {(): once, ("bucket_cap_mb 1.0",): once, ("comm_hook fp16",): once}
    changes = [row["loss_change"] for row in tuning["combinations"] if row["levers"]]
    assert all(abs(change) < 0.02 for change in changes)
    assert {lever["lever"] for lever in tuning["inapplicable"]} == {"pin_cores no", "env OMP_NUM_THREADS=1"}
    assert (tuning["finished"], tuning["recommended"], tuning["winner"]) == (True, False, [])
    assert {row["launches"] for row in finished.summary["results"]["training"]} == {1}


@pytest.mark.basic
def test_a_search_with_real_ranks_measures_the_baseline_first_and_answers(start: Start) -> None:
    """Whatever the machine is like: what is fastest here is not the question."""
    run = start(
        "tune",
        *TINY,
        "--world-size=2",
        "--levers=bucket_cap_mb=1,comm_hook=fp16",
        "--repeats=2",
        "--budget=5m",
    )
    finished = run.finish()
    assert finished.returncode == 0, finished.stderr
    assert run.leftovers() == []
    tuning = json.loads((finished.folder / "tuning.json").read_text())
    first = finished.results[0]
    assert (first["trial_id"], first["stage"]["kind"]) == (tuning["baseline"], "baseline")
    ids = {row["trial_id"] for row in tuning["combinations"]}
    silent = tuning["without_communication"]
    assert {result["trial_id"] for result in finished.results} == ids | (
        {silent["trial_id"]} if silent else set()
    )
    assert {lever["lever"] for lever in tuning["levers"]} == {"bucket_cap_mb 1.0", "comm_hook fp16"}
    assert tuning["recommended"] == (finished.folder / "tuned.yaml").is_file()
    assert tuning["recommended"] or tuning["at_most"] is not None
