"""The performance report: a run explained in plain words, for a screen or a file."""

import dataclasses

from scalescope.analysis.memory.forecast import memory_groups
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.checks import node_sections
from scalescope.report.comm import sections as communication
from scalescope.report.comm.sections import communication_explanation, pairs_verdict
from scalescope.report.commands import script_sections
from scalescope.report.consistency import consistency_section
from scalescope.report.findings import evidence_section, findings_section
from scalescope.report.memory.sections import memory_explanation, verdicts
from scalescope.report.render.cells import plain_text
from scalescope.report.scaling.sections import verdict
from scalescope.report.scaling.waterfall import waterfall_sections, whole_of
from scalescope.report.section import Section
from scalescope.report.trace.sections import profile_sections
from scalescope.report.training.sections import training_sentence
from scalescope.report.training.step_waterfall import step_sections
from scalescope.results.run import Run
from scalescope.results.run_folder import TUNING, read_json

NOTHING = "No measurement finished, so there is nothing to explain."
_NOTHING_COSTLY = "No rule found a part of the step that is worth changing."
_NO_PARTS_OF_COMMAND = "This run did not measure the breakdown of the command's step."
_NO_PARTS = "This run did not measure the breakdown of a step; a new run of scalescope train measures it."


def headline(run: Run | AnalyzedRun) -> str | None:
    """The report's first line: the verdict of the run, in one sentence; None where nothing finished."""
    analyzed = analyzed_run(run)
    sentence = _tuning_verdict(analyzed.run) or _training_verdict(analyzed)
    if sentence is not None:
        return sentence
    if analyzed.collectives:
        return communication.verdict(analyzed.collectives)
    if (pairs := pairs_verdict(analyzed.run)) is not None:
        return pairs
    return next(iter(verdicts(memory_groups(analyzed.run))), None)


def _tuning_verdict(run: Run) -> str | None:
    tuning = read_json(run.path / TUNING)
    sentence = tuning.get("verdict") if isinstance(tuning, dict) else None
    return sentence if isinstance(sentence, str) else None


def _training_verdict(analyzed: AnalyzedRun) -> str | None:
    if analyzed.scales:
        return verdict(analyzed.rows)
    full = [configuration for configuration in analyzed.measured if not configuration.trial.is_ablation]
    return training_sentence(max(full, key=lambda configuration: configuration.speed.value)) if full else None


def performance_sections(source: Run | AnalyzedRun) -> tuple[Section, ...]:
    """The verdict, where the time goes, why, and what to do first."""
    analyzed = analyzed_run(source)
    first = Section(lines=(headline(analyzed) or NOTHING,))
    if analyzed.scales:
        return (
            first,
            *joint_sections(analyzed),
            *script_sections(analyzed.run),
            *profile_sections(analyzed.run),
            *evidence_section(analyzed.diagnosis),
            *node_sections(analyzed.run),
        )
    others = (*communication_explanation(analyzed), *memory_explanation(analyzed.run))
    return (
        first,
        *joint_sections(analyzed),
        *script_sections(analyzed.run),
        *profile_sections(analyzed.run),
        *without_lines(first.lines, others),
        *evidence_section(analyzed.diagnosis),
        *node_sections(analyzed.run),
    )


def joint_sections(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """Where the time of a step goes and what costs most of it, whichever runs it was measured in."""
    return (*consistency_section(analyzed), *_joint_sections(analyzed))


def _joint_sections(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    diagnosis = analyzed.diagnosis
    if analyzed.scales:
        findings = findings_section(diagnosis, every=True, loses=analyzed.loses)
        scaling = waterfall_sections(analyzed.rows, analyzed.steps)
        steps = () if scaling and _continues(analyzed) else step_sections(analyzed.steps, every=True)
        return (*steps, *scaling, *findings)
    steps = step_sections(analyzed.steps, every=True)
    if diagnosis.findings:
        return (*steps, *findings_section(diagnosis, every=True))
    if steps:
        details = tuple(detail for part in findings_section(diagnosis) for detail in part.details)
        return (*steps, Section(lines=(_NOTHING_COSTLY,), details=details))
    if any(facts.trial.is_command for facts in analyzed.steps):
        return (Section(lines=(_NO_PARTS_OF_COMMAND,)),)
    return (Section(lines=(_NO_PARTS,)),) if analyzed.steps else ()


def _continues(analyzed: AnalyzedRun) -> bool:
    """Whether a scaling waterfall begins with the parts of one rank's step, which then need no table."""
    waterfalls = [row.waterfall for row in analyzed.rows if row.waterfall is not None]
    return any(whole_of(waterfall, analyzed.steps) is not None for waterfall in waterfalls)


def without_lines(shown: tuple[str, ...], sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """The sections less the lines that are shown already, and without those that only have such lines."""
    rest = [
        dataclasses.replace(section, lines=tuple(line for line in section.lines if line not in shown))
        for section in sections
    ]
    return tuple(section for section in rest if section != Section(title=section.title))


def performance_text(run: Run | AnalyzedRun) -> str:
    """The same as a file of plain text."""
    return plain_text(performance_sections(run))
