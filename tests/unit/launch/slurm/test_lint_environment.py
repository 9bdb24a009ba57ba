"""Variables that cut nodes off or slow training down, and output to folders that are not there."""

from pathlib import Path

import pytest

from scalescope.launch.slurm.lint import lint

_TOP = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=8
"""
_PLACES = [
    ("export @\nsrun python train.py", 6),
    ("export A=b @\nsrun python train.py", 6),
    ("@ srun python train.py", 6),
    ("srun --export=ALL,@,A=b python train.py", 6),
    ("srun --unbuffered \\\n  env @ python train.py", 7),
    ("srun bash -c '\nexport @\npython train.py'", 7),
    ("srun apptainer exec --env @ torch.sif python train.py", 6),
    ("export APPTAINERENV_A=b\nAPPTAINERENV_@ srun apptainer exec torch.sif python train.py", 7),
    ("export @\nsrun python train.py\nunset NAME\nsrun python test.py", 6),
    ("export @\nsrun ./train.sh", 6),
]
_NOT_IN_EFFECT = [
    "# export @\nsrun python train.py",
    "echo @\nsrun python train.py",
    "export @\nunset NAME\nsrun python train.py",
    "export @\nexport NAME=other\nsrun python train.py",
    "if [[ $DEBUG ]]; then\n  export @\nfi\nsrun python train.py",
    "if [[ $DEBUG ]]; then @ srun python train.py; fi",
    "[[ $DEBUG ]] && export @\nsrun python train.py",
    "(( DEBUG )) && export @\nsrun python train.py",
    "grep @ old.log\nsrun python train.py",
    "export MY_@\nsrun python train.py",
]


def _found(script: str) -> list[tuple[int, str]]:
    return [(mistake.line, mistake.what.split(" ")[0]) for mistake in lint(script)]


@pytest.mark.parametrize("given", ["NCCL_SOCKET_IFNAME=lo", "CUDA_LAUNCH_BLOCKING=1"])
@pytest.mark.parametrize(("script", "line"), _PLACES)
def test_a_variable_is_found_wherever_it_is_set(script: str, line: int, given: str) -> None:
    name = given.partition("=")[0]
    assert _found(_TOP + script.replace("NAME", name).replace("@", given) + "\n") == [(line, given)]


@pytest.mark.parametrize("given", ["NCCL_SOCKET_IFNAME=lo", "CUDA_LAUNCH_BLOCKING=1"])
@pytest.mark.parametrize("script", _NOT_IN_EFFECT)
def test_a_variable_that_reaches_no_rank_or_only_on_a_condition_is_left_alone(
    script: str, given: str
) -> None:
    script = script.replace("NAME", given.partition("=")[0]).replace("@", given)
    assert _found(f"{_TOP}{script}\n") == []


def test_a_variable_is_found_in_a_directive() -> None:
    top = _TOP.replace("export", "#SBATCH --export=ALL,GLOO_SOCKET_IFNAME=lo,CUDA_LAUNCH_BLOCKING=1\nexport")
    found = [(5, "GLOO_SOCKET_IFNAME=lo"), (5, "CUDA_LAUNCH_BLOCKING=1")]
    assert _found(f"{top}srun python train.py\n") == found


@pytest.mark.parametrize("value", ["lo", '"lo"', "'lo'", "=lo", "lo,lo", "$loopback", "${X:-lo}"])
@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
def test_the_loopback_is_found_between_nodes(name: str, value: str) -> None:
    script = f"loopback=lo\nexport {name}={value}\nsrun python train.py\n"
    (mistake,) = lint(_TOP + script)
    assert (mistake.line, "2 nodes: the loopback reaches no other" in mistake.what) == (7, True)
    assert f"{name}=ib0" in mistake.fix
    assert lint(_TOP.replace("--nodes=2", "--nodes=1") + script) == []
    assert lint(_TOP + script.replace("srun", "srun -N1 -n4")) == []


@pytest.mark.parametrize("value", ["ib0", "^lo", "^lo,docker0", "eth0,lo", "lo,eth0", "lom1", "$NETWORK", ""])
def test_interfaces_that_reach_nodes_are_left_alone(value: str) -> None:
    assert lint(f"{_TOP}export NCCL_SOCKET_IFNAME={value}\nsrun python train.py\n") == []
    assert lint(f"{_TOP}NCCL_SOCKET_IFNAME={value} srun python train.py\n") == []


@pytest.mark.parametrize(
    ("given", "may_be_intended"),
    [
        ("CUDA_LAUNCH_BLOCKING=1", False),
        ("HIP_LAUNCH_BLOCKING=1", False),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG=detail", True),
        ("NCCL_DEBUG=TRACE", True),
        ("NCCL_P2P_DISABLE=1", True),
        ("NCCL_IB_DISABLE=1", True),
    ],
)
def test_what_is_left_from_debugging_is_found(given: str, may_be_intended: bool) -> None:
    (mistake,) = lint(f"{_TOP}export {given}\nsrun python train.py\n")
    assert (mistake.line, mistake.may_be_intended) == (6, may_be_intended)
    assert mistake.what.startswith(f"{given} slows training down: ")


@pytest.mark.parametrize(
    "given",
    [
        "CUDA_LAUNCH_BLOCKING=0",
        "CUDA_LAUNCH_BLOCKING=${DEBUG:-0}",
        "CUDA_LAUNCH_BLOCKING=$DEBUG",
        "TORCH_DISTRIBUTED_DEBUG=INFO",
        "NCCL_DEBUG=INFO",
        "NCCL_P2P_DISABLE=0",
        "NCCL_IB_DISABLE=0",
    ],
)
def test_variables_that_slow_nothing_down_are_left_alone(given: str) -> None:
    assert lint(f"{_TOP}export {given}\nsrun python train.py\n") == []


def test_a_network_that_is_switched_off_matters_only_between_nodes() -> None:
    script = "export NCCL_IB_DISABLE=1\nsrun python train.py\n"
    assert lint(_TOP.replace("--nodes=2", "--nodes=1") + script) == []


def _with_output(*directives: str, script: str = "") -> str:
    lines = "".join(f"#SBATCH {directive}\n" for directive in directives)
    return _TOP.replace("export", f"{lines}export") + f"{script}srun python train.py\n"


@pytest.mark.parametrize("flag", ["--output=", "--output ", "-o ", "-o", "--error=", "-e "])
@pytest.mark.parametrize("path", ["logs/%x-%j.out", "./logs/a.out", "logs/deep/%A_%a.out", "@/logs/%j.out"])
def test_output_to_a_missing_folder_is_found(flag: str, path: str, tmp_path: Path) -> None:
    path = path.replace("@", str(tmp_path))
    (mistake,) = lint(_with_output(flag + path), (tmp_path,))
    folder = path.rpartition("/")[0]
    assert (mistake.line, f"folder {folder} does not exist, " in mistake.what) == (5, True)
    assert mistake.fix == f"mkdir -p {folder} before sbatch"
    (tmp_path / folder).mkdir(parents=True)
    assert lint(_with_output(flag + path), (tmp_path,)) == []


@pytest.mark.parametrize("made", ["logs", "./logs/", '"$folder"', "logs/$SLURM_JOB_ID"])
def test_a_folder_that_the_script_makes_comes_too_late(made: str, tmp_path: Path) -> None:
    script = f"folder=logs\nmkdir -p {made}\n"
    (mistake,) = lint(_with_output("-o logs/a.out", script=script), (tmp_path,))
    assert mistake.fix.startswith("mkdir -p logs before sbatch (the one in line 8 comes too late")


def test_one_folder_is_said_once_and_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    (mistake,) = lint(_with_output("--output=logs/a.out", "--error=logs/a.err"), (tmp_path,))
    assert (mistake.line, "--output: " in mistake.what) == (5, True)


@pytest.mark.parametrize("path", ["$HOME/a.out", "~/a.out", "${SCRATCH}/logs/%j.out"])
def test_sbatch_expands_no_variables(path: str, tmp_path: Path) -> None:
    (mistake,) = lint(_with_output(f"--output={path}"), (tmp_path,))
    assert "expands neither ~ nor variables" in mistake.fix


@pytest.mark.parametrize(
    "path",
    [
        "a.out",
        "%x-%j.out",
        "%x/a.out",
        "logs/%j/a.out",
        "/dev/null",
        "@/missing/logs/a.out",  # as of another machine
        f"{'l' * 300}/a.out",  # which no file system can look for
    ],
)
def test_what_cannot_be_checked_is_left_alone(path: str, tmp_path: Path) -> None:
    assert lint(_with_output(f"--output={path.replace('@', str(tmp_path))}"), (tmp_path,)) == []


def test_a_job_may_be_submitted_in_several_folders(tmp_path: Path) -> None:
    (tmp_path / "scripts/logs").mkdir(parents=True)
    script = _with_output("--output=logs/a.out")
    assert lint(script, (tmp_path, tmp_path / "scripts")) == []
    assert len(lint(script, (tmp_path,))) == 1
    assert lint(script) == []


def test_output_starts_where_the_job_does(tmp_path: Path) -> None:
    (tmp_path / "work/logs").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    assert lint(_with_output("--chdir=work", "-o logs/a.out"), (tmp_path,)) == []
    assert lint(_with_output(f"-D {tmp_path}/work", "-o logs/a.out"), (tmp_path,)) == []
    assert len(lint(_with_output("--chdir=other", "-o logs/a.out"), (tmp_path,))) == 1
    assert lint(_with_output("--chdir=elsewhere", "-o logs/a.out"), (tmp_path,)) == []
