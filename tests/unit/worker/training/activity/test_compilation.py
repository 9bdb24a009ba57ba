"""What torch.compile did before and inside the watched steps; a backend that compiles nothing is enough."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalescope.worker.training import activity
from scalescope.worker.training.activity import CompilationWatch

HERE = __file__


def _breaking(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


@pytest.fixture
def watch() -> CompilationWatch:
    torch._dynamo.reset()
    return CompilationWatch()


def test_a_job_that_does_not_compile_tells_nothing(watch: CompilationWatch) -> None:
    watch.begin()
    torch.zeros(3) + 1
    watch.end()
    assert (watch.counters(), watch.tables()) == ({}, {})


def test_graph_breaks_have_their_line_in_the_users_code(watch: CompilationWatch) -> None:
    torch.compile(_breaking, backend="eager")(torch.zeros(3))
    watch.begin()
    watch.end()
    (row,) = watch.tables()["graph_breaks"]
    line = _breaking.__code__.co_firstlineno + 2
    assert (row["file"], row["line"], row["function"], row["count"]) == (HERE, line, "_breaking", 1)
    assert row["reason"]
    counters = watch.counters()
    assert (counters["compile/graph_breaks_before"], counters["compile/graph_breaks_inside"]) == (1, 0)
    assert counters["compile/compilations_inside"] == 0
    assert counters["compile/inside_s"] == 0.0
    later = CompilationWatch()  # what was compiled before it was made is not its own
    later.begin()
    later.end()
    assert (later.counters(), later.tables()) == ({}, {})


def test_recompilations_inside_are_told_from_those_before(watch: CompilationWatch) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    compiled(torch.zeros(2))
    compiled(torch.zeros(3))
    watch.begin()
    compiled(torch.zeros(3))  # compiled already
    compiled(torch.zeros(4))
    compiled(torch.zeros(5))
    watch.end()
    compiled(torch.zeros(6))
    counters = watch.counters()
    assert counters["compile/compilations_before"] == 3  # the window does not hold them
    assert counters["compile/compilations_inside"] == 2
    assert counters["compile/recompilations_inside"] == 2
    assert counters["compile/recompilations_before"] == 2
    assert counters["compile/inside_s"] > 0.0  # type: ignore[operator]
    assert counters["compile/given_up"] == 0
    rows = watch.tables()["recompilations"]
    assert sorted(row["in_window"] for row in rows) == [0, 0, 1, 1]  # type: ignore[type-var]
    assert all(row["reason"] and row["file"] == HERE for row in rows)


def test_a_function_that_is_compiled_no_more_is_counted(watch: CompilationWatch) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in range(2, 6):
            compiled(torch.zeros(size))
    assert watch.counters()["compile/given_up"] == 1


class _Changed:
    """A compiler whose private interface is another."""

    graph_break_reasons = (SimpleNamespace(nothing="known"),)

    def get_compilation_metrics(self) -> list[Any]:
        return [SimpleNamespace(renamed=1)]


@pytest.mark.parametrize("module", [_Changed(), SimpleNamespace(), None])
def test_a_changed_interface_makes_facts_unknown(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    if module is None:
        monkeypatch.delitem(sys.modules, activity._UTILS, raising=False)
    else:
        monkeypatch.setitem(sys.modules, activity._UTILS, module)
    watch = CompilationWatch()
    watch.begin()
    watch.end()
    assert (watch.counters(), watch.tables()) == ({}, {})


def test_time_inside_several_compilations_counts_once() -> None:
    assert activity._covered_s([(1.0, 4.0), (2.0, 3.0), (3.5, 5.0), (7.0, 8.0)]) == pytest.approx(5.0)
