"""The loop of a job whose launches are decided one after the other: when it goes on, and when it ends."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from scalescope.errors import BadInput, ExitCode
from scalescope.launch.slurm.lint import lint
from scalescope.launch.slurm.script import SlurmJob, sbatch_script
from tests.speed import patience

_JOB = SlurmJob(
    name="scalescope-tune",
    nodes=2,
    tasks_per_node=1,
    cpus_per_task=1,
    run_folder=Path("/shared/runs/a"),
    output=Path("/shared/runs/a/slurm"),
    directory=Path("/shared"),
    command=("scalescope", "tune", "request.yaml"),
    launches=20,
    in_turn=True,
)
# Every step takes the next line of `steps`: its exit code, and whether it stores a result.
_SRUN = """\
#!/bin/bash
echo "$@" >>"$RUN/calls"
read -r code stores < <(sed -n "$(grep -c '' "$RUN/calls")p" "$RUN/steps")
test "$stores" = stores && echo '{}' >>"$RUN/trials.jsonl"
exit "${code:-1}"
"""


def _run_loop(tmp_path: Path, *steps: str) -> tuple[int, list[str]]:
    """The exit code of the script, and the calls of srun."""
    (tmp_path / "steps").write_text("\n".join(steps) + "\n")
    srun = tmp_path / "srun"
    srun.write_text(_SRUN)
    srun.chmod(0o755)
    script = sbatch_script(dataclasses.replace(_JOB, run_folder=tmp_path, directory=tmp_path))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert (done.stdout, done.stderr) == ("", "")
    return done.returncode, (tmp_path / "calls").read_text().splitlines()


_OVER = int(ExitCode.SEARCH_OVER)


def test_the_script_is_one_that_the_linter_accepts() -> None:
    script = sbatch_script(_JOB)
    assert lint(script) == []
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_steps_are_made_until_one_says_that_the_search_is_over(tmp_path: Path) -> None:
    code, calls = _run_loop(tmp_path, "0 stores", "0 stores", f"{_OVER} stores", "0 stores")
    assert code == 0
    assert len(calls) == 3
    assert all(call.endswith("scalescope tune request.yaml --only-launch=next") for call in calls)


@pytest.mark.parametrize("failure", [1, 4, 5, 137])
def test_a_launch_that_fails_does_not_end_the_search(tmp_path: Path, failure: int) -> None:
    assert len(_run_loop(tmp_path, "0 stores", f"{failure} stores", "0 stores", f"{_OVER} no")[1]) == 4


def test_a_search_that_was_completed_ends_well_whatever_failed_in_it(tmp_path: Path) -> None:
    assert _run_loop(tmp_path, "4 stores", f"{_OVER} stores")[0] == 0


@pytest.mark.parametrize("failure", [1, 4, 127, 143])
def test_a_step_that_stored_nothing_would_fail_again(tmp_path: Path, failure: int) -> None:
    code, calls = _run_loop(tmp_path, "0 stores", f"{failure} no", "0 stores")
    assert (code, len(calls)) == (failure, 2)


@pytest.mark.parametrize("failure", [2, 3])
def test_what_cannot_run_ends_the_job(tmp_path: Path, failure: int) -> None:
    code, calls = _run_loop(tmp_path, f"{failure} stores", "0 stores")
    assert (code, len(calls)) == (failure, 1)


def test_a_search_that_never_ends_is_ended(tmp_path: Path) -> None:
    assert len(_run_loop(tmp_path, *["0 stores"] * 30)[1]) == 20


def test_a_template_must_know_when_the_search_is_over() -> None:
    loop = '#!/bin/bash\nfor launch in {launches}; do srun {command} --only-launch="$launch"; {end} done\n'
    with pytest.raises(BadInput, match=r"\{search_over\} is missing, so the job would not end"):
        sbatch_script(_JOB, loop.replace("{end}", ""))
    script = sbatch_script(_JOB, loop.replace("{end}", "(($? == {search_over})) && break;"))
    assert f"(($? == {_OVER})) && break" in script
