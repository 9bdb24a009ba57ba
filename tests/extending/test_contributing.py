"""CONTRIBUTING.md shows the worked examples as they are tested."""

import ast
import re
from pathlib import Path

from tests.extending.worked_examples import example_files

_PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
_BLOCK = re.compile(r"^`src/scalescope/(\S+\.py)`[^\n]*\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _after_imports(source: str) -> str:
    """The code that the page shows; the last import may be in an `if TYPE_CHECKING`."""
    imports = [
        node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom | ast.If)
    ]
    return "".join(source.splitlines(keepends=True)[imports[-1].end_lineno :]).lstrip()


def test_each_example_is_shown_as_it_is_tested() -> None:
    blocks = dict(_BLOCK.findall(_PAGE.read_text(encoding="utf-8")))
    assert blocks == {
        name: _after_imports(path.read_text(encoding="utf-8")) for name, path in example_files().items()
    }


def test_every_block_of_python_is_one_of_the_examples() -> None:
    assert _PAGE.read_text(encoding="utf-8").count("```python") == len(example_files())


def test_no_example_is_part_of_the_package() -> None:
    package = Path(__file__).parents[2] / "src" / "scalescope"
    assert [name for name in example_files() if (package / name).exists()] == []
