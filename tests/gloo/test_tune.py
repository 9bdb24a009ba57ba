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
    judged = [
        (lever["lever"], lever["verdict"], lever["ci95_speedup"], lever["launches"])
        for lever in tuning["tried"]
    ]
    assert judged == [("bucket_cap_mb 1.0", None, None, 1), ("comm_hook fp16", None, None, 1)]
    assert all(abs(lever["loss_change"]) < 0.02 for lever in tuning["tried"])
    assert {lever["lever"] for lever in tuning["inapplicable"]} == {"pin_cores no", "env OMP_NUM_THREADS=1"}
    assert (tuning["finished"], tuning["recommended"], tuning["winner"]) == (True, False, [])
    assert {row["launches"] for row in finished.summary["results"]["training"]} == {1}
