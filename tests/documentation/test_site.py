"""The documentation builds as a site: no dead link, no page without a place, nothing from elsewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.speed import patience

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs (make docs)")

_ROOT = Path(__file__).parents[2]
_LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={folder}"]
    built = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=patience(120))
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    assert [page.name for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_every_setting_and_verb_has_a_place(site: Path) -> None:
    from scalescope.cli.flag_search import all_flags

    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    verbs = (site / "reference" / "verbs.html").read_text(encoding="utf-8")
    flags = all_flags()
    assert [flag.name for flag in flags if flag.cards and f'id="{flag.name}"' not in settings] == []
    assert [flag.name for flag in flags if not flag.cards and max(flag.flags, key=len) not in verbs] == []
