"""The glossary is the same in the code and in docs/glossary.md; summaries are held letter by letter."""

import os
from pathlib import Path

from scalescope.analysis.scaling.waterfall import TERMS
from scalescope.analysis.training import step_waterfall
from scalescope.report.glossary import GLOSSARY, GlossaryTerm
from scalescope.report.scaling.sections import scaling_sections
from scalescope.report.training.sections import training_sections
from tests.builders.known_runs import make_run, make_trials

from .conftest import Golden, Render

DOCUMENT = Path(__file__).parents[3] / "docs" / "glossary.md"
_HEAD = """\
<!-- Written from src/scalescope/report/glossary.py. To write it again:
     UPDATE_GOLDEN=1 pytest tests/unit/report/test_glossary.py -->

# Glossary

What the terms in tables, figures and findings mean, and how scalescope measures each of them.
"""


def glossary_markdown() -> str:
    """The text of docs/glossary.md."""
    return "\n".join([_HEAD, *map(_entry, GLOSSARY)])


def _entry(term: GlossaryTerm) -> str:
    also = f" Also written: {', '.join(term.aliases)}." if term.aliases else ""
    return f"## {term.name}\n\n{term.meaning}{also}\n\nMeasurement: {term.measured}\n"


def test_the_document_is_written_from_the_data() -> None:
    if os.environ.get("UPDATE_GOLDEN") == "1":
        DOCUMENT.write_text(glossary_markdown(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == glossary_markdown(), (
        "docs/glossary.md differs from src/scalescope/report/glossary.py: "
        "UPDATE_GOLDEN=1 pytest tests/unit/report/test_glossary.py writes it"
    )


def test_every_term_of_the_waterfall_is_explained() -> None:
    assert set(TERMS) <= {term.name for term in GLOSSARY}


def test_every_reason_for_idle_time_of_a_step_is_explained() -> None:
    idle = {value for name, value in vars(step_waterfall).items() if name.startswith("IDLE_")}
    assert len(idle) == 5
    assert idle <= {term.name for term in GLOSSARY}


def test_no_form_is_explained_twice() -> None:
    forms = [form.casefold() for term in GLOSSARY for form in term.forms]
    assert len(forms) == len(set(forms))


def test_train_summary(render: Render, golden: Golden) -> None:
    run = make_run(make_trials(world_size=2, batch_size=64, threads_per_rank=1))
    golden("train_summary.txt", render(training_sections(run)))


def test_train_summary_of_one_launch(render: Render, golden: Golden) -> None:
    run = make_run(make_trials(world_size=1, batch_size=64, threads_per_rank=1), launches=1)
    golden("train_summary_one_launch.txt", render(training_sections(run)))


def test_weak_scaling(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[1, 2, 4], batch_size=[32, 256])
    golden("scaling_weak.txt", render(scaling_sections(make_run(trials)), verbose=True))


def test_strong_scaling_without_one_rank(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[2, 4], global_batch_size=256)
    golden("scaling_strong_relative.txt", render(scaling_sections(make_run(trials))))


def test_weak_scaling_on_a_usual_terminal(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[1, 2, 4], batch_size=[32, 256])
    golden("scaling_weak_80_columns.txt", render(scaling_sections(make_run(trials)), width=80))
