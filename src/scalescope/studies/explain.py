"""`explain`: re-reads a stored run and shows why it does not scale."""

from pathlib import Path

from scalescope.errors import BadInput
from scalescope.report.section import Section
from scalescope.results.run import load_run
from scalescope.studies.stored import present


def explain(path: Path) -> tuple[Section, ...]:
    """The sections that explain a run."""
    if not path.exists() and path.name == "latest":
        raise BadInput("explain: there is no run under runs/; name a run folder")
    run = load_run(path)
    if not run.results:
        raise BadInput(f"explain: {path} has no results yet")
    notes = tuple(Section(lines=(warning,)) for warning in run.warnings)
    return (*notes, *present(run).explain())
