"""Public frameworks through their own APIs, unedited, on one and two gloo ranks; holds the table in the docs.

Run with `make frameworks`, which installs the extra of that name. SCALESCOPE_UPDATE_DOCS=1 writes the
table of docs/any-command.md instead of checking it.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.gloo, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
DOCS = ROOT / "docs" / "any-command.md"
BEGIN, END = "<!-- frameworks: begin -->", "<!-- frameworks: end -->"
HEADER = (
    "| framework | step | samples | wrapper | without communication | preloaded input |",
    "|---|---|---|---|---|---|",
)
_RUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node={world_size}")
_PROGRAMS = Path(sys.executable).parent
_ACCELERATE_LAUNCH = (
    *(f"{_PROGRAMS}/accelerate", "launch", "--config_file", f"{SCRIPTS}/accelerate_ranks.yaml"),
    *("--num_processes", "{world_size}", "--main_process_port", "{port}"),
)
_FABRIC_RUN = (
    *(f"{_PROGRAMS}/fabric", "run", "--accelerator", "cpu", "--strategy", "ddp"),
    *("--devices", "{world_size}", "--main-port", "{port}"),
)


@dataclass(frozen=True)
class Framework:
    """How a framework is started, and what of it has to be installed."""

    name: str
    words: tuple[str, ...]  # {port} stands for one that is free
    package: str | None = None


FRAMEWORKS = (
    Framework("plain DDP", (*_RUN, f"{SCRIPTS}/plain_ddp.py")),
    Framework("accumulation with no_sync", (*_RUN, f"{SCRIPTS}/accumulation.py")),
    Framework("GAN with two optimizers", (*_RUN, f"{SCRIPTS}/gan.py")),
    Framework("FSDP2 on the CPU", (*_RUN, f"{SCRIPTS}/fsdp2.py")),
    Framework("mp.spawn", (sys.executable, f"{SCRIPTS}/spawned.py", "{world_size}", "{port}")),
    Framework("Hugging Face Trainer", (*_RUN, f"{SCRIPTS}/hugging_face.py"), "transformers"),
    Framework("Accelerate", (*_RUN, f"{SCRIPTS}/accelerate_loop.py"), "accelerate"),
    Framework(
        "Lightning Trainer, DDP",
        (sys.executable, f"{SCRIPTS}/lightning_trainer.py", "{world_size}"),
        "lightning",
    ),
    Framework("accelerate launch", (*_ACCELERATE_LAUNCH, f"{SCRIPTS}/accelerate_loop.py"), "accelerate"),
    Framework("fabric run", (*_FABRIC_RUN, f"{SCRIPTS}/fabric_loop.py"), "lightning"),
)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def scalescope(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "scalescope", *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=580,
    )


def row_of(framework: Framework, results: list[dict[str, Any]]) -> str:
    """The line of the table, from what the launches showed."""
    trained = [result for result in results if result["settings"]["benchmark"] == "train"]
    plain = next(
        result
        for result in trained
        if result["status"] == "ok"
        and result["settings"]["world_size"] == 2
        and not _ablated(result["settings"])
    )
    counters = plain["ranks"][0]["counters"]
    cells = [
        framework.name,
        f"{counters['observed/step_from']} of {counters['observed/optimizers']}",
        f"{counters['observed/unit']}: {counters['observed/samples_from']}",
        counters["observed/wrapper"],
        _measured(trained, "without_communication"),
        _measured(trained, "with_preloaded_input") if counters["observed/loader"] else "no DataLoader",
    ]
    return f"| {' | '.join(cells)} |"


def _ablated(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("without_communication") or settings.get("with_preloaded_input"))


def _measured(results: list[dict[str, Any]], ablation: str) -> str:
    ends = {result["status"] for result in results if result["settings"].get(ablation)}
    return "yes" if ends == {"ok"} else "no"


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_framework(framework: Framework, tmp_path: Path) -> None:
    if framework.package and importlib.util.find_spec(framework.package) is None:
        pytest.skip(f"{framework.package} is not installed; pip install 'scalescope[frameworks]'")
    port = free_port()
    words = [word.replace("{port}", port) for word in framework.words]
    flags = (
        "--world-size",
        "1,2",
        "--repeats",
        "1",
        "--window",
        "0.5s",
        "--device",
        "cpu",
        "--no-repeat-disturbed",
    )
    ended = scalescope(tmp_path, "scale", *flags, "--output-dir", "run", "--", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    summary = json.loads((tmp_path / "run" / "results.json").read_text())["results"]
    two = next(row for row in summary["scaling"] if row["world_size"] == 2)
    assert two["speedup"] > 0
    assert two["waterfall"]
    assert summary["findings"]
    assert "where the speed goes" in ended.stdout
    _check_row(framework, row_of(framework, results))


def _check_row(framework: Framework, row: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    rows = {
        line.split("|")[1].strip(): line for line in text[start:end].splitlines() if line.startswith("| ")
    }
    if os.environ.get("SCALESCOPE_UPDATE_DOCS"):
        rows[framework.name] = row
        known = [rows[other.name] for other in FRAMEWORKS if other.name in rows]
        DOCS.write_text(
            text[:start] + "\n" + "\n".join((*HEADER, *known)) + "\n" + text[end:], encoding="utf-8"
        )
        return
    assert rows[framework.name] == row


def test_sync_of_accelerate_passes_its_own_assertions(tmp_path: Path) -> None:
    """It compares gradients itself: a canary for anything that we might disturb."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed; pip install 'scalescope[frameworks]'")
    words = ("-m", "torch.distributed.run", "--nproc-per-node=2", "-m")
    ended = scalescope(
        tmp_path,
        *("train", "--world-size", "2", "--keep-running", "--device", "cpu", "--output-dir", "run"),
        *("--env", "ACCELERATE_USE_CPU=1", "--"),
        *(sys.executable, *words, "accelerate.test_utils.scripts.test_sync"),
    )
    printed = ended.stdout + ended.stderr  # a command that goes on prints as it always does
    assert "Test `accumulate` gradient accumulation with optimizer and scheduler" in printed
    assert "Traceback" not in printed
    assert "exit code" not in printed.replace("with exit code 0", "")


def test_accelerate_launch_on_the_cpu_alone_is_refused_with_the_number_of_ranks_it_started(
    tmp_path: Path,
) -> None:
    """It has no way to start several without a configuration or MPI, and says nothing about it."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed; pip install 'scalescope[frameworks]'")
    ended = scalescope(
        tmp_path,
        *("train", "--world-size", "2", "--repeats", "1", "--device", "cpu", "--output-dir", "run", "--"),
        *(f"{_PROGRAMS}/accelerate", "launch", "--cpu", "--num_processes", "{world_size}"),
        f"{SCRIPTS}/accelerate_loop.py",
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "the command ran 1 rank, but 2 were requested; its launcher does not follow {world_size}" in (
        ended.stdout + ended.stderr
    )
