"""`tune` as a job: every launch of its search is a step with new ranks, decided by the results so far."""

import json
import re
from typing import Any

import pytest

from scalescope.results.run import load_run
from tests.conftest import TINY
from tests.gloo.real_runs import FinishedRun
from tests.slurm.cluster import NODES
from tests.slurm.conftest import Commands, driven_by
from tests.speed import limit, patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]


def _tuned(commands: Commands) -> FinishedRun:
    levers = "--levers=bucket_cap_mb=1"
    # The few launches of one lever end before that, unless others use the cores.
    budget = f"--budget={limit(90):.0f}s"
    job = ("--launcher=slurm", "--nodes=2")
    run = commands.start("tune", *TINY, *job, levers, "--repeats=2", budget)
    finished = run.finish(400)
    assert run.leftovers() == []
    return finished


@driven_by(_tuned)
def test_a_search_in_steps_of_a_job_ends_with_a_verdict(outcome: Any) -> None:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    run = load_run(outcome.folder)
    assert run.warnings == ()
    assert {result.status for result in run.results} == {"ok"}
    assert {tuple(rank.host for rank in result.ranks) for result in run.results} == {NODES}
    stages = [result.stage.kind for result in run.results if result.stage is not None]
    assert stages[0] == "baseline" and "explore" in stages
    assert len({result.key for result in run.results}) == len(run.results) == len(stages)
    assert run.record.end is not None and run.record.end.why in ("finished", "budget")
    tuning = json.loads((outcome.folder / "tuning.json").read_text())
    assert run.record.repeatable
    # On a loaded machine the budget may end before the lever was compared again.
    if "confirm" in stages and run.record.end.why == "finished":
        assert any(row["verdict"] is not None for row in tuning["combinations"]), tuning["combinations"]
    assert f"In short: {tuning['verdict']}" in outcome.stdout


@driven_by(_tuned)
def test_the_job_ends_well_with_its_last_step(outcome: Any) -> None:
    (log,) = (outcome.folder / "slurm").glob("slurm-*.out")
    steps = re.findall(r"^Rendezvous of the ranks: ", log.read_text(), re.MULTILINE)
    assert len(load_run(outcome.folder).results) <= len(steps) <= len(load_run(outcome.folder).results) + 1
    assert "Job " in outcome.stdout and "a step for each launch of the search" in outcome.stdout
    assert "--resume submits the rest" not in outcome.stdout
