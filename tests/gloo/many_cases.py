"""Many cases on the same two processes; every case has an outcome of its own.

`python -m tests.gloo.many_cases MODULE:FUNCTION RANK DIRECTORY` is one of them, from the torch server.

Each case joins a process group of its own. Where it fails on one rank, the others lose their connection and
fail in the same case, and all go on with the next one.
"""

import contextlib
import functools
import gc
import importlib
import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.speed import patience

RANKS = 2
_ROOT = Path(__file__).parents[2]
_GROUP_LIMIT_S = 30.0
_LIMIT_S = 120.0

Work = Callable[[str, int, Path], Any]


@dataclass(frozen=True)
class Outcomes:
    """What every rank answered in every case."""

    ranks: tuple[dict[str, dict[str, Any]], ...]

    def of(self, case: str) -> list[Any]:
        """The answers of all ranks; fails the test that asks where one has none."""
        for rank, outcomes in enumerate(self.ranks):
            outcome = outcomes.get(case, {"error": "the rank ended before it answered"})
            if "error" in outcome:
                pytest.fail(f"{case}: rank {rank}: {outcome['error']}", pytrace=False)
        return [outcomes[case]["answer"] for outcomes in self.ranks]


def run_cases(work: Work, cases: Sequence[str], directory: Path) -> Outcomes:
    """Do `work(case, rank, directory)` for every case on every rank; answers are plain data."""
    (directory / "cases.json").write_text(json.dumps(list(cases)))
    start = [sys.executable, "-m", "tests.gloo.many_cases", f"{work.__module__}:{work.__name__}"]
    processes = [subprocess.Popen([*start, str(rank), str(directory)], cwd=_ROOT) for rank in range(RANKS)]
    try:
        for process in processes:
            process.wait(patience(_LIMIT_S))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Outcomes(tuple(_read(directory / f"outcomes-{rank}.jsonl") for rank in range(RANKS)))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {outcome["case"]: outcome for outcome in map(json.loads, lines)}


def main() -> None:
    """One case after the other; every outcome is on disk before the next case begins."""
    reference, rank, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    module, _, function = reference.partition(":")
    work: Work = getattr(importlib.import_module(module), function)
    cases = json.loads((directory / "cases.json").read_text())
    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")  # as in the process of the tests
    # torch warns of its own parts while it imports them
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.")
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), RANKS)
    with (directory / f"outcomes-{rank}.jsonl").open("w") as outcomes:
        for number, case in enumerate(cases):
            join = functools.partial(_join, dist.PrefixStore(str(number), store), rank)
            outcome = _outcome_of(functools.partial(work, case, rank, directory), join)
            outcomes.write(json.dumps({"case": case, **outcome}) + "\n")
            outcomes.flush()


def _outcome_of(work: Callable[[], Any], join: Callable[[], None]) -> dict[str, Any]:
    import torch.distributed as dist

    try:
        join()
        return {"answer": work()}
    except Exception:
        return {"error": traceback.format_exc()}
    finally:
        gc.collect()  # a wrapper's hooks must not outlive its case
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _join(store: Any, rank: int) -> None:
    import torch.distributed as dist

    longest = timedelta(seconds=patience(_GROUP_LIMIT_S))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=longest)


if __name__ == "__main__":
    main()
