"""Rendering in a terminal and into files: widths, colours and hostile text."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from scalescope.report.render.terminal import console, show
from scalescope.report.runs import listed_runs, runs_section
from scalescope.report.scaling.sections import scaling_sections
from scalescope.report.section import Section, Table
from scalescope.report.trials import plan_section
from tests.builders.known_runs import make_run, make_trials

from ..conftest import Render

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x9b31m",
    "right\u202eleft",
    "line\nbreak",
    "lone \udce9 surrogate",
]
MARKUP = ["[red]text[/red]", "[/]", ":boom:", "\\[red]"]
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def tables_of(*sections: Section) -> list[Section]:
    return [Section(table=section.table) for section in sections if section.table]


def scaling_tables() -> list[Section]:
    run = make_run(make_trials(explained=True, world_size=[1, 2, 4], batch_size=[32, 4096]))
    return tables_of(*scaling_sections(run))[:1]


def plan_tables() -> list[Section]:
    return tables_of(plan_section(make_trials(explained=True, world_size=[1, 2, 4]), 5, 100.0))


@pytest.mark.parametrize("sections", [scaling_tables, plan_tables])
def test_tables_never_exceed_the_width(render: Render, sections: Callable[[], list[Section]]) -> None:
    for width in (60, 80, 140):
        lines = render(sections(), width=width).splitlines()
        assert len(lines) > 5
        assert max(cell_len(line) for line in lines) <= width


def test_columns_for_experts_are_shown_on_request(render: Render) -> None:
    (section,) = scaling_tables()
    assert section.table is not None and section.table.expert < set(section.table.columns)
    text = render([section], width=160)
    for name in section.table.columns:
        assert (name in text) is (name not in section.table.expert)


def test_a_usual_terminal_drops_optional_columns_and_cuts_nothing(render: Render) -> None:
    (section,) = scaling_tables()
    assert section.table is not None
    text = render([section], width=80)
    assert "…" not in text
    assert "serial" not in text
    kept = [n for n, name in enumerate(section.table.columns) if name not in section.table.optional]
    words = text.split()
    for row in (section.table.columns, *section.table.rows):
        assert {word for number in kept for word in row[number].split()} <= set(words)


def test_a_page_too_narrow_for_a_cell_folds_it_and_loses_nothing(render: Render) -> None:
    cell = "".join(chr(ord("a") + number % 26) for number in range(200))
    text = render([Section(table=Table(columns=("name",), rows=((cell,),)))], width=60)
    assert "".join(text.split()[2:]) == cell
    for section in scaling_tables():
        assert "…" not in render([section], width=60)


def test_optional_columns_go_one_after_another_as_named(render: Render) -> None:
    table = Table(columns=("aaaa", "bbbb", "cccc"), rows=(("1", "2", "3"),), optional=("cccc", "aaaa"))
    shown = {width: render([Section(table=table)], width=width).split() for width in (18, 16, 15, 9)}
    assert [word for word in shown[18] if word.isalpha()] == ["aaaa", "bbbb", "cccc"]
    assert [word for word in shown[16] if word.isalpha()] == ["aaaa", "bbbb", "cccc"]  # closer together
    assert [word for word in shown[15] if word.isalpha()] == ["aaaa", "bbbb"]
    assert [word for word in shown[9] if word.isalpha()] == ["bbbb"]


def test_a_terminal_gets_a_bold_title(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    show([Section(title="Title")], console(stream))
    assert stream.getvalue() == ""  # a title without content is not printed
    show([Section(title="Title", lines=("line",))], console(stream))
    assert "\x1b[1mTitle\x1b[0m" in stream.getvalue()


def test_details_are_shown_on_request(render: Render) -> None:
    section = Section(lines=("said",), details=("more",))
    assert render([section]) == "\nsaid\n"
    assert render([section], verbose=True) == "\nsaid\nmore\n"


def test_on_an_ascii_terminal_tables_stay_aligned_and_signs_readable() -> None:
    table = Table(columns=("speedup ×", "95 % interval"), rows=(("1.5", "−1 … 2"), ("2.25", "—")))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # strict: what it lacks would be an error
    show([Section(title="a · b", table=table, lines=("1 → 2",))], console(stream))
    stream.seek(0)
    _, title, head, _, *rows, line = stream.read().splitlines()
    assert (title, line) == ("a - b", "1 -> 2")
    assert [row.split() for row in rows] == [["1.5", "-1", "...", "2"], ["2.25", "-"]]
    assert len({len(row) for row in (head, *rows)}) == 1


def everywhere(name: str) -> list[Section]:
    """A name at every place of a section that text can stand."""
    table = Table(columns=("a", "b"), rows=((name, name),), left=frozenset("a"))
    return [Section(title=name, table=table, lines=(name,), details=(name,))]


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_are_spelled_out(render: Render, name: str) -> None:
    text = render(everywhere(name), verbose=True)
    spelled = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name
    )
    assert text.count(spelled) == 5
    assert not HARMFUL.search(text)
    assert text.encode("utf-8")


@pytest.mark.parametrize("name", MARKUP)
def test_markup_stays_literal(render: Render, name: str) -> None:
    assert render(everywhere(name), verbose=True).count(name) == 5


def test_a_run_that_was_interrupted_did_not_fail(tmp_path: Path) -> None:
    training = [{"status": "ok"}, {"status": "interrupted"}]
    summary = {"verb": "scale", "config": {"device": "cpu"}, "results": {"training": training}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trials.jsonl").write_text("")
    (tmp_path / "run" / "results.json").write_text(json.dumps(summary))
    section = runs_section(listed_runs(tmp_path), tmp_path)
    assert section.table is not None
    row = dict(zip(section.table.columns, section.table.rows[0], strict=True))
    assert row["trials"] == "1 ok, 1 interrupted"


def test_hostile_summaries_of_runs_are_listed_harmlessly(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training = [{"status": "ok"}, {"status": "ok"}, {"status": "failed"}]
    named = {"verb": "train", "name": "\x1b[31m[red]x", "world_size": 2, "config": {"device": "H100"}}
    texts = {
        "good": json.dumps({**named, "results": {"training": training}}),
        "cut": "{",
        "list": "[]",
        "list inside": '{"results": []}',
        "null inside": '{"results": null, "config": null}',
        "numbers": '{"results": {"training": [1, 2]}, "config": {}}',
    }
    for name, text in texts.items():
        Path(name).mkdir()
        Path(name, "trials.jsonl").write_text("")
        Path(name, "results.json").write_text(text)
    section = runs_section(listed_runs(Path()), Path())
    assert section.table is not None
    rows = {row[0]: dict(zip(section.table.columns, row, strict=True)) for row in section.table.rows}
    good = rows.pop("good")
    assert [good[name] for name in ("command", "name", "ranks", "device", "trials")] == [
        *("train", "\x1b[31m[red]x", "2", "H100", "2 ok, 1 failed"),
    ]
    assert {name: row["trials"] for name, row in rows.items()} == dict.fromkeys(
        set(texts) - {"good"}, "no summary"
    )
    text = render([section])
    assert "\\x1b[31m[red]x" in text and "\x1b" not in text


def test_code_can_be_copied_as_it_is() -> None:
    stream = Terminal()
    show([Section(title="Script", code="for x in y:\n    print([1])")], console(stream))
    assert "\nfor x in y:\n    print([1])\n" in re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue())
