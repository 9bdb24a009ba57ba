"""What a run folder stores is data: its escape sequences stay off the terminal, its commands are not run."""

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.calling import called
from tests.conftest import clean_environment
from tests.faults.conftest import Seen
from tests.gloo.real_runs import SCALESCOPE, RunsHere
from tests.speed import patience

_STORED_RUN = Path(__file__).parents[1] / "stored_runs" / "scale"
_HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b2K\u202egnp\u2066.\r"
_SHOWN_AS = "\\x1b]0;owned"
Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; returns code and all that was printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> SimpleNamespace:
        ended = called(capsys, *arguments)
        return SimpleNamespace(code=ended.code, text=ended.out + ended.err)

    return call


def hostile_run(folder: Path) -> Path:
    """A stored run with control characters in every text that a launch and its machine have."""
    shutil.copytree(_STORED_RUN, folder)
    lines = []
    for number, line in enumerate((folder / "trials.jsonl").read_text().splitlines()):
        record = json.loads(line)
        record["notes"] = [_HOSTILE]
        if number % 2:
            record |= {"status": "failed", "reason": _HOSTILE, "log": f"/{_HOSTILE}", "rank": 0}
        lines.append(json.dumps(record))
    (folder / "trials.jsonl").write_text("\n".join(lines) + "\n")
    environment = json.loads((folder / "environment.json").read_text())
    environment["machine"] |= {"host": _HOSTILE, "cpu_model": _HOSTILE}
    environment["variables"] = {f"NCCL_{_HOSTILE}": _HOSTILE}
    (folder / "environment.json").write_text(json.dumps(environment))
    record = {"verb": f"scale{_HOSTILE}", "name": _HOSTILE, "flags": [_HOSTILE], "end": None}
    (folder / "run.json").write_text(json.dumps(record))
    with (folder / "experiment.yaml").open("a") as stream:
        stream.write(f"{json.dumps(_HOSTILE)}: 1\n")
    return folder


def is_clean(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t\u00a0\u2009\u202f" for letter in text)


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "."),
        ("explain", "hostile", "-v"),
        ("compare", "hostile", "hostile", "-v", "--any-hardware"),
        ("compare", "hostile", "plain", "-v"),
        ("report", "hostile"),
        ("resume", "hostile"),
        ("scale", "--resume", "--output-dir=hostile"),
        ("scale", "hostile/experiment.yaml"),
        (_HOSTILE,),
        ("scale", f"--{_HOSTILE}"),
        ("scale", f"--world-size={_HOSTILE}"),
        ("explain", _HOSTILE),
        ("slurm", "lint", _HOSTILE),
    ],
    ids=lambda arguments: ascii(" ".join(arguments))[:40],
)
def test_no_escape_sequence_reaches_the_terminal(
    run: Run, seen: Seen, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    hostile_run(tmp_path / "hostile")
    shutil.copytree(_STORED_RUN, tmp_path / "plain")

    ended = run(*arguments)

    assert ended.text.strip()
    assert is_clean(ended.text), ascii(ended.text)
    assert "Traceback" not in ended.text
    written = [path for path in tmp_path.rglob("*.txt") if path.is_file()]
    assert all(is_clean(path.read_text()) for path in written)
    seen("spelled out, such as \\x1b, in messages, tables and text files")


@pytest.mark.fault(44)
def test_a_terminal_gets_our_colors_and_nobody_elses(tmp_path: Path, seen: Seen) -> None:
    hostile_run(tmp_path / _HOSTILE)
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [*SCALESCOPE, "list", "."],
        cwd=tmp_path,
        env=clean_environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    content = io.BytesIO()
    try:
        while piece := os.read(master, 65536):
            content.write(piece)
    except OSError:  # the terminal has no writer any more
        pass
    os.close(master)
    assert process.wait(patience()) == 0

    text = content.getvalue().decode()
    assert _SHOWN_AS in text
    for foreign in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\x07", "\x9b", "\u202e", "\u2066"):
        assert foreign not in text
    assert "\x1b[1m" in text  # our own
    seen("at a terminal only our own styles")


@pytest.mark.gloo
@pytest.mark.fault(44)
def test_what_a_workload_raises_is_spelled_out(run_here: RunsHere, seen: Seen) -> None:
    text = f"def build():\n    raise RuntimeError({_HOSTILE!r})\n"
    (run_here.directory / "hostile.py").write_text(text)

    run = run_here("train", "--device=cpu", "--workload=hostile.py:build", "--no-breakdown", "--repeats=1")

    assert run.returncode == 2
    assert _SHOWN_AS in run.stderr
    assert is_clean(run.stdout + run.stderr)
    assert is_clean((run.folder / "performance_report.txt").read_text())
    seen("an exception of a workload too")


def stored(folder: Path, command: str) -> Path:
    """A stopped run whose request names a command."""
    folder.mkdir()
    (folder / "experiment.yaml").write_text(f"command: {json.dumps(command)}\n")
    (folder / "run.json").write_text(json.dumps({"verb": "train", "flags": [], "end": None}))
    return folder


@pytest.mark.fault(43)
@pytest.mark.parametrize("how", ["writable", "link", "owner"])
@pytest.mark.parametrize("verb", ["resume", "--resume"])
def test_a_folder_that_others_may_have_written_is_not_run(
    run: Run, seen: Seen, tmp_path: Path, how: str, verb: str
) -> None:
    mark = tmp_path / "was-run"
    folder = stored(tmp_path / "theirs", f"{shutil.which('touch')} {mark}")
    if how == "writable":
        (folder / "experiment.yaml").chmod(0o666)
    elif how == "link":
        (folder / "experiment.yaml").rename(tmp_path / "elsewhere.yaml")
        (folder / "experiment.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    elif os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    else:
        os.chown(folder / "experiment.yaml", 12345, -1)

    arguments = (
        ("resume", str(folder)) if verb == "resume" else ("train", "--resume", f"--output-dir={folder}")
    )
    ended = run(*arguments)

    if how == "link" and ended.code == 7:  # links in a run folder are never followed, with or without a word
        assert "is a link" in ended.text
    else:
        assert ended.code == 2 and "--trust" in ended.text
    assert not mark.exists()
    seen("refused with code 2 until --trust is given; a link with code 7")


@pytest.mark.fault(43)
def test_a_checkout_cannot_make_a_run_execute_its_monitor(tmp_path: Path, seen: Seen) -> None:
    mark = tmp_path / "was-run"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    for words in (["init", "-q"], ["config", "core.fsmonitor", str(program)]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    code = "from pathlib import Path; from scalescope.results.provenance import git_state, git_output; "
    code += "git_state(Path.cwd()); git_output(Path.cwd(), 'status')"

    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=patience())
    assert not mark.exists()
    subprocess.run(["git", "status"], cwd=tmp_path, check=True, capture_output=True)
    assert mark.exists()  # which git by itself does run
    seen("git runs neither monitor, hooks nor filters of the checkout")
