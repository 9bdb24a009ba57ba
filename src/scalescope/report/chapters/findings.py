"""Findings: why, on what evidence, and what to do first."""

from scalescope.report.analyzed_run import Material, Story
from scalescope.report.chapter import Chapter
from scalescope.report.findings import evidence_lines, findings_section
from scalescope.report.section import Section

_MOST = 5  # runs


def chapter(material: Material) -> Chapter | None:
    others = [story for story in reversed(material.stories) if not story.scales][:_MOST]
    telling = [story for story in others if story.diagnosis.findings]
    stories = [*material.scaling_stories, *telling][:_MOST]
    sections = tuple(section for story in stories for section in _sections(story, several=len(stories) > 1))
    if not sections:
        return None
    return Chapter(name="findings", title="Why, and what to do", order=20, sections=sections)


def _sections(story: Story, *, several: bool) -> tuple[Section, ...]:
    found = findings_section(story.diagnosis, every=True, loses=story.loses)
    evidence = tuple(
        line
        for finding in story.diagnosis.findings
        if finding.evidence
        for line in (f"{finding.rule}:", *evidence_lines(finding))
    )
    title = f"{story.name}: findings" if several else "Findings"
    named = tuple(Section(title=title, lines=one.lines, details=one.details) for one in found)
    return (*named, *((Section(title="Evidence", details=evidence),) if evidence else ()))
