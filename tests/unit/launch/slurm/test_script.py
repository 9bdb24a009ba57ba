"""The sbatch script, word for word, what it refuses to hold, and how its loops go on and end."""

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, ExitCode
from scalescope.launch.slurm.lint import lint
from scalescope.launch.slurm.script import SlurmJob, sbatch_script
from tests.speed import patience

_GOLDEN = Path(__file__).parents[3] / "golden/slurm"
_HOSTILE = ["a;b", "$(touch x)", "a\nb", "a'b", "a b", "-x", "", "ü"]
_CPU = SlurmJob(
    name="scalescope-train",
    nodes=1,
    tasks_per_node=1,
    cpus_per_task=1,
    run_folder=Path("/shared/runs/a"),
    output=Path("/shared/runs/a/slurm"),
    directory=Path("/shared/my project"),
    command=("/opt/python", "-m", "scalescope", "train", "/shared/runs/a/slurm/request.yaml"),
    launches=1,
)
_GPU = dataclasses.replace(
    _CPU,
    name="big.run-2",
    nodes=2,
    tasks_per_node=4,
    cpus_per_task=8,
    gpus_per_node=4,
    partition="gpu,gpu-long",
    account="physics_1",
    time="90m",
    setup=("module load cuda", "export A='1 2'\nulimit -c 0"),
    launches=5,
)


_OF_COMMAND = dataclasses.replace(_GPU, of_command=True)


_IN_TURN = dataclasses.replace(
    _CPU, nodes=2, command=("scalescope", "tune", "request.yaml"), launches=20, in_turn=True
)


@pytest.mark.parametrize(
    ("name", "job"), [("cpu", _CPU), ("gpu", _GPU), ("command", _OF_COMMAND), (None, _IN_TURN)]
)
def test_scripts_are_as_written_down_and_pass_the_linter(name: str | None, job: SlurmJob) -> None:
    script = sbatch_script(job)
    path = _GOLDEN / f"{name}.sbatch"
    if name and os.environ.get("UPDATE_GOLDEN"):
        path.write_text(script)
    assert name is None or script == path.read_text()
    mistakes = lint(script)
    if job.of_command:  # whose number of threads is set for each launch
        mistakes = [mistake for mistake in mistakes if "OMP_NUM_THREADS" not in mistake.what]
    assert mistakes == []
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


_STEPS = 'for launch in {launches}; do\n    %s --only-launch="$launch"\ndone\n'


@pytest.mark.parametrize("step", ["srun {command}", "srun --ntasks=2 \\\n  {command}"])
def test_a_template_that_starts_a_training_command_by_srun_is_refused(step: str) -> None:
    sbatch_script(_GPU, _STEPS % step)
    with pytest.raises(
        BadInput, match=r"a training command starts its own ranks; write \{command\} without srun"
    ):
        sbatch_script(_OF_COMMAND, _STEPS % step)


def test_a_template_may_use_srun_for_other_things_than_the_training_command() -> None:
    script = sbatch_script(_OF_COMMAND, "# not srun {command}\nsrun hostname\n" + _STEPS % "{command}")
    assert "srun hostname" in script


@pytest.mark.parametrize("field", ["name", "partition", "account", "time"])
@pytest.mark.parametrize("value", _HOSTILE)
def test_unsafe_words_are_refused(field: str, value: str) -> None:
    with pytest.raises(BadInput):
        sbatch_script(dataclasses.replace(_CPU, **{field: value}))


