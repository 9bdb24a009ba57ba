"""Every command that a run of an own workload prints is run from another folder, and does what it says."""

import html.parser
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.cli import app
from scalescope.errors import ExitCode
from scalescope.experiment.trial import Trial
from scalescope.launch.local import launcher as local
from scalescope.report.chapters import chapters_of
from scalescope.report.section import Section
from scalescope.results.run import Run, load_run
from scalescope.studies import running
from scalescope.studies.report import ReportOptions, gather
from scalescope.studies.runs import resuming
from scalescope.studies.stored import present
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

Argv = tuple[str, ...]
WORKLOAD = "def build():\n    ...\n\n\ndef other():\n    ...\n"
SLOW_NETWORK = CostModel(exposed_comm_s={2: 0.4}, bytes_per_s=1e7)
SLOW_INPUT = CostModel(fixed_s=0.001, per_sample_s=0.0001, input_s={1: 0.02, 2: 0.02})
GOOD = CostModel()
HELPING = CostModel(launch_noise=0.004, factors={(("jit", True),): 0.7})
ONCE = ("--steps-per-epoch", "13", "--warmup-steps", "3", "--output-dir", "my out")
SHORT = (*ONCE, "--repeats", "3")
RUNS: dict[str, tuple[CostModel, Argv]] = {
    "scale": (SLOW_NETWORK, ("--world-size", "1,2", "--batch-size", "50", *SHORT)),
    "scale, good": (GOOD, ("--world-size", "1,2", "--batch-size", "512", "--no-waterfall", *SHORT)),
    "scale, one launch": (GOOD, ("--world-size", "1,2", "--batch-size", "50", *ONCE, "--repeats", "1")),
    "scale, one rank": (GOOD, ("--world-size", "1", "--batch-size", "50", *SHORT)),
    "scale, input": (SLOW_INPUT, ("--world-size", "1,2", "--batch-size", "50", "--num-workers", "1", *SHORT)),
    "scale, two jobs": (SLOW_NETWORK, ("--world-size", "1,2", "--global-batch-size", "100,200", *SHORT)),
    "run": (SLOW_NETWORK, ("--world-size", "1,2", "--batch-size", "50", *SHORT)),
    "run, memory": (GOOD, ("--benchmark", "memory", "--repeats", "1", "--output-dir", "my out")),
    "tune, helps": (HELPING, ("--world-size", "2", "--levers", "jit,comm_hook", *SHORT)),
    "memory": (GOOD, ("--batch-size", "2,4", "--output-dir", "my out")),
    "memory, limit": (GOOD, ("--batch-size", "2,4", "--memory-limit", "1GiB", "--output-dir", "my out")),
    "train": (GOOD, ("--batch-size", "50", "--precision", "bf16", "--env", "A=b c", *SHORT)),
}


RELATIVE = "my model.py:build"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, with spaces and umlauts, and its own workload."""
    path = tmp_path / "my proj ünï"
    path.mkdir()
    (path / "my model.py").write_text(WORKLOAD)
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


def call(*words: str) -> object:
    with pytest.raises(SystemExit) as leaving:
        app.main(list(words))
    return leaving.value.code


def measured(name: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run of that name, in the folder `my out` of the project."""
    model, flags = RUNS[name]
    for module in (local, running):  # of `compare`, and of everything else
        monkeypatch.setattr(module, "LocalLauncher", lambda: FakeLauncher(model, TWO_CORES))
    verb = name.partition(",")[0]
    monkeypatch.setattr(resuming, "_refuse_other_machine", lambda path: None)  # the machine is made up
    assert call(verb, "--workload", RELATIVE, *flags, "-v") == ExitCode.OK
    return load_run(Path("my out"))


def commands_in(sections: tuple[Section, ...]) -> Iterator[Argv]:
    for section in sections:
        for listed in section.findings:
            yield from (command.argv for command in listed.commands)
        yield from (command.argv for command in section.commands)


def commands_of(run: Run) -> set[Argv]:
    """What a report holds as data: what to try, and what to do next."""
    report = present(run)
    found = {*commands_in(report.sections)} - {()}  # some advice has no command
    return found | ({report.next_step.argv} if report.next_step is not None else set())


def printed_commands(text: str) -> set[Argv]:
    """What a person could copy out of what was printed."""
    lines = re.findall(r"^(?:   try: |Next: ).*?: (scalescope .*)$", text, re.MULTILINE)
    return {tuple(shlex.split(line)) for line in lines}


def check_does_what_it_says(argv: Argv, home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command from another folder: it succeeds, with the same workload and the settings it names."""
    assert argv[0] == "scalescope"
    monkeypatch.chdir(elsewhere)
    expected = {ExitCode.OK, ExitCode.CANNOT_RUN} if argv[1] == "check" else {ExitCode.OK}
    assert call(*argv[1:]) in expected, shlex.join(argv)
    if argv[1] in ("check", "report"):
        return
    if argv[1] == "resume":
        results = load_run(Path(argv[2])).results
        assert {result.trial.workload for result in results if result.trial.is_training} == {RELATIVE}
        assert {str(result.launch + 1) for result in results} >= {argv[argv.index("--repeats") + 1]}
        return
    trials = [result.trial for result in load_run(Path("runs/latest").resolve()).results]
    if argv[1] != "comm":
        trained = {trial.workload for trial in trials if trial.benchmark != "comm"}
        assert trained == {f"{home / 'my model.py'}:build"}
    flags = dict(itertools.pairwise(argv))
    if "--levers" in flags:
        for lever in flags["--levers"].split(","):
            assert is_tried(lever, trials), lever
    if "--world-size" in flags:
        assert {str(trial.world_size) for trial in trials} <= {"1", *flags["--world-size"].split(",")}


def is_tried(lever: str, trials: list[Trial]) -> bool:
    """Whether a lever has the value that was named, or several values."""
    name, separator, value = lever.partition("=")
    values = {str(trial.settings[name]) for trial in trials if name in trial.settings}
    wanted = {value, value.capitalize(), f"{value}.0"}  # as settings hold it
    return bool(wanted & values) if separator else len(values) > 1


@pytest.mark.parametrize("name", RUNS)
def test_every_printed_command_does_what_it_says(
    name: str,
    home: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = measured(name, monkeypatch)
    commands = commands_of(run)
    assert printed_commands(capsys.readouterr().out) == commands
    assert commands
    for argv in sorted(commands):
        check_does_what_it_says(argv, home, elsewhere, monkeypatch)


class Codes(html.parser.HTMLParser):
    """The texts of a page that are set as code or as commands."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "span":  # a word that is not broken
            return
        self._inside = tag == "code" or ("class", "command") in attributes
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag == "span"

    def handle_data(self, text: str) -> None:
        if self._inside:
            self.texts[-1] += text


def test_every_command_of_the_page_does_what_it_says(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured("run", monkeypatch)
    chapters = chapters_of(gather((run.path,), ReportOptions()))
    held = {argv for chapter in chapters for argv in commands_in(chapter.sections)}
    assert held
    reader = Codes()
    reader.feed((run.path / "report.html").read_text(encoding="utf-8"))
    written = {tuple(shlex.split(text)) for text in reader.texts if text.startswith("scalescope ")}
    assert written == held
    for argv in sorted(written):
        check_does_what_it_says(argv, home, elsewhere, monkeypatch)


def test_compare_names_no_command_that_cannot_be_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured("scale", monkeypatch)
    capsys.readouterr()
    assert call("compare", str(run.path), str(run.path)) == ExitCode.OK
    assert printed_commands(capsys.readouterr().out) == set()
