"""Verbs as SLURM jobs, as far as that goes without SLURM; and the linter's verb."""

import json
from pathlib import Path

import pytest

from scalescope.studies import running
from scalescope.studies.study import Report
from tests.simulated.launcher import CostModel, FakeLauncher

from .conftest import Run

_NOTHING = Report(sections=())
_JOB = ("--launcher=slurm", "--nodes=2")


def refusal(run: Run, *arguments: str) -> str:
    """The one line that refuses a command, which leaves nothing behind and ends with exit code 2."""
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("scalescope: ") and ended.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []
    return str(ended.err)


def _only_where(err: str) -> bool:
    """Whether nothing is said beside the script but that nothing was written."""
    return err.count("\n") == 1 and str(Path.cwd() / "runs") in err


_LAUNCHES = {"scale": "0 1 2 3 4", "tune": "$(printf 'next %.0s' {1..500})"}


@pytest.mark.parametrize("verb", ["scale", "comm", "tune"])
def test_a_dry_run_prints_the_script_and_leaves_nothing(run: Run, verb: str) -> None:
    ended = run(verb, *_JOB, "--gpus-per-node=4", "--time=1h", "--name=mine", "--dry-run")
    assert ended.code == 0
    assert _only_where(ended.err)
    assert ended.out.startswith("#!/bin/bash\n#SBATCH --job-name=mine\n#SBATCH --nodes=2\n")
    assert f"-m scalescope {verb} {Path.cwd()}/runs/" in ended.out
    assert f"for launch in {_LAUNCHES.get(verb, '0')}; do\n" in ended.out
    assert "srun --export=ALL --nodes=2 --ntasks=8 " in ended.out
    assert list(Path.cwd().iterdir()) == []


def test_words_of_the_verb_reach_the_job(run: Run) -> None:
    flags = (*_JOB, "--output-dir=here", "--dry-run")
    assert "request.yaml --no-waterfall --output-dir=" in run("scale", *flags, "--no-waterfall").out
    profiled = run("train", *flags, "--profile", "--profile-steps=2", "--profile-ranges-only").out
    assert "request.yaml --profile --profile-steps=2 --profile-ranges-only --output-dir=" in profiled


def test_one_task_may_start_several_ranks(run: Run) -> None:
    ended = run("train", "--launcher=slurm", "--world-size=2", "--cpus-per-task=2", "--dry-run")
    assert ended.code == 0
    assert _only_where(ended.err)
    assert "srun --export=ALL --nodes=1 --ntasks=1 --cpus-per-task=2 " in ended.out


@pytest.mark.parametrize(
    ("words", "shared"),
    [
        (("scale",), "1 core, which 2 ranks"),
        (("comm",), "1 core, which 2 ranks"),
        (("scale", "--world-size=1"), "1 core, which 2 ranks"),
        (("scale", "--world-size=1,2,4", "--cpus-per-task=2"), "2 cores, which 4 ranks"),
        (("train", "--world-size=4"), "1 core, which 4 ranks"),
        (("scale", "--gpus-per-node=1"), "1 GPU, which 2 ranks"),
    ],
)
def test_a_job_whose_ranks_share_one_task_is_remarked_on(
    run: Run, words: tuple[str, ...], shared: str
) -> None:
    ended = run(*words, "--launcher=slurm", "--dry-run")
    assert ended.code == 0
    assert shared in ended.err
    assert "--gpus-per-node N" in ended.err and "--tasks-per-node N" in ended.err
    assert ended.out.startswith("#!/bin/bash\n") and ended.out.endswith('exit "$status"\n')


@pytest.mark.parametrize(
    "words",
    [
        ("train",),
        ("memory",),
        ("scale", "--tasks-per-node=2"),
        ("scale", "--nodes=2"),
        ("scale", "--gpus-per-node=4"),
        ("scale", "--cpus-per-task=4"),
    ],
)
def test_a_job_with_enough_for_its_ranks_is_not(run: Run, words: tuple[str, ...]) -> None:
    assert _only_where(run(*words, "--launcher=slurm", "--dry-run").err)


_FILE = """\
launcher: slurm
nodes: 2
partition: gpu
setup: [module load cuda, ulimit -c 0]
device: cpu
batch_size: 8
"""


def _written(text: str = _FILE) -> str:
    Path("exp.yaml").write_text(text)
    return "exp.yaml"


def test_a_file_asks_for_a_job_and_flags_win(run: Run) -> None:
    ended = run("train", _written(), "--nodes=3", "--dry-run")
    assert ended.code == 0
    assert _only_where(ended.err)
    assert "#SBATCH --nodes=3\n" in ended.out
    assert "#SBATCH --partition=gpu\n" in ended.out
    assert "\nmodule load cuda\nulimit -c 0\ncd " in ended.out
    other = run("train", _written(), "--setup=true", "--dry-run")
    assert "\ntrue\ncd " in other.out
    assert "module load" not in other.out


