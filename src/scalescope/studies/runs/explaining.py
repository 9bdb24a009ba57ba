"""`explain` of several runs, which inform each other, and of what is not a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.report.section import Section
from scalescope.studies.stored import explain, next_section, present, run_to_explain

if TYPE_CHECKING:
    from scalescope.results.run import Run


def explain_together(paths: Sequence[Path]) -> tuple[Section, ...]:
    """One run as it is; of several each in a line, then a diagnosis of all that one machine measured."""
    from scalescope.results.joined import by_machine

    if len(paths) == 1:
        stored = _checks(paths[0])
        return explain(paths[0]) if stored is None else stored
    runs = [run_to_explain(path) for path in dict.fromkeys(paths)]
    names = {id(run): str(run.path) for run in runs}
    lines = tuple(f"{names[id(run)]}: {present(run).headline}" for run in runs)
    notes = tuple(warning for run in runs for warning in run.warnings)
    groups = by_machine(runs)
    sections = [Section(lines=(*notes, *lines))]
    if len(groups) > 1:
        sections.append(Section(lines=(_not_joined(groups),)))
    for group in groups:
        sections += _joint(group, several=len(groups) > 1)
    return tuple(sections)


def _not_joined(groups: "tuple[tuple[Run, ...], ...]") -> str:
    parts = "; ".join(", ".join(str(run.path) for run in group) for group in groups)
    return (
        "These runs were measured on different machines, so they are explained apart: "
        f"{parts}. scalescope compare shows what differs between two of them."
    )


def _joint(group: "tuple[Run, ...]", *, several: bool) -> list[Section]:
    """The runs of one machine as one: where the time goes, what costs most, and what to do next."""
    from scalescope.report.analyzed_run import AnalyzedRun
    from scalescope.report.comm.explanation import communication_explanation
    from scalescope.report.findings import evidence_section
    from scalescope.report.memory.explanation import memory_explanation
    from scalescope.report.performance import joint_sections
    from scalescope.results.joined import joined

    run = joined(group)
    analyzed = AnalyzedRun(run)
    title = ", ".join(str(member.path) for member in group)
    heading = [Section(lines=(f"{title}:",))] if several else []
    sections = [
        *joint_sections(analyzed),
        *communication_explanation(analyzed),
        *memory_explanation(run),
        *evidence_section(analyzed.diagnosis),
    ]
    main = next(member for member in group if member.path == run.path)
    # A search goes on from its own launches; any other next step follows from what all runs show together.
    following = present(main if main.record.verb == "tune" else run)
    return [*heading, *sections, next_section(following)]


def _checks(path: Path) -> tuple[Section, ...] | None:
    """What `check --json` printed, as `check` shows it; None for anything else."""
    from scalescope.analysis.checks.host import Check
    from scalescope.report.checks.sections import check_sections
    from scalescope.report.section import ShownCommand
    from scalescope.results.run_commands import CHECK
    from scalescope.results.run_folder import read_json

    facts = read_json(path) if path.is_file() else None
    stored = facts.get("checks") if isinstance(facts, dict) else None
    if not isinstance(stored, list):
        return None
    try:
        checks = tuple(
            Check(
                level=line["level"],
                subject=f"{line['host']}: {line['subject']}" if line.get("host") else line["subject"],
                text=line["text"],
                advice=line["advice"],
            )
            for line in stored
        )
    except (KeyError, TypeError, AttributeError):
        return None
    again = Section(commands=(ShownCommand(label="Next: check this machine again", argv=CHECK),))
    return (*check_sections(checks, [])[:2], again)
