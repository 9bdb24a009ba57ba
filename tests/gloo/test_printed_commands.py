"""What `train` prints for an own workload can be pasted into a shell in another folder, with real ranks.

Every command of every verb is run by `tests/pipeline/test_printed_commands.py`, without ranks.
"""

import shlex
from pathlib import Path

import pytest

import scalescope
from scalescope.results.run import Run, load_run
from scalescope.studies.stored import present
from tests.gloo.real_runs import SCALESCOPE, StartedRun

pytestmark = pytest.mark.gloo

_WORKLOAD = """
import torch


def build():
    model = torch.nn.Linear(64, 8)
    data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 8, (512,)))
    return model, data, torch.nn.functional.cross_entropy
"""
_SOURCE = {"PYTHONPATH": str(Path(scalescope.__file__).parents[1])}


def _finished(directory: Path, *arguments: str) -> str:
    started = StartedRun((*SCALESCOPE, *arguments), directory, directory, _SOURCE)
    try:
        ended = started.finish()
    finally:
        started.clean_up()
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def _next_of(run: Run, printed: str) -> list[str]:
    """The next step that was printed, which is the one that the run holds."""
    (line,) = (line for line in printed.splitlines() if line.startswith("Next: "))
    following = present(run).next_step
    assert following is not None
    assert line.endswith(f": {shlex.join(following.argv)}")
    return shlex.split(line[line.index(": scalescope ") + 2 :])


def test_the_next_step_of_train_runs_in_another_folder(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "my proj ünï", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "my model.py").write_text(_WORKLOAD)
    flags = ("--device=cpu", "--batch-size=8", "--steps-per-epoch=8", "--warmup-steps=3", "--budget=60s")
    printed = _finished(home, "train", "--workload", "my model.py:build", *flags, "--output-dir", "my out")
    program, *words = _next_of(load_run(home / "my out"), printed)
    assert program == "scalescope"
    # On a busy machine to measure again, or what the slowest part of a step suggests there.
    assert words[0] in ("scale", "train", "tune")
    printed = _finished(elsewhere, *words)
    scaled = load_run((elsewhere / "runs" / "latest").resolve())
    trained = [result.trial for result in scaled.of_status("ok") if result.trial.is_training]
    assert {trial.workload for trial in trained} == {f"{home / 'my model.py'}:build"}
    assert {trial.world_size for trial in trained} == ({1, 2} if words[0] == "scale" else {1})
    assert {trial.rank_batch_size for trial in trained} == {8}
    if words[0] != "tune":  # which may have found that nothing is faster
        assert _next_of(scaled, printed)[0] == "scalescope"
