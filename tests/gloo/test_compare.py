"""A stored run measured again by real ranks in turns with a changed setting, as --interleave does."""

import json
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.gloo.real_runs import RunsHere
from tests.speed import duration, patience

pytestmark = pytest.mark.gloo


@pytest.mark.timeout(patience(900))
def test_a_run_and_a_changed_setting_are_measured_in_turns(run_here: RunsHere, tmp_path: Path) -> None:
    # Ranks that sleep take the same time on a busy machine; noise decides how many launches are made.
    paced = ("--workload=paced", "--forward-ms=20", "--backward-ms=20", "--layers=2", "--layer-mb=0.01")
    flags = [
        flag for flag in TINY if not flag.startswith(("--input", "--hidden", "--num-layers", "--output"))
    ]
    base = tmp_path / "base"
    made = run_here("train", *flags, *paced, "--world-size=2", "--repeats=1", folder=str(base))
    assert made.returncode == 0, made.stderr
    before = (base / "trials.jsonl").read_bytes()
    # Nearly everything is within 99 %: this is about launches, not about speed. They may be slow.
    asked = ("--interleave", "--set=forward_ms=21", "--threshold=99%", f"--budget={duration(400)}")
    done = run_here.reading("compare", str(base), *asked, f"--json={tmp_path / 'compared.json'}")
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "compared.json").read_text())["trials"]
    # Launches that other load disturbed are made and stored, and may be left out of the comparison.
    assert min(trial["base_launches"], trial["new_launches"]) >= 2
    assert (base / "trials.jsonl").read_bytes() == before