def test_everything_else_is_quoted() -> None:
    words = ("echo", "$(touch x)", "a'b", "; rm -rf", "{setup}")
    script = sbatch_script(dataclasses.replace(_CPU, command=words, directory=Path("/a $(b)")))
    assert """echo '$(touch x)' 'a'"'"'b' '; rm -rf' '{setup}' --only-launch="$launch"\n""" in script
    assert "cd '/a $(b)' || exit 7" in script


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("300s", "00:05:00"),
        ("5m", "00:05:00"),
        ("5:00", "5:00"),
        ("90m", "01:30:00"),
        ("30h", "30:00:00"),
        ("1-12:00:00", "1-12:00:00"),
    ],
)
def test_times(given: str, written: str) -> None:
    assert f"#SBATCH --time={written}\n" in sbatch_script(dataclasses.replace(_CPU, time=given))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"output": Path(path)}, "--output-dir")
            for path in ("/a b", "/$(id)", "/a\nb", "relative", "/a%j")
        ),
        ({"command": ("a\nb",)}, "not allowed in an sbatch script"),
        ({"setup": ("true\n#SBATCH --partition=x",)}, "sbatch would ignore"),
        ({"setup": ("a\0b",)}, "not a line of a shell script"),
        *(({"time": time}, f"--time: {time} means no limit to SLURM") for time in ("0s", "0:00", "0-00:00")),
        *(
            ({"time": time}, f"must be at least 5m, got {time}")
            for time in ("45s", "4m", "4:59", "0-0:04:59")
        ),
        ({"time": "30"}, "such as 30m, 2h or"),
    ],
)
def test_what_a_script_cannot_hold_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        sbatch_script(dataclasses.replace(_CPU, **change))


_SRUN = """\
#!/bin/bash
case "$*" in *--only-launch=0*) {first} ;; *) exit {second} ;; esac
"""


