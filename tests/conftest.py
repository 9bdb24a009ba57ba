"""Shared by all tests: the command line as a person calls it, and what required parts mean."""

import contextlib
import importlib.util
import os
import random
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import torch_server
from tests.faults.page import ROWS_SHOWN, PageWriter
from tests.slurm.cluster import why_no_slurm
from tests.speed import measure_slowness, patience

# Tests run side by side and are other load to each other: what they compare must not depend on that.
os.environ.setdefault("SCALESCOPE_HIDE_LOAD", "1")

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

# The same examples each time, and no time limit for one: a busy machine is not a failure.
# HYPOTHESIS_PROFILE=default draws new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Small and quick: for tests that look at behaviour, not at speed.
TINY = [
    "--device=cpu",
    "--input-dim=16",
    "--hidden-dim=16",
    "--num-layers=2",
    "--output-dim=4",
    "--batch-size=4",
    "--steps-per-epoch=8",
    "--warmup-steps=3",
    "--no-repeat-disturbed",  # tests run side by side, and are other load to each other
]


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that would make us a rank or colour the output."""
    unwanted = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SCALESCOPE_FAULT")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.startswith("SLURM_")
    }
    return {**kept, **extra}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `scalescope` in an empty directory; returns the finished process."""

    def run(*arguments: str, within_s: float = 120, **extra: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "scalescope", *arguments],
            cwd=tmp_path,
            env=clean_environment(**extra),
            capture_output=True,
            text=True,
            timeout=patience(within_s),
        )

    return run


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows the runs of another, or of whoever starts the tests; drawing keeps its list of fonts."""
    drawing = Path.home() / ".cache" / "matplotlib"
    monkeypatch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", str(drawing)))
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex  # made by whoever writes there
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.delenv("SCALESCOPE_LEDGER", raising=False)


@pytest.fixture(autouse=True)
def reports_agree_with_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever run a test presents, no part of its report contradicts another."""

    def none_found(found: Iterable[str]) -> tuple[object, ...]:
        lines = list(found)
        assert not lines, lines
        return ()

    for user in ("scalescope.report.consistency", "scalescope.studies.prediction"):
        monkeypatch.setattr(f"{user}.disagreement_section", none_found)


@pytest.fixture(autouse=True)
def fault_rows(request: pytest.FixtureRequest) -> None:
    """Note which rows of docs/reliability.md a test shows."""
    numbers = [number for mark in request.node.iter_markers("fault") for number in mark.args]
    if numbers:
        request.node.user_properties.append((ROWS_SHOWN, numbers))


@pytest.fixture(autouse=True)
def leaves_the_process_alone() -> Iterator[None]:
    """A test must not change what later tests, and the programs they start, inherit."""
    before = _inherited()
    yield
    assert _inherited() == before


def _inherited() -> dict[str, object]:
    limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    signals = {line for line in lines if line.startswith(("Umask", "SigBlk", "SigIgn"))}
    return {"limits": limits, "signals": signals, "directory": os.getcwd()}


# Where several processes share the tests (`make test`), what takes longest begins first: else one process
# would still be at it when the others have nothing left to do.
_LONG_FILES = (
    *("test_tutorial.py", "test_one_start.py", "test_shared_batches.py", "test_journeys.py"),
    *("test_levers.py", "test_strategies.py", "test_drawing.py", "test_search.py", "test_verdicts.py"),
)
_LONGEST_FIRST = ("slurm", "commands", "faults", "gloo", "netns", "browser", "pipeline", "latex")
# Real processes, real time: of these folders, `make test` has only what is marked `basic`.
_THOROUGH = ("slurm", "faults", "gloo", "netns", "browser", "latex", "commands", "gpu", "documentation")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reliability", metavar="FILE", help="write what tests/faults saw, as a page")
    parser.addoption("--shuffle", metavar="SEED", help="run files, and tests in them, in a random order")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return None if seed is None else f"random order: --shuffle={seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Measure how slow the machine is before anything runs on it; a test's own limit follows it."""
    measure_slowness()
    torch_server.prepare()
    page = config.getoption("--reliability")
    if page is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PageWriter(Path(page)))
    if config.option.timeout is None:
        config.option.timeout = patience(float(config.getini("timeout")))


def pytest_unconfigure() -> None:
    torch_server.remove()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Workers come from the torch server, unless a test says that they load torch on their own."""
    starts_workers = any(item.get_closest_marker(name) for name in ("gloo", "netns"))
    with contextlib.ExitStack() as during:
        if starts_workers and not item.get_closest_marker("own_torch"):
            during.enter_context(torch_server.used())
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need what is not here are skipped; several processes get them in the order of their time."""
    _skip_what_cannot_run(items)
    for item in items:
        if _folder_of(item.path) in _THOROUGH and not item.get_closest_marker("basic"):
            item.add_marker("thorough")
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, random.Random(seed))
    elif hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank_of(item.path))


def _shuffle(items: list[pytest.Item], order: random.Random) -> None:
    """Files in a random order, and the tests in each; a file stays together: its tests share fixtures."""
    files = sorted({item.path for item in items})
    order.shuffle(files)
    order.shuffle(items)
    items.sort(key=lambda item: files.index(item.path))


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, whose tests share fixtures; all files of SLURM share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/slurm" if file.startswith("tests/slurm/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def _folder_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


def _rank_of(path: Path) -> tuple[bool, int]:
    folder = _folder_of(path)
    order = _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)
    return path.name not in _LONG_FILES, order


def _skip_what_cannot_run(items: list[pytest.Item]) -> None:
    """A test that needs what is not here skips with the reason; where it is required, it runs and fails."""
    required = os.environ.get("SCALESCOPE_REQUIRE", "").split(",")
    for marker, why_not in _NEEDS.items():
        needed = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if needed and marker not in required else None
        if reason is not None:
            for item in needed:
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA GPU"


def _why_no_namespaces() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    missing = [tool for tool in ("ip", "tc", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True)
    return "this system does not let us make network namespaces" if made.returncode else None


def _why_no_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "needs playwright"
    return None if chromium() is not None else "needs Chromium"


def chromium() -> str | None:
    """The system's browser; playwright brings none of its own here."""
    paths = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in paths if path is not None), None)


def _why_no_latex() -> str | None:
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return "needs pdflatex"
    lookup = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True)
    return "needs LaTeX's booktabs" if lookup.returncode else None


_NEEDS = {
    "gpu": _why_no_gpu,
    "netns": _why_no_namespaces,
    "browser": _why_no_browser,
    "latex": _why_no_latex,
    "slurm": why_no_slurm,
}
