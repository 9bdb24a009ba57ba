"""Runs as typed results: what a measuring call returns, and what `load` makes of a folder."""

import dataclasses
import functools
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.api.rows import (
    Row,
    collective_row,
    combination_row,
    configuration_row,
    finding_rows,
    launch_row,
    part_rows,
    scaling_row,
)
from scalescope.diagnose.step_facts import step_facts_of
from scalescope.report.section import Section
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import TUNING, read_json
from scalescope.studies.study import Report

_WIDTH = 120  # of text, where nobody says how wide the page is


def load(path: str | Path) -> "StoredRun":
    """A run folder, read once: a Scaling, Trained, Collectives or Tuned where its verb is one of these."""
    run = load_run(path)
    return result_type(run.record.verb)(run=run)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredRun:
    """A run as rows and as a report; `run` has everything, down to the samples of every rank."""

    run: Run
    measured: Report | None = field(default=None)  # of the call that made the run
    notes: tuple[str, ...] = ()  # what such a call had to say on the way

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, versions, variables and code, as environment.json has them."""
        return self.run.environment

    def trials(self) -> list[Row]:
        """One row for each launch: every setting, how it ended, and what it delivered."""
        return [launch_row(result) for result in self.run.results]

    def scaling(self) -> list[Row]:
        """One row for each configuration against the smallest world size of its kind."""
        return [scaling_row(row) for row in scaling_rows(configurations(self.run.results))]

    def steps(self) -> list[Row]:
        """One row for each part of one rank's step, of every configuration whose parts are known."""
        return [
            row
            for facts in step_facts_of(self.run)
            if facts.waterfall is not None
            for row in part_rows(facts.waterfall)
        ]

    def findings(self) -> list[Row]:
        """What costs speed and what to do first, the most expensive first."""
        return finding_rows(self.run)

    def rows(self) -> list[Row]:
        """The rows that answer what was asked: of a run of no special kind, its launches."""
        return self.trials()

    @functools.cached_property
    def report(self) -> Report:
        """What the command line shows of the run."""
        from scalescope.studies.stored import present

        return self.measured or present(self.run)

    @property
    def headline(self) -> str | None:
        """The result in a sentence."""
        return self.report.headline

    @property
    def exit_code(self) -> int:
        """The exit code of the same command: 0 where every launch that was asked for succeeded."""
        return int(self.report.exit_code)

    def table(self, *, width: int = _WIDTH, verbose: bool = False) -> str:
        """The tables and lines of the terminal as text; `verbose` adds what -v shows."""
        return _as_text(self.report.sections, width, verbose)

    def __str__(self) -> str:
        return _as_text((*self._first_sections(), *self._last_sections()), _WIDTH, verbose=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {self.headline}>"

    def _repr_html_(self) -> str:
        """The same as a fragment of a page, for notebooks."""
        from scalescope.report.render.page import html_fragment

        return html_fragment((*self._first_sections(), *self._last_sections()))

    def _first_sections(self) -> tuple[Section, ...]:
        """The report without the headline, which comes last as on the command line."""
        from scalescope.report.performance import without_lines

        return without_lines(() if self.headline is None else (self.headline,), self.report.sections)

    def _last_sections(self) -> tuple[Section, ...]:
        short = () if self.headline is None else (f"In short: {self.headline}",)
        step = self.report.next_step
        steps = () if step is None else (dataclasses.replace(step, label=f"Next: {step.label}"),)
        return (
            Section(lines=short, commands=steps),
            Section(lines=(f"Results: {self.path / 'results.json'}",)),
        )


class Scaling(StoredRun):
    """How training scales: the result of `scalescope.scale`."""

    def rows(self) -> list[Row]:
        """One row for each world size and batch, with speedup, efficiency and what was lost."""
        return self.scaling()


class Trained(StoredRun):
    """How fast training is: the result of `scalescope.train`."""

    def rows(self) -> list[Row]:
        """One row for each configuration that was asked for, over all its launches."""
        asked = [result for result in self.run.results if _is_asked_for(result)]
        rows = [configuration_row(configuration) for configuration in configurations(asked)]
        return sorted(rows, key=lambda row: (row["ranks"], row["batch"] or 0))


class Collectives(StoredRun):
    """How fast collectives are: the result of `scalescope.comm`."""

    def rows(self) -> list[Row]:
        """One row for each collective and size."""
        return [collective_row(row) for row in collective_rows(self.run.results)]


class Tuned(StoredRun):
    """Which settings help: the result of `scalescope.tune`."""

    def rows(self) -> list[Row]:
        """One row for each combination of levers, with its speedup over the current settings."""
        return [combination_row(combination) for combination in self.tuning.get("combinations", ())]

    @property
    def tuning(self) -> dict[str, Any]:
        """The content of tuning.json: verdict, winner, levers, and the lines for a script."""
        content = read_json(self.path / TUNING)
        return content if isinstance(content, dict) else {}


_TYPES: dict[str, type[StoredRun]] = {
    "scale": Scaling,
    "train": Trained,
    "comm": Collectives,
    "tune": Tuned,
}


def result_type(verb: str) -> type[StoredRun]:
    """The type of the results of a verb."""
    return _TYPES.get(verb, StoredRun)


def _is_asked_for(result: Result) -> bool:
    """Whether a launch measures the job itself, and does not only explain it."""
    trial = result.trial
    return trial.benchmark == "train" and not trial.is_ablation


def _as_text(sections: tuple[Section, ...], width: int, verbose: bool) -> str:
    """Sections as a terminal without colours shows them; a notebook must not display them automatically."""
    from rich.console import Console

    from scalescope.report.render.terminal import show

    stream = io.StringIO()
    target = Console(file=stream, width=width, color_system=None, force_jupyter=False, highlight=False)
    show(sections, target, verbose=verbose)
    return stream.getvalue().strip("\n")
