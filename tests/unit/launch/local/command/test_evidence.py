"""Why a training command that ended gave no result."""

from pathlib import Path

import pytest

from scalescope.launch.local.command.evidence import CommandEvidence, ProcessReport
from tests.builders.commands import command_trial

_TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 2, in <module>
    name = input("name of the run: ")
"""


@pytest.mark.parametrize("prompt", ["", "name of the run: "])
def test_a_script_that_reads_standard_input_is_told_that_there_is_none(prompt: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{prompt}{_TRACEBACK}EOFError: EOF when reading a line\n")
    evidence = CommandEvidence(
        trial=command_trial("python train.py"),
        processes=[ProcessReport(torch=True)],
        silent_ranks=[0],
        steps=0,
        log=log,
    )
    outcome = evidence.explain_end(1)
    assert (outcome.status, outcome.bad_input) == ("invalid", True)
    assert outcome.reason == (
        "the command exited with code 1: EOFError: EOF when reading a line; commands are run without "
        "standard input; give it as arguments, or from a file: -- bash -c 'python train.py < answers.txt'"
    )