def test_a_file_that_asks_for_a_job_also_runs_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LocalLauncher", lambda: FakeLauncher(CostModel()))  # without torch
    ended = run("train", _written(), "--launcher=local", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert "#SBATCH" not in ended.out
    assert run("train", _written(_FILE.replace("launcher: slurm\n", "")), "--dry-run").code == 0


def test_what_slurm_is_asked_is_no_part_of_the_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    run("train", _written(), "--output-dir=here")
    lines = Path("here/slurm/request.yaml").read_text().splitlines()
    keys = {line.partition(":")[0] for line in lines}
    assert "batch_size" in keys
    assert not keys & {"launcher", "nodes", "partition", "setup"}
    asked = json.loads(Path("here/slurm/job.json").read_text())
    assert asked["flags"] == {"launcher": "slurm", "nodes": "2", "partition": "gpu"}
    assert asked["setup"] == ["module load cuda", "ulimit -c 0"]


@pytest.mark.parametrize(
    ("verb", "text", "message"),
    [
        (
            "run",
            _FILE,
            "exp.yaml:1: launcher: run cannot be submitted as a job; comm, memory, scale, train, tune can",
        ),
        ("train", _FILE.replace("2", "[1, 2]"), "exp.yaml:2: nodes: takes one value, not a list"),
        ("train", _FILE.replace("2", "x"), "exp.yaml:2: nodes: expected a whole number"),
    ],
)
def test_what_a_file_cannot_ask_of_slurm(run: Run, verb: str, text: str, message: str) -> None:
    ended = run(verb, _written(text), "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_inside_a_step_a_file_asks_for_no_other_job(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalescope.studies import running

    verbs = []
    monkeypatch.setattr(
        running, "run_here", lambda prepared, *others: verbs.append(prepared.study.verb) or _NOTHING
    )
    run("train", _written(), "--only-launch=0")
    assert verbs == ["train"]


def test_a_template_and_setup_of_one_s_own(run: Run, tmp_path: Path) -> None:
    template = tmp_path / "site.sh"
    loop = 'for launch in {launches}; do srun {command} --only-launch="$launch"; done'
    template.write_text(f"#!/bin/bash\n#SBATCH --qos=x --nodes={{nodes}}\n{{setup}}\n{loop}\n")
    ended = run("train", *_JOB, f"--slurm-template={template}", "--setup=a", "--setup=b", "--dry-run")
    assert ended.out.startswith("#!/bin/bash\n#SBATCH --qos=x --nodes=2\na\nb\nfor launch in 0; do srun ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*_JOB, "--nodes=3"), "--nodes takes one value"),
        ((*_JOB, "--gpus-per-node=2", "--tasks-per-node=2"), "give only one"),
        ((*_JOB, "--device=cuda"), "--device cuda requires --gpus-per-node"),
        ((*_JOB, "--world-size=1,4"), "4 ranks do not fit in a job of 2 tasks; request more nodes"),
        ((*_JOB, "--env=NCCL_DEBUG=INFO"), "add --setup 'export NAME=VALUE'"),
        ((*_JOB, "--setup=a", "--setup=export HF_TOKEN=hunter2"), "--setup: line 2 holds a secret"),
        ((*_JOB, "--link=1gbit"), "use --launcher local"),
        ((*_JOB, "--resume", "--output-dir=nowhere"), "has no run started with --launcher slurm"),
    ],
)
def test_what_cannot_be_a_job_is_refused(run: Run, flags: tuple[str, ...], message: str) -> None:
    assert message in refusal(run, "train", *flags)


def test_lint_ends_with_what_it_found(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --cpus-per-task=2\nexport OMP_NUM_THREADS=2\nsrun --mpi=pmix ./a\n"
    )
    ended = run("slurm", "lint", str(script))
    assert (ended.code, ended.err) == (8, "")
    assert ended.out.startswith(f"{script}:4: --mpi=pmix fails where ")
    assert "\n    fix: remove it" in ended.out
    assert ended.out.endswith("1 mistake found\n")
    script.write_text(script.read_text().replace("--mpi=pmix ", ""))
    ended = run("slurm", "lint", str(script))
    assert (ended.code, ended.out) == (0, f"{script}: no mistakes found\n")


def test_lint_warns_of_what_may_be_intended_and_ends_well(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    top = "#!/bin/bash\n#SBATCH --cpus-per-task=2\nexport OMP_NUM_THREADS=2 NCCL_P2P_DISABLE=1\n"
    script.write_text(f"{top}srun ./a\n")
    ended = run("slurm", "lint", str(script))
    assert ended.code == 0
    assert ended.out.startswith(f"{script}:3: warning: NCCL_P2P_DISABLE=1 slows training down")
    assert ended.out.endswith("no mistakes, 1 warning found\n")
    script.write_text(f"{top}srun --mpi=pmix ./a\n")
    ended = run("slurm", "lint", str(script))
    assert (ended.code, ended.out.endswith("1 mistake, 1 warning found\n")) == (8, True)


def test_lint_looks_for_folders_here_and_beside_the_script(run: Run, tmp_path: Path) -> None:
    beside = tmp_path / "scripts"
    beside.mkdir()
    script = beside / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --cpus-per-task=2 --output=logs/%j.out\nexport OMP_NUM_THREADS=2\nsrun ./a\n"
    )
    ended = run("slurm", "lint", str(script))
    assert (ended.code, "2: --output: folder logs does not exist" in ended.out) == (8, True)
    for folder in (beside / "logs", Path.cwd() / "logs"):
        folder.mkdir()
        assert run("slurm", "lint", str(script)).code == 0
        folder.rmdir()


def test_lint_finds_nothing_in_the_script_of_a_dry_run(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(run("scale", *_JOB, "--gpus-per-node=4", "--time=1h", "--dry-run").out)
    ended = run("slurm", "lint", str(script))
    assert (ended.code, ended.out) == (0, f"{script}: no mistakes found\n")


def test_lint_sees_dos_line_breaks(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_bytes(
        b"#!/bin/bash\r\n#SBATCH --cpus-per-task=2\r\nexport OMP_NUM_THREADS=2\r\nsrun ./a\r\n"
    )
    ended = run("slurm", "lint", str(script))
    assert (ended.code, ended.err) == (8, "")
    assert ended.out.startswith(f"{script}:1: a DOS line break: sbatch rejects")
    assert ended.out.endswith("1 mistake found\n")
