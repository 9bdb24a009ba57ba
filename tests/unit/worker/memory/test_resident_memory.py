"""Resident memory of this process, and holding a process to a limit."""

import mmap
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.catalog.benchmarks.memory import EXACT_ALLOCATION
from scalescope.worker.memory import measured
from scalescope.worker.memory.measured import (
    DataLimit,
    ResidentPeak,
    available_bytes,
    gradients_of,
    held_bytes,
    state_of,
    status_bytes,
    tensors_in,
)
from scalescope.worker.process.health import is_out_of_memory
from tests.speed import patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
CPU = torch.device("cpu")
MIB = 1 << 20


def test_a_peak_is_seen_after_it_is_gone() -> None:
    peak = ResidentPeak()
    before = status_bytes("VmRSS")
    torch.ones(64 * MIB // 4)
    highest = peak.end()
    assert before is not None and highest is not None
    assert highest - before > 60 * MIB


def test_where_the_peak_cannot_be_reset_samples_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def write_text(self, _: str) -> None:
            raise OSError("no")

    monkeypatch.setattr(measured, "_FORGET_PEAK", Refusing())
    peak = ResidentPeak()
    kept = torch.ones(16 * MIB // 4)
    highest = peak.end()
    assert highest is not None and highest >= kept.numel()


def test_an_unknown_figure_is_none() -> None:
    assert status_bytes("VmNothing") is None


def _beyond_the_limit(answers: Any) -> None:
    limit = DataLimit(32 * MIB)
    with limit.held():
        with limit.lifted():
            kept = torch.ones(64 * MIB // 4)
        torch.ones(MIB)  # 4 MiB: still within, since our own work does not count
        try:
            torch.ones(64 * MIB // 4)
        except RuntimeError as error:
            answers.put(is_out_of_memory(error))
    torch.ones(64 * MIB // 4)
    answers.put(len(kept))


def test_bytes_are_counted_once_for_every_storage() -> None:
    model = nn.Linear(10, 10)
    shared = [model.weight, model.weight.view(-1), model.bias]
    assert held_bytes(shared, CPU) == 4 * (100 + 10)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert held_bytes(gradients_of(model), CPU) == 4 * (100 + 10)
    assert held_bytes(state_of(optimizer), CPU) == 2 * 4 * (100 + 10) + 2 * 4
    batch = {"a": torch.ones(3), "b": (torch.ones(2), "text")}
    assert held_bytes(tensors_in(batch), CPU) == 4 * 5


def _host(monkeypatch: pytest.MonkeyPatch, root: Path, available: int) -> Path:
    (root / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:    {available // 1024} kB\n")
    (root / "own").write_text("0::/outer/inner\n")
    inner = root / "groups/outer/inner"
    inner.mkdir(parents=True)
    for name, path in {"_MEMORY": "meminfo", "_GROUP": "own", "_GROUPS": "groups"}.items():
        monkeypatch.setattr(measured, name, root / path)
    return inner


def _limit(group: Path, limit: str, held: int, of_files: int) -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{held}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {of_files}\n")


def test_what_is_available_is_bounded_by_every_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = _host(monkeypatch, tmp_path, 900 * MIB)
    assert available_bytes() == 900 * MIB
    _limit(inner, "max", 100 * MIB, 0)
    assert available_bytes() == 900 * MIB
    _limit(inner.parent, f"{500 * MIB}", 300 * MIB, 50 * MIB)
    assert available_bytes() == 250 * MIB


def test_a_host_without_the_information_has_an_unknown_amount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_MEMORY", "_GROUP", "_GROUPS"):
        monkeypatch.setattr(measured, name, tmp_path / "none")
    assert available_bytes() is None


def _two_peaks(answers: Any) -> None:
    """In a process of its own: what earlier tests freed could be used again, or given back meanwhile."""
    gauge = measured.ResidentGauge(CPU)
    gauge.before_model()
    model = mmap.mmap(-1, 64 * MIB)
    model.write(b"1" * (64 * MIB))
    gauge.after_model()
    gauge.before_steps()
    with mmap.mmap(-1, 96 * MIB) as given_back:  # before the measured step
        given_back.write(b"1" * (96 * MIB))
    gauge.begin_step()
    counters = gauge.counters()
    answers.put((counters["measured/peak_of_first_steps"], counters["measured/peak"]))


def _measured(answers: Any) -> None:
    _two_peaks(answers)
    _beyond_the_limit(answers)


def test_the_peak_of_the_first_steps_is_told_apart_and_a_limit_makes_large_tensors_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in EXACT_ALLOCATION.items():
        monkeypatch.setenv(name, value)  # for the process below, which loads torch anew
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_measured, args=(answers,))
    process.start()
    first, peak = answers.get(timeout=patience(120))
    assert first - peak > 60 * MIB
    assert peak > 32 * MIB
    assert answers.get(timeout=patience()) is True
    assert answers.get(timeout=patience()) == 16 * MIB
    process.join()
