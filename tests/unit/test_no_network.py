"""Reading and planning open no connection and ask no name server."""

import shutil
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from scalescope.cli import app
from scalescope.studies import running
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

_STORED_RUNS = Path(__file__).parents[1] / "stored_runs"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which every use of a socket is an error, with a few stored runs."""

    def refuse(*arguments: Any, **named: Any) -> NoReturn:
        raise AssertionError("the network was used")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(running, "LocalLauncher", lambda: FakeLauncher(CostModel(), TWO_CORES))
    monkeypatch.chdir(tmp_path)
    for verb in ("scale", "train", "comm"):
        shutil.copytree(_STORED_RUNS / verb, tmp_path / verb)


@pytest.mark.parametrize(
    "command",
    [
        "explain scale",
        "report train --out page --format html,json",
        "compare train train",
        "list .",
        "predict --ledger",
        "settings bucket",
        "schema",
        "train --device cpu --dry-run",
        "scale --device cpu --world-size 1,2 --dry-run",
        "train --launcher slurm --time 10m --dry-run",
    ],
)
def test_no_verb_that_reads_or_plans_uses_the_network(command: str) -> None:
    with pytest.raises(SystemExit) as leaving:
        app.main(command.split())
    assert leaving.value.code in (0, 6)  # 6: too noisy to judge
