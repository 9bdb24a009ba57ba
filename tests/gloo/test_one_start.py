"""A command is started once: what explains its step follows on the timed window in the same processes."""

import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.conftest import Start

pytestmark = [pytest.mark.gloo, pytest.mark.thorough]

_FLAGS = ("--device=cpu", "--repeats=1", "--window=0.4s", "--warmup-steps=3", "--no-repeat-disturbed")
_RANKS = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node={world_size}", "train.py")
_SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)  # threads that wait for each other take 50 ms where other tests run
open("starts.txt", "a").write(f"{os.environ.get('RANK', '0')}\\n")

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        time.sleep(0.005)
        return torch.randn(16)

if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))
if dist.is_initialized():
    model = DistributedDataParallel(model)
    HOOK
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, steps = Slow(), 0
while True:
    for x in DataLoader(data, batch_size=8):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        BREAK
"""


def write(folder: Path, *, hook: str = "", breaks: str = "", scaled: bool = False) -> None:
    text = _SCRIPT if not scaled else _scaled(_SCRIPT)
    text = text.replace("HOOK", hook).replace("BREAK", breaks)
    (folder / "train.py").write_text(text)


def _scaled(script: str) -> str:
    """With a GradScaler around its loss and its step."""
    script = script.replace(
        "model(x).square().mean().backward()", "scaler.scale(model(x).square().mean()).backward()"
    )
    script = script.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    return script.replace("data, steps", "scaler = torch.amp.GradScaler('cpu'); data, steps")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "trials.jsonl").read_text().splitlines()]


def kind(line: dict[str, Any]) -> tuple[int, str, bool, bool]:
    settings = line["settings"]
    removed = (bool(settings.get(name)) for name in ("with_preloaded_input", "without_communication"))
    return (settings["world_size"], settings["benchmark"], *removed)


def shortest_s(line: dict[str, Any]) -> float:
    """The step that other work on the machine disturbed least."""
    times_s: list[float] = line["ranks"][0]["samples"]["step_time_s"]
    return min(times_s)


def mean_s(line: dict[str, Any]) -> float:
    return statistics.fmean(line["ranks"][0]["samples"]["step_time_s"])


def test_train_starts_a_script_once(start: Start, tmp_path: Path) -> None:
    write(tmp_path)
    run = start("train", *_FLAGS, "--allow-writes", "--", sys.executable, "train.py").finish()
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "starts.txt").read_text() == "0\n"
    timed, preloaded = lines(tmp_path)
    assert [kind(timed), kind(preloaded)] == [(1, "train", False, False), (1, "train", True, False)]
    assert shortest_s(timed) >= 0.04  # eight samples of 5 ms
    assert shortest_s(preloaded) < shortest_s(timed)
    assert timed["ranks"][0]["counters"]["again_step_s"] > 0.0
    assert "input" in run.stdout


def test_scale_starts_each_number_of_ranks_once_in_a_round(start: Start, tmp_path: Path) -> None:
    write(tmp_path)
    flags = ("--world-size=1,2", *_FLAGS, "--allow-writes")
    run = start("scale", *flags, "--", *_RANKS).finish()
    assert run.returncode == 0, run.stderr
    assert sorted((tmp_path / "starts.txt").read_text().split()) == ["0", "0", "1"]
    measured = {kind(line): line for line in lines(tmp_path) if line["settings"]["benchmark"] != "comm"}
    assert set(measured) == {
        (1, "train", False, False),
        (1, "train", True, False),
        (2, "train", False, False),
        (2, "train", True, False),
        (2, "arrivals", True, False),
        (2, "train", True, True),
    }
    assert all(line["status"] == "ok" for line in measured.values())
    silent = measured[2, "train", True, True]
    assert silent["ranks"][0]["counters"]["no_comm_hook_s_per_step"] > 0.0


_OWN_HOOK = (
    "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook; "
    "model.register_comm_hook(None, allreduce_hook)"
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hook": _OWN_HOOK}, "the script registers its own communication hook"),
        ({"scaled": True}, "a GradScaler skips steps"),
    ],
)
def test_what_is_unsafe_gets_a_start_of_its_own(
    start: Start, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    write(tmp_path, **changes)
    flags = ("--world-size=1,2", *_FLAGS, "--allow-writes")
    run = start("scale", *flags, "--", *_RANKS).finish()
    assert run.returncode == 0, run.stderr
    assert sorted((tmp_path / "starts.txt").read_text().split()) == ["0", "0", "0", "1", "1"]
    (silent,) = [line for line in lines(tmp_path) if kind(line) == (2, "train", True, True)]
    assert silent["status"] == "ok"
    assert reason in run.stdout


_IS_FIRST = "len(open('starts.txt').readlines()) == 1"
_IS_EXPLAINING = (
    """any('"continues": true' in file.read_text() for file in pathlib.Path("run/ranks").glob("*.json"))"""
)


def test_a_script_that_fails_after_the_window_keeps_its_result(start: Start, tmp_path: Path) -> None:
    write(tmp_path, breaks=f"assert not ({_IS_FIRST} and {_IS_EXPLAINING})")
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(f"import pathlib\n{text}")
    run = start("train", *_FLAGS, "--allow-writes", "--", sys.executable, "train.py").finish()
    assert run.returncode == 0, run.stdout + run.stderr
    timed, preloaded = lines(tmp_path)
    assert (timed["status"], kind(timed)) == ("ok", (1, "train", False, False))
    # in a start of its own
    assert (preloaded["status"], kind(preloaded)) == ("ok", (1, "train", True, False))
    assert mean_s(preloaded) < mean_s(timed) / 2  # its loader is new in every epoch
    assert (tmp_path / "starts.txt").read_text() == "0\n0\n"


def test_an_interruption_after_the_window_keeps_its_result(start: Start, tmp_path: Path) -> None:
    write(tmp_path)
    run = start("train", *_FLAGS, "--", sys.executable, "train.py")

    def is_explaining() -> bool:
        files = list((tmp_path / "run" / "ranks").glob("*-0-0.json"))
        return any('"continues": true' in file.read_text() for file in files)

    run.wait_until(is_explaining, "the timed window is stored")
    run.send(signal.SIGINT)
    done = run.finish()
    assert done.returncode == 130, done.stdout + done.stderr
    assert [(line["status"], kind(line)) for line in lines(tmp_path)] == [("ok", (1, "train", False, False))]
    assert "Avg step time" in done.stdout
    assert not run.leftovers()
