"""A training script in the place of an experiment file is answered by the command that was meant."""

import shlex
from pathlib import Path

import pytest

from scalescope.cli import app
from scalescope.errors import ExitCode

TORCHRUN = "torchrun --standalone --nproc-per-node={world_size}"
MEANT = {
    "train joins.py": "scalescope train -- python joins.py",
    "train ./joins.py": "scalescope train -- python ./joins.py",
    "train python joins.py --lr 1": "scalescope train -- python joins.py --lr 1",
    "train 'my train.py' 'a b'": "scalescope train -- python 'my train.py' 'a b'",
    "train run.sh": "scalescope train -- bash run.sh",
    "train joins.py -- --lr 1": "scalescope train -- python joins.py --lr 1",
    "train --window=1s --batch-size 8 joins.py --lr 1": (
        "scalescope train --window=1s -- python joins.py --batch-size 8 --lr 1"
    ),
    "train torchrun --nproc-per-node=2 joins.py": (
        "scalescope train --world-size 2 -- torchrun --nproc-per-node=2 joins.py"
    ),
    "train --world-size 2 joins.py": f"scalescope train --world-size 2 -- {TORCHRUN} joins.py",
    "tune python joins.py": "scalescope tune -- python joins.py",
    "scale joins.py": f"scalescope scale -- {TORCHRUN} joins.py",
    "scale --repeats 2 python -m joins": f"scalescope scale --repeats 2 -- {TORCHRUN} -m joins",
    "scale torchrun --nproc_per_node 2 joins.py": (
        "scalescope scale -- torchrun --nproc_per_node {world_size} joins.py"
    ),
    "scale /opt/bin/python joins.py": (
        "scalescope scale -- /opt/bin/python -m torch.distributed.run --standalone "
        "--nproc-per-node={world_size} joins.py"
    ),
    "run joins.py": f"scalescope run -- {TORCHRUN} joins.py",
    "scale --no-waterfall -- python joins.py": f"scalescope scale --no-waterfall -- {TORCHRUN} joins.py",
}
LOOP = "loss.backward()\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with scripts, where `python` is known."""
    for name in ("joins.py", "my train.py"):
        (tmp_path / name).write_text(f"dist.init_process_group()\n{LOOP}")
    (tmp_path / "alone.py").write_text(LOOP)
    (tmp_path / "run.sh").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as leaving:
        app.main(shlex.split(line))
    assert leaving.value.code == ExitCode.BAD_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    return said


@pytest.mark.parametrize("typed", MEANT)
def test_the_command_that_was_meant_is_named(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(typed, capsys).endswith(f": {MEANT[typed]}")


@pytest.mark.parametrize("typed", ["scale alone.py", "scale -- python alone.py"])
def test_what_a_script_lacks_for_several_ranks_is_said(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(typed, capsys)
    assert "alone.py does not call torch.distributed.init_process_group" in said
    assert said.endswith("to measure one rank: scalescope train -- python alone.py")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train gone.py", "scalescope: gone.py: No such file or directory"),
        ("memory joins.py", "scalescope: joins.py: memory cannot measure a command"),
        ("train --windwo 1s joins.py", "scalescope: no such option --windwo; did you mean --window?"),
        ("scale -- deepspeed joins.py", "scalescope: scale compares world sizes"),
    ],
)
def test_other_mistakes_keep_their_line(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(typed, capsys).startswith(said)
