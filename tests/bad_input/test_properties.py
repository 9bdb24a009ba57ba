"""Any text: experiment files, sizes, times, job scripts, and what is drawn for people and programs."""

import csv
import dataclasses
import functools
import io
import re
import shlex
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalescope.catalog.setting import Kind, Setting, parse_value
from scalescope.cli.options import _size_text
from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.launch.slurm.script import SlurmJob, sbatch_script
from scalescope.report.chapter import Chapter
from scalescope.report.render.markdown import escaped, markdown
from scalescope.report.render.page import html_fragment, page
from scalescope.report.render.tables import _csv_cell, tex, to_tex
from scalescope.report.render.terminal import console, show
from scalescope.report.section import ListedFinding, Section, ShownCommand, Table
from scalescope.results.printable import printable
from scalescope.results.run_record import round_duration

# Text of all characters, and pieces that mean something to one of the readers.
_PIECES = (
    *("{}[]:,&*!|>'\"%@`#-?\t\n\r \\$;<=+~^_"),
    *("batch_size", "world_size", "env", "vary", "model", "training", "data", "name", "command", "amp"),
    *("1", "0777", "1e3", ".nan", ".inf", "no", "null", "~", "1:30", "<<", "---", "...", "!!python/name:os"),
    *("\x1b[2J", "\x9b31m", "\u202e", "\u2028", "\0", "\ud800", "\x07", "é", "²", "٤"),
    *("<script>", "</script>", "<img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "&lt;", "javascript:"),
    *("\\input{/etc/passwd}", "\\write18{id}", "$(id)", "`id`", "#SBATCH --wrap=id", "[red]", "[link=x]"),
)
_TEXT = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))


FEW = settings(max_examples=40)


# Experiment files


