"""Hook of mkdocs.yml: the pages that are not in docs/, links between all pages, and the navigation.

The pages in docs/ link to the rest of the repository as they do in a checkout. On the site, README.md and its
neighbours are pages, folders have an index, and every other file that is linked is a page with its text.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from docs_reference import reference_pages

_ROOT = Path(__file__).parents[1]
_ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_IN_REPOSITORY = {page: path for path, page in _ROOT_PAGES.items()}
_INDEXES = {"decisions": "Decisions", "measurements": "Measurements"}
_SOURCE = "source"  # the folder of the site with the files that pages link to
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """The navigation with all pages of its folders; anchors as in a checkout."""
    config.nav = _expanded(config.nav or [], Path(config.docs_dir))
    config.mdx_configs["toc"] = {"slugify": _anchor, "permalink": True, "toc_depth": 3}


def _expanded(items: list[Any], docs: Path) -> list[Any]:
    """The navigation without `FOLDER/*`."""
    result: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            result.append({title: _expanded(inner, docs) for title, inner in item.items()})
        elif isinstance(item, list):
            result.append(_expanded(item, docs))
        elif item.endswith("/*"):
            result += _pages_of(docs, item.removesuffix("/*"))
        else:
            result.append(item)
    return result


def _pages_of(docs: Path, folder: str) -> list[str]:
    """The pages of a folder, first its index."""
    names = sorted(path.name for path in (docs / folder).glob("*.md") if path.name != "README.md")
    return [f"{folder}/{name}" for name in (_index_name(docs, folder), *names)]


def _index_name(docs: Path, folder: str) -> str:
    return "README.md" if (docs / folder / "README.md").exists() else "index.md"


def _anchor(title: str, separator: str) -> str:
    """A heading's anchor as in a checkout: `In turns: --interleave` is in-turns---interleave."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    docs = Path(config.docs_dir)
    pages = {page: (_ROOT / path).read_text(encoding="utf-8") for path, page in _ROOT_PAGES.items()}
    pages |= {f"{folder}/index.md": _index(docs / folder, title) for folder, title in _INDEXES.items()}
    pages |= {f"reference/{name}": text for name, text in reference_pages().items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path in sorted({path for page, text in texts.items() for path in _sources_in(page, text)}):
        page = File.generated(config, f"{_SOURCE}/{path}.md", content=_source_page(path))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def _index(folder: Path, title: str) -> str:
    """A page that lists the pages of a folder by their titles."""
    lines = [f"# {title}", ""]
    for path in sorted(folder.glob("*.md")):
        match = _TITLE.search(path.read_text(encoding="utf-8"))
        lines.append(f"- [{match[1] if match else path.stem}]({path.name})")
    return "\n".join(lines) + "\n"


def _source_page(path: str) -> str:
    """A file, or all files of a folder, as they are."""
    here = _ROOT / path
    files = sorted(file for file in here.iterdir() if file.is_file()) if here.is_dir() else [here]
    parts = [f"# {path}"]
    for file in files:
        if here.is_dir():
            parts.append(f"## {file.name}")
        language = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".yaml": "yaml"}.get(
            file.suffix, "text"
        )
        parts.append(f"`````{language}\n{file.read_text(encoding='utf-8')}\n`````")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as the site has them."""
    here = page.file.src_uri
    if here.startswith(f"{_SOURCE}/"):
        return markdown

    def on_site(match: re.Match[str]) -> str:
        target = _site_path(_in_repository(here, match[2]))
        if target is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{match[3]}"

    return _outside_code(markdown, lambda text: _LINK.sub(on_site, text))


def _outside_code(markdown: str, change: Any) -> str:
    """The text with everything changed but blocks of code."""
    pieces, end = [], 0
    for block in _FENCE.finditer(markdown):
        pieces += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join((*pieces, change(markdown[end:])))


def _in_repository(page: str, target: str) -> str:
    """The path in the repository that a link of a page means."""
    folder = posixpath.dirname(_IN_REPOSITORY.get(page, f"docs/{page}"))
    return posixpath.normpath(posixpath.join(folder, target))


def _site_path(path: str) -> str | None:
    """The page that shows a path of the repository; None where there is nothing, for strict mode to name."""
    if path in _ROOT_PAGES:
        return _ROOT_PAGES[path]
    if path.startswith("docs/"):
        inner = path.removeprefix("docs/")
        if (_ROOT / path).is_dir():
            return f"{inner}/{_index_name(_ROOT / 'docs', inner)}"
        return inner
    return f"{_SOURCE}/{path}.md" if (_ROOT / path).exists() else None


def _sources_in(page: str, text: str) -> Iterator[str]:
    """The files outside of docs/ that a page links to and that are no page themselves."""
    links: list[str] = []
    _outside_code(text, lambda part: links.extend(match[2] for match in _LINK.finditer(part)) or part)
    for link in links:
        path = _in_repository(page, link)
        site_path = _site_path(path)
        if site_path is not None and site_path.startswith(f"{_SOURCE}/"):
            yield path
