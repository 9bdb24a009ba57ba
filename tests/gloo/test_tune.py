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
    found = json.loads((finished.folder / "tuning.json").read_text())
    judged = [(one["lever"], one["verdict"], one["ci95_speedup"], one["launches"]) for one in found["tried"]]
    assert judged == [("bucket_cap_mb 1.0", None, None, 1), ("comm_hook fp16", None, None, 1)]
    assert all(abs(one["loss_change"]) < 0.02 for one in found["tried"])
    assert {one["lever"] for one in found["inapplicable"]} == {"pin_cores no", "env OMP_NUM_THREADS=1"}
    assert (found["finished"], found["recommended"], found["winner"]) == (True, False, [])
    assert {one["launches"] for one in finished.summary["results"]["training"]} == {1}
