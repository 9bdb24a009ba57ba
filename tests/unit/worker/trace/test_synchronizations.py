"""Lines that wait for the GPU: whose they are, how often they wait, and which warnings are about them."""

import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scalescope
from scalescope.worker.trace import host_lines
from scalescope.worker.trace.host_lines import Synchronizations, located_synchronizations
from tests.builders.workers import CPU

TORCH = str(Path(torch.__file__).parent / "nn" / "module.py")
MEASURING = str(Path(scalescope.__file__).parent / "worker" / "training" / "step.py")
ATTACHED = str(Path(scalescope.__file__).parent / "worker" / "hooks" / "optimizers.py")
WARNINGS = warnings.__file__
USER = "/home/user/model.py"


def stack(*frames: tuple[str, int, str]) -> traceback.StackSummary:
    """Outermost first, as Python has them."""
    return traceback.StackSummary.from_list([traceback.FrameSummary(*frame) for frame in frames])


def test_a_wait_counts_for_the_innermost_line_outside_torch() -> None:
    waits = Synchronizations()
    outer, inner = (USER, 10, "forward"), ("/home/user/layer.py", 31, "gate")
    called = (MEASURING, 5, "run_steps"), (TORCH, 1, "__call__"), outer, (TORCH, 1, "__call__"), inner
    waits.add(stack(*called))
    waits.add(stack(*called, (TORCH, 7, "item"), (WARNINGS, 3, "warn")))
    waits.add(stack(*called[:3]))
    # What stands between a script and torch does not hide its line: a GradScaler's step is watched.
    waits.add(stack((USER, 12, "train"), (ATTACHED, 3, "step"), (TORCH, 7, "step")))
    assert waits.sites == {inner: 2, outer: 1, (USER, 12, "train"): 1}


@pytest.mark.parametrize(
    "frames",
    [
        [(USER, 1, "main"), (MEASURING, 5, "run_steps")],
        [(USER, 1, "main"), (MEASURING, 5, "run_steps"), (TORCH, 1, "to"), (WARNINGS, 3, "warn")],
        [(USER, 1, "main"), (TORCH, 1, "step"), (ATTACHED, 3, "after_step"), (MEASURING, 5, "read")],
        [(TORCH, 1, "to")],
    ],
)
def test_a_wait_of_the_measuring_code_is_not_the_user_s(frames: list[tuple[str, int, str]]) -> None:
    waits = Synchronizations()
    waits.add(stack(*frames))
    assert not waits.sites


def test_rows_have_the_text_of_the_line_and_waits_per_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.py"
    model.write_text("first\n    limit = x.max().item()\n")
    waits = Synchronizations()
    waits.add(stack(("/elsewhere/loss.py", 4, "loss")))
    for _ in range(6):
        waits.add(stack((str(model), 2, "forward")))
    waits.times_s = {(str(model), 2): 0.5}
    assert waits.lines == {(str(model), 2), ("/elsewhere/loss.py", 4)}
    first, second = waits.rows(2)
    assert first == {
        "file": "model.py",
        "line": 2,
        "function": "forward",
        "code": "limit = x.max().item()",
        "operation": "",
        "per_step": 3.0,
        "time_s": 0.25,
        "from_trace": False,
    }
    assert (second["file"], second["code"], second["per_step"]) == ("/elsewhere/loss.py", "", 0.5)
    assert second["time_s"] is None
    for line in range(1, 31):
        for _ in range(10 * line):
            waits.add(stack((USER, line, "forward")))
    assert [row["line"] for row in waits.rows(1)] == list(range(30, 10, -1))  # the most frequent


class Mode:
    """In place of torch's mode, with what was set; `item` warns while it is on, as on a GPU."""

    def __init__(self, before: int, text: str | None) -> None:
        self.now: int | str = before
        self._text = text
        self._item = torch.Tensor.item

    def warn(self) -> None:
        if self.now == "warn" and self._text is not None:
            warnings.warn(self._text, UserWarning, stacklevel=1)

    def item(self, tensor: torch.Tensor) -> float | int | bool:
        self.warn()
        return self._item(tensor)


@pytest.fixture
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mode]:
    mode = Mode(1, getattr(request, "param", "a wait"))
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode.now)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda value: setattr(mode, "now", value))
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: mode.item(tensor))
    yield mode


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_every_wait_inside_the_block_is_located(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    # This file plays torch, too: frames below `item` are as deep as torch's own would be.
    added: list[traceback.StackSummary] = []
    monkeypatch.setattr(Synchronizations, "add", lambda self, frames: added.append(frames))
    value = torch.ones(3)
    with located_synchronizations(CPU) as waits:
        warnings.warn("deprecated", UserWarning, stacklevel=1)  # not a wait
        for _ in range(4):
            value.sum().item()  # the wait
    assert waits.can_locate
    assert len(added) == 4  # not the known wait at the beginning
    line = _line_of("value.sum().item()  # the wait")
    here = [frame.lineno for frame in added[0] if frame.name.startswith("test_every_wait")]
    assert here == [line]
    assert all(Path(frame.filename) != Path(host_lines.__file__) for frame in added[0])
    assert mode.now == 1


@pytest.mark.parametrize("mode", [None], indirect=True)
def test_where_torch_does_not_report_waits_none_are_located(mode: Mode) -> None:
    with located_synchronizations(CPU) as waits:
        torch.ones(1).item()
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert not waits.can_locate
    assert not waits.sites
    assert mode.now == 1


def test_the_mode_is_set_back_when_a_step_fails(mode: Mode) -> None:
    filters = list(warnings.filters)
    with pytest.raises(ZeroDivisionError), located_synchronizations(CPU):
        1 / 0  # noqa: B018
    assert mode.now == 1
    assert warnings.filters == filters