@FEW
@given(st.one_of(_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=60)))
@example(b"batch_size: [1, 2]\nenv:\n  A: x\n")
@example(b"'\xf3\xa0\x80\x81': 4\n")
def test_any_file_is_read_or_refused_in_one_line(content: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        Path(file.name).write_bytes(content)
        try:
            entries = read_experiment_file(Path(file.name))
            experiment = build_experiment("train", "train", entries, {}, {})
        except BadInput as error:
            assert str(error).startswith(file.name) or "command" in str(error)
            assert "\n" not in printable(str(error))
        else:
            assert entries
            assert isinstance(experiment, Experiment)


@FEW
@given(st.dictionaries(st.sampled_from(("batch_size", "backend", "name", "budget", "link", "env.A")), _TEXT))
def test_any_value_is_taken_or_refused(texts: dict[str, str]) -> None:
    entries = {name: (Given(text, f"e.yaml:1: {name}"),) for name, text in texts.items()}
    try:
        build_experiment("train", "train", entries, {}, {})
    except BadInput as error:
        assert "e.yaml:1: " in str(error)


# Sizes and times


def _read(kind: Kind, text: str) -> object:
    return parse_value(Setting(name="x", kind=kind, default=None, help="", card=""), text, "--x")


@pytest.mark.parametrize("kind", ["int", "float", "bool", "str", "duration", "bytes", "link"])
@FEW
@given(text=st.one_of(_TEXT, st.from_regex(r"[+-]?[0-9.eE]{1,45}[kKmMgGtT]?i?[bBs]?", fullmatch=True)))
def test_any_text_is_a_value_or_refused(kind: Kind, text: str) -> None:
    try:
        value = _read(kind, text)
    except BadInput as error:
        assert str(error).startswith("--x: ")
    else:
        number = value if isinstance(value, float) else 0.0
        assert abs(number) < float("inf")
        assert kind not in ("duration", "bytes") or number >= 0


@FEW
@given(st.integers(0, 2**62))
def test_sizes_are_written_as_they_are_read(size: int) -> None:
    assert _read("bytes", _size_text(size)) == size
    assert _read("bytes", str(size)) == size


@pytest.mark.parametrize(("unit", "power"), [("K", 10), ("M", 20), ("GiB", 30), ("tb", 40), ("B", 0)])
def test_units_of_sizes_are_powers_of_1024(unit: str, power: int) -> None:
    assert _read("bytes", f"7{unit}") == 7 << power


@FEW
@given(st.floats(0.001, 1e7))
def test_a_rounded_time_is_never_shorter(seconds: float) -> None:
    rounded = _read("duration", round_duration(seconds))
    assert isinstance(rounded, float) and rounded >= seconds


# Job scripts

_OPTION = re.compile(r"#SBATCH --[a-z-]+(=[A-Za-z0-9._/+@=:,%-]+)?")
_PLAIN_JOB = SlurmJob(
    name="a",
    nodes=1,
    tasks_per_node=1,
    cpus_per_task=1,
    gpus_per_node=1,
    partition="a",
    account="a",
    time="10m",
    run_folder=Path("/a"),
    output=Path("/a"),
    directory=Path("/a"),
    command=("a",),
    launches=2,
    setup=("a",),
)


def _options(script: str) -> list[str]:
    return [line.partition("=")[0] for line in script.splitlines() if line.lstrip().startswith("#SBATCH")]


@FEW
@given(
    names=st.lists(_TEXT, min_size=3, max_size=3),
    time=st.one_of(st.just("30m"), _TEXT),
    path=_TEXT,
    words=st.lists(_TEXT, min_size=1, max_size=3),
    setup=st.lists(_TEXT, max_size=2),
    in_turn=st.booleans(),
)
@example(
    names=["a"] * 3,
    time="30m",
    path="it's $(id)",
    words=["`id`", ";"],
    setup=["export A='1 2'"],
    in_turn=False,
)
def test_no_text_leaves_its_line_of_a_job_script(
    names: list[str], time: str, path: str, words: list[str], setup: list[str], in_turn: bool
) -> None:
    folder = Path("/shared") / path.lstrip("/")
    plain = dataclasses.replace(
        _PLAIN_JOB,
        time="30m",
        run_folder=folder,
        output=Path("/shared"),
        directory=folder,
        command=tuple(words),
        in_turn=in_turn,
        setup=tuple(setup),
    )
    _check_script(dataclasses.replace(plain, name=names[0], partition=names[1], account=names[2], time=time))
    _check_script(plain)


def _check_script(job: SlurmJob) -> None:
    """Only our options for sbatch; every value is one word, or the user's own line of shell."""
    try:
        script = sbatch_script(job)
    except BadInput:
        return
    lines = script.splitlines()
    assert _options(script) == _options(sbatch_script(_PLAIN_JOB))
    assert all(_OPTION.fullmatch(line) for line in lines if line.startswith("#SBATCH"))
    assert shlex.split(next(line for line in lines if line.startswith("cd ")))[:2] == [
        "cd",
        str(job.directory),
    ]
    (step,) = (line for line in lines if "--kill-on-bad-exit=1" in line and "--only-launch=" in line)
    assert shlex.split(step)[1:-1] == list(job.command)
    setup = [line for text in job.setup for line in text.split("\n")]
    start = next(n for n, line in enumerate(lines) if line.startswith("trap ")) + 2
    assert "\n".join(lines[start:]).startswith("\n".join(setup))


# Pages, papers, spreadsheets, terminals


def _section(text: str) -> Section:
    command = ShownCommand(label=text, argv=("scalescope", text))
    return Section(
        title=text,
        table=Table(columns=(text, "number"), rows=((text, text),), left=frozenset((text,))),
        code=text,
        lines=(text, text),
        findings=(ListedFinding(text=text, commands=(command,)),),
        commands=(command,),
        details=(text,),
    )


class _Tags(HTMLParser):
    """Counts tags with the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.comments = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def _page(text: str) -> str:
    chapter = Chapter(name="part", title=text, order=1, sections=(_section(text),))
    return page((chapter,), text, "1 run")


@functools.cache
def _known_tags() -> tuple[_Tags, _Tags]:
    """Those of plain text, and of text with a term that the page explains."""
    return _Tags(_page("x")), _Tags(_page("efficiency"))


@settings(max_examples=15)  # each makes a whole page
@given(_TEXT)
def test_no_text_becomes_a_tag_of_the_page(text: str) -> None:
    (plain, explained), drawn = _known_tags(), _Tags(_page(text))
    assert set(drawn.tags) <= {*plain.tags, *explained.tags}
    assert drawn.comments == plain.comments
    assert [tag for tag, _ in drawn.tags].count("script") == [tag for tag, _ in plain.tags].count("script")


@FEW
@given(_TEXT)
def test_no_text_becomes_a_tag_of_a_notebook(text: str) -> None:
    assert {tag for tag, _ in _Tags(html_fragment((_section(text),))).tags} <= {
        tag for tag, _ in _Tags(html_fragment((_section("x"),))).tags
    }


@FEW
@given(_TEXT)
def test_no_text_becomes_markup_of_markdown(text: str) -> None:
    line = escaped(text)
    assert line.isprintable()
    assert not re.search(r"[<>@]|(?<!\\)(\\\\)*[`*_\[\]|~#$]", line.replace("&#64;", ""))
    table = next(part for part in markdown((_section(text),)).split("\n\n") if part.startswith("| "))
    assert len(table.splitlines()) == 3


_TEX_TOKEN = re.compile(
    r"[A-Za-z0-9 !'()*+,./:;=?@`\-\]]"  # what TeX prints as it is
    r"|\\[&%$#_{}]|\{\[\}|\{\*\}"
    r"|\\(?:textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|ldots)\{\}"
    r"|\\(?:ss|o|O|ae|AE|l|L|oe|OE)\{\}"
    r"|\$(?:\\times|\\div|\\to|-|\\pm|\\mu|\\cdot|\^\\circ)\$"
    r"|\\[`'^~\"rv=u.Hc]\{[A-Za-z]\}"
)


@FEW
@given(_TEXT)
def test_no_text_becomes_a_command_of_tex(text: str) -> None:
    assert re.fullmatch(f"(?:{_TEX_TOKEN.pattern})*", tex(text))
    table = to_tex(Table(columns=(text, "b"), rows=((text, text),), left=frozenset((text,))))
    assert len(table.splitlines()) == 8


@FEW
@given(_TEXT)
def test_no_text_becomes_a_formula(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow([_csv_cell(text), "next"])
    (row,) = csv.reader(io.StringIO(stream.getvalue()))
    assert row[1] == "next"
    assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert row[0].removeprefix("'") == text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("'")


@FEW
@given(_TEXT)
def test_no_text_reaches_the_terminal_with_control_characters(text: str) -> None:
    stream = io.StringIO()
    show((_section(text),), console(stream), verbose=True)
    assert all(letter == "\n" or letter.isprintable() for letter in stream.getvalue())
    assert printable(text).isprintable()
    assert text.isprintable() <= (printable(text) == text)


@FEW
@given(_TEXT)
def test_no_error_reaches_the_terminal_with_control_characters(text: str) -> None:
    from scalescope.cli import app

    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as leaving:
        patch.setattr("sys.stderr", stream)
        patch.setattr(app.app, "main", _raising(text))
        app.main([])
    assert leaving.value.code == ScalescopeError.exit_code
    line = stream.getvalue()
    assert line.endswith("\n") and line.removesuffix("\n").isprintable()


def _raising(text: str) -> object:
    def fail(*arguments: object, **named: object) -> None:
        raise ScalescopeError(text)

    return fail
