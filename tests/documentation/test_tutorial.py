"""The commands of docs/tutorial.md run as they are written, with shorter windows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import scalescope
from tests.conftest import clean_environment
from tests.speed import patience

_PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
_FILE = re.compile(r'^```python title="(\S+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What the page measures for seconds is measured for a fraction of one here.
_SHORTER: Mapping[str, str] = {
    "--window 5s": "--window 0.5s",
    "--repeats 3": "--repeats 2 --no-repeat-disturbed",
}

pytestmark = pytest.mark.timeout(900)


def _commands() -> list[str]:
    return _COMMANDS.findall(_PAGE.read_text(encoding="utf-8"))


def _with_programs(folder: Path) -> dict[str, str]:
    """An environment in which the page's programs are those of this interpreter."""
    folder.mkdir()
    for name, module in (
        ("scalescope", "-m scalescope"),
        ("torchrun", "-m torch.distributed.run"),
        ("python", ""),
    ):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    return clean_environment(PATH=f"{folder}:{os.environ['PATH']}", **caches)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands of the page have run."""
    here = tmp_path_factory.mktemp("tutorial")
    for name, text in _FILE.findall(_PAGE.read_text(encoding="utf-8")):
        (here / name).write_text(text, encoding="utf-8")
    environment = _with_programs(here / "bin")
    for block in _commands():
        for long, short in _SHORTER.items():
            block = block.replace(long, short)
        ended = subprocess.run(
            ["bash", "-ec", block],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(180),
        )
        assert ended.returncode == 0, f"{block}\n{ended.stdout}{ended.stderr}"
    return here


def test_the_slow_script_is_also_measured_with_preloaded_samples(folder: Path) -> None:
    slow = folder / "runs" / "slow"
    launches = [json.loads(line) for line in (slow / "trials.jsonl").read_text().splitlines()]
    ablated = [launch for launch in launches if launch["settings"]["with_preloaded_input"]]
    assert ablated and {launch["status"] for launch in ablated} == {"ok"}
    assert scalescope.load(slow).steps()


def test_the_fix_is_compared_with_the_script_before(folder: Path) -> None:
    (trial,) = json.loads((folder / "compare.json").read_text())["trials"]
    assert trial["change"] > 0
    assert trial["verdict"] != "slower"


def test_two_ranks_are_measured(folder: Path) -> None:
    rows = scalescope.load(folder / "runs" / "scaled").scaling()
    assert sorted(row["ranks"] for row in rows) == [1, 2]
