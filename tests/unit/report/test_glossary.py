"""The glossary: complete, readable, and the same in the code and in docs/glossary.md."""

import os
from pathlib import Path

from scalescope.analysis.scaling.waterfall import TERMS
from scalescope.analysis.training import step_waterfall
from scalescope.report.glossary import GLOSSARY, glossary_markdown

DOCUMENT = Path(__file__).parents[3] / "docs" / "glossary.md"


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


def test_no_form_is_explained_twice_and_every_explanation_is_short() -> None:
    forms = [form.casefold() for term in GLOSSARY for form in term.forms]
    assert len(forms) == len(set(forms))
    for term in GLOSSARY:
        assert term.meaning.endswith(".") and term.measured.endswith(".")
        assert len(term.meaning) <= 200