def _run_script(
    tmp_path: Path, first: str, second: int, *, before: str | None = None, **extra: str
) -> tuple[int, str]:
    """Run the script of two launches; `first` is what srun does in the first."""
    run = tmp_path / "it's a run"
    run.mkdir()
    if before is not None:
        (run / "trials.jsonl").write_text(before)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    commands = {
        "srun": _SRUN.format(first=first, second=second),
        "scontrol": "#!/bin/bash\necho scontrol $*\n",
    }
    for name, text in commands.items():
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    script = sbatch_script(dataclasses.replace(_CPU, run_folder=run, directory=tmp_path, launches=2))
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_JOB_ID": "5", **extra}
    done = subprocess.run(
        ["bash", "-c", f"export BATCH=$$\n{script}"],
        env={**environment, "RUN": str(run)},
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    return done.returncode, done.stdout + done.stderr


_SIGNAL = "kill -USR1 $BATCH; sleep 0.3"
_FINISH = """echo '{"launch":0,"status":"ok"}' >>"$RUN/trials.jsonl\""""
_OLD = '{"launch":0,"status":"ok"}\n'


def test_a_job_that_came_on_goes_back_to_the_queue(tmp_path: Path) -> None:
    code, output = _run_script(tmp_path, f"{_FINISH}; {_SIGNAL}; exit 4", 0, before=_OLD)
    assert output == "requeued; what is finished is kept\nscontrol requeue 5\n"
    assert code == 4  # the step's status, not that of a `wait` that the signal ended


@pytest.mark.parametrize("before", [None, _OLD])
def test_a_job_that_finished_nothing_does_not_go_back(tmp_path: Path, before: str | None) -> None:
    code, output = _run_script(tmp_path, f"{_SIGNAL}; exit 0", 0, before=before)
    assert "scalescope: nothing was finished since the start: not requeued" in output
    assert "scontrol" not in output
    assert code == 0


def test_a_job_goes_back_twenty_times_only(tmp_path: Path) -> None:
    _, output = _run_script(tmp_path, f"{_FINISH}; {_SIGNAL}; exit 0", 0, SLURM_RESTART_COUNT="20")
    assert "scalescope: started 20 times and not finished: giving up" in output
    assert "scontrol" not in output


def test_a_step_that_ends_while_the_signal_is_handled_keeps_its_status(tmp_path: Path) -> None:
    code, output = _run_script(tmp_path, f"{_FINISH}; kill -USR1 $BATCH; exit 0", 0)
    assert "scontrol requeue 5" in output
    assert code == 0


@pytest.mark.parametrize(("first", "second", "status"), [(2, 0, 2), (3, 0, 3), (4, 5, 5), (0, 0, 0)])
def test_a_job_ends_as_its_steps_did(tmp_path: Path, first: int, second: int, status: int) -> None:
    assert _run_script(tmp_path, f"exit {first}", second) == (status, "")


_TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={job_name} --nodes={nodes}
#SBATCH --qos={partition}
#SBATCH --constraint=ib
{setup}
for launch in {launches}; do ${nodes} {unknown} srun -n {tasks} {command} --only-launch=$launch; done
"""


def test_a_site_s_template_is_filled_in_one_pass() -> None:
    job: dict[str, Any] = {"setup": ("echo {command} {nodes}",), "command": ("run", "{tasks}")}
    assert (
        sbatch_script(dataclasses.replace(_GPU, **job), _TEMPLATE)
        == """\
#!/bin/bash
#SBATCH --job-name=big.run-2 --nodes=2
#SBATCH --qos=gpu,gpu-long
#SBATCH --constraint=ib
echo {command} {nodes}
for launch in 0 1 2 3 4; do ${nodes} {unknown} srun -n 8 run '{tasks}' --only-launch=$launch; done
"""
    )


def test_lines_of_a_template_without_their_value_are_left_out() -> None:
    script = sbatch_script(_CPU, _TEMPLATE)
    assert "qos" not in script
    assert "constraint" in script


def test_a_line_that_does_more_than_hand_on_a_value_is_not_left_out() -> None:
    loop = 'for launch in {launches}; do srun -A {account} {command} --only-launch="$launch"; done\n'
    with pytest.raises(BadInput, match=r"line 2 requires \{account\}; give --account"):
        sbatch_script(_CPU, f"#!/bin/bash\n{loop}")
    assert "srun -A physics_1 /opt/python" in sbatch_script(_GPU, f"#!/bin/bash\n{loop}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{command}", "hostname"), r"\{command\} is missing, so the job would run nothing"),
        (("{launches}", "0 1"), r"\{launches\} is missing, so the job would not make every launch"),
        (("--only-launch", "--other"), "--only-launch is missing, so steps would not know their launch"),
        (("srun", "# srun"), r"\{command\} appears only in comments"),
    ],
)
def test_a_template_must_make_every_launch(change: tuple[str, str], message: str) -> None:
    template = '#!/bin/bash\nfor launch in {launches}; do\nsrun {command} --only-launch="$launch"\ndone\n'
    assert "srun /opt/python" in sbatch_script(_CPU, template)
    with pytest.raises(BadInput, match=message):
        sbatch_script(_CPU, template.replace(*change))


# Every step takes the next line of `steps`: its exit code, and whether it stores a result.
_TURNS = """\
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
    srun.write_text(_TURNS)
    srun.chmod(0o755)
    script = sbatch_script(dataclasses.replace(_IN_TURN, run_folder=tmp_path, directory=tmp_path))
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


def test_steps_are_made_until_one_says_that_the_search_is_over(tmp_path: Path) -> None:
    code, calls = _run_loop(tmp_path, "0 stores", "0 stores", f"{_OVER} stores", "0 stores")
    assert code == 0
    assert len(calls) == 3
    assert all(call.endswith("scalescope tune request.yaml --only-launch=next") for call in calls)


def test_a_launch_that_fails_does_not_end_the_search_which_ends_well(tmp_path: Path) -> None:
    code, calls = _run_loop(tmp_path, "0 stores", "4 stores", "137 stores", f"{_OVER} no")
    assert (code, len(calls)) == (0, 4)


@pytest.mark.parametrize(
    ("steps", "code"),
    [(("0 stores", "4 no"), 4), (("0 stores", "143 no"), 143), (("2 stores",), 2), (("3 stores",), 3)],
)
def test_a_step_that_stored_nothing_or_cannot_run_would_fail_again(
    tmp_path: Path, steps: tuple[str, ...], code: int
) -> None:
    status, calls = _run_loop(tmp_path, *steps, "0 stores")
    assert (status, len(calls)) == (code, len(steps))


def test_a_search_that_never_ends_is_ended(tmp_path: Path) -> None:
    assert len(_run_loop(tmp_path, *["0 stores"] * 30)[1]) == 20


def test_a_template_must_know_when_the_search_is_over() -> None:
    loop = '#!/bin/bash\nfor launch in {launches}; do srun {command} --only-launch="$launch"; {end} done\n'
    with pytest.raises(BadInput, match=r"\{search_over\} is missing, so the job would not end"):
        sbatch_script(_IN_TURN, loop.replace("{end}", ""))
    script = sbatch_script(_IN_TURN, loop.replace("{end}", "(($? == {search_over})) && break;"))
    assert f"(($? == {_OVER})) && break" in script
