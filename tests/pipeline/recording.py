"""What the pipeline tests share: requests by flags, and a watcher that records its calls."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.report.section import Section
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.studies.request import Request
from scalescope.studies.study import Interim
from scalescope.studies.watcher import Budget

SMALL = {"steps_per_epoch": 8, "warmup_steps": 3}
SMALL_COMMAND = {"window": "0.2s", "warmup_steps": 3}  # a command decides how many steps it makes


@dataclass
class RecordingWatcher:
    """Records every call of a campaign."""

    notes: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)  # launches planned, and done before
    budgets: list[Budget | None] = field(default_factory=list)
    launched: list[tuple[Trial, int]] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)  # of the same launches
    results: list[Result] = field(default_factory=list)
    placements: list[list[str]] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    verdicts: list[Interim] = field(default_factory=list)

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def shown(self, sections: tuple[Section, ...]) -> None:
        self.sections.extend(sections)

    def began(
        self, launches: Sequence[tuple[Trial, int]], finished: Sequence[Result], budget: Budget | None
    ) -> None:
        done = {result.key for result in finished}
        self.begun.append((len(launches), sum((trial.trial_id, n) in done for trial, n in launches)))
        self.budgets.append(budget)

    def launching(self, trial: Trial, launch: int, *, label: str | None = None) -> None:
        self.launched.append((trial, launch))
        self.labels.append(label)

    def ended(self, result: Result) -> None:
        self.results.append(result)

    def verdict(self, interim: Interim) -> None:
        self.verdicts.append(interim)

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        self.placements.append([rank.line for rank in ranks])

    def advanced(self, fraction: float) -> None:
        self.fractions.append(fraction)


def ask(verb: str, *, output_dir: str | None = "run", **asked: Any) -> Request:
    """A request by flags; lists are sweeps; `resume`, `strict` and so on are the switches."""
    switches = {name: asked.pop(name) for name in ("resume", "strict", "dry_run", "file") if name in asked}
    small = SMALL_COMMAND if "command" in asked else SMALL
    settings = asked if "file" in switches else {**small, **asked}
    if output_dir is not None:
        settings = {**settings, "output_dir": output_dir}
    values = {name: setting if isinstance(setting, list) else [setting] for name, setting in settings.items()}
    flags = {name: tuple(Given(str(value), f"--{name}") for value in given) for name, given in values.items()}
    return Request(verb=verb, flags=flags, **switches)


def summary_of(path: Path | None) -> dict[str, Any]:
    """results.json of a run."""
    assert path is not None
    summary = json.loads((path / "results.json").read_text(encoding="utf-8"))
    assert isinstance(summary, dict)
    return summary


def ask_benchmark(benchmark: str, **asked: Any) -> Request:
    """A request of a verb that is named like its benchmark, and takes no training steps."""
    made = ask(benchmark, **asked)
    flags = {name: given for name, given in made.flags.items() if name in asked or name not in SMALL}
    return replace(made, benchmark=benchmark, flags=flags)


def folder_alone(request: Request) -> Request:
    """The request with the name of its folder alone, as `--resume --output-dir` gives it."""
    return replace(request, flags={"output_dir": request.flags["output_dir"]})
