"""A stored run measured further by real ranks, as --until-conclusive does."""

import json
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.gloo.real_runs import RunsHere
from tests.speed import duration, patience

pytestmark = pytest.mark.gloo


@pytest.mark.timeout(patience(900))
def test_one_launch_is_joined_by_others_until_there_is_a_verdict(run_here: RunsHere, tmp_path: Path) -> None:
    # Ranks that sleep take the same time on a busy machine; noise decides how many launches are made.
    paced = ("--workload=paced", "--forward-ms=20", "--backward-ms=20", "--layers=2", "--layer-mb=0.01")
    flags = [
        flag for flag in TINY if not flag.startswith(("--input", "--hidden", "--num-layers", "--output"))
    ]
    for name, repeats in (("base", 3), ("new", 1)):
        folder = str(tmp_path / name)
        made = run_here("train", *flags, *paced, "--world-size=2", f"--repeats={repeats}", folder=folder)
        assert made.returncode == 0, made.stderr
    before = (tmp_path / "base" / "trials.jsonl").read_bytes()
    # Nearly everything is within 99 %: this is about launches, not about speed. They may be slow.
    asked = ("--threshold=99%", "--until-conclusive", f"--budget={duration(400)}")
    files = (str(tmp_path / "base"), str(tmp_path / "new"), f"--json={tmp_path / 'compared.json'}")
    done = run_here.reading("compare", *files, *asked)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "compared.json").read_text())["trials"]
    assert trial["base_launches"] == 3
    # Launches that other load disturbed are made and stored, and may be left out of the comparison.
    assert len((tmp_path / "new" / "trials.jsonl").read_text().splitlines()) >= 2
    assert (tmp_path / "base" / "trials.jsonl").read_bytes() == before
