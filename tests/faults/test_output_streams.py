"""Output may be closed, full or without a reader, and tools may hang: no measurement is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import TINY, clean_environment
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, RunsHere, reset_signal_handlers
from tests.speed import patience

_TRAIN = ("train", *TINY, "--no-breakdown", "--repeats=1")
_STORED_RUNS = Path(__file__).parents[1] / "stored_runs"


def in_shell(redirection: str) -> tuple[str, ...]:
    """The command with its output redirected as a shell does it."""
    return ("/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *SCALESCOPE)


@pytest.mark.gloo
@pytest.mark.fault(46)
@pytest.mark.parametrize(
    ("redirection", "code"), [("<&- >&- 2>&-", 0), (">/dev/full 2>/dev/full", 7)], ids=["closed", "full"]
)
def test_a_measurement_is_kept_where_nothing_can_be_printed(
    start: Start, seen: Seen, redirection: str, code: int
) -> None:
    run = start(*_TRAIN, command=in_shell(redirection)).finish()

    assert run.returncode == code
    assert [result["status"] for result in run.results] == ["ok"]
    assert (run.folder / "performance_report.txt").is_file()
    assert "Traceback" not in run.stderr
    seen(f"code {code} with {'/dev/full' if code else 'closed streams'}; the launch is stored")


def read(arguments: str, shell: str) -> "subprocess.CompletedProcess[str]":
    """A command that only reads, in a shell's line; `$S` is scalescope."""
    line = shell.replace("$S", f"{sys.executable} -m scalescope {arguments}")
    return subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=_STORED_RUNS,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(),
    )


@pytest.mark.fault(46)
@pytest.mark.parametrize("arguments", ["", "list ."])
@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [
        ("$S | true; exit ${PIPESTATUS[0]}", 141, ""),
        ("$S >/dev/full", 7, "scalescope: the output cannot be written: No space left on device\n"),
        ("$S >&-", 0, ""),
        ("$S >/dev/null 2>&-", 0, ""),
    ],
    ids=["pipe", "full", "closed", "stderr-closed"],
)
def test_reading_verbs_end_with_one_line_at_most(
    seen: Seen, arguments: str, shell: str, code: int, message: str
) -> None:
    ended = read(arguments, shell)

    if code == 141 and ended.returncode == 0:  # all was written before the reader had gone
        code = 0
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", message)
    seen("141 without a reader, 7 where it is full, 0 where it is closed")


@pytest.mark.gloo
@pytest.mark.fault(46, 40)
def test_tools_that_hang_or_print_other_bytes_cost_no_measurement(
    run_here: RunsHere, seen: Seen, tmp_path: Path
) -> None:
    sleep = shutil.which("sleep")
    for name, text in (("git", f"exec {sleep} 600"), ("nvidia-smi", r"printf 'caf\351\n'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    started = time.monotonic()

    run = run_here(*_TRAIN, PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert run.returncode == 0
    assert [result["status"] for result in run.results] == ["ok"]
    seen(f"git ended after 5 s, code 0, launch stored ({time.monotonic() - started:.0f} s in all)")


# Says when the entry point has its handler: before, it is Python's own start that is interrupted.
_ENTRY = """
import signal
install = signal.signal
def tell(number, handler):
    before = install(number, handler)
    signal.signal = install
    print("ready", flush=True)
    return before
signal.signal = tell
from scalescope.cli.main import main
main()
"""


@pytest.mark.fault(15)
@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1])
def test_an_interruption_right_after_the_start_leaves_no_traceback(delay_s: float, seen: Seen) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _ENTRY, "train", "--dry-run", *TINY],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signal_handlers,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=patience())
    if delay_s and (process.returncode, errors) == (0, ""):
        pytest.skip("the command was faster than the signal")
    assert process.returncode == 130
    assert errors.strip().startswith("scalescope: stopped by SIGINT")
    assert len(errors.strip().splitlines()) == 1
    seen("code 130 with one line, also 0.0 to 0.1 s after the start")
