"""`report`: from run folders everything a person would show: a page, figures, tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.errors import BadInput, StorageError
from scalescope.report.analyzed_run import Material, Story
from scalescope.report.chapter import Chapter, chapters_of
from scalescope.report.performance import headline, performance_text
from scalescope.report.render.drawing import WIDTHS_IN, check_drawing, save
from scalescope.report.render.page import page
from scalescope.report.render.scalars import write_scalars
from scalescope.report.render.tables import tables
from scalescope.results.files import to_text, write_atomically
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import DEFAULT_ROOT, PERFORMANCE, RESULTS, find_runs, read_json

FORMATS = ("html", "figures", "csv", "tex", "md", "txt", "json")
PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a report is to look."""

    formats: tuple[str, ...] = FORMATS
    title: str | None = None
    datasets: tuple[str, ...] = ()
    skip_epochs: int = 0
    by: str | None = None
    width: str = "page"
    tensorboard: Path | None = None  # where scalars are to go as well

    def check(self) -> None:
        """Refuse what is not offered."""
        for one in self.formats:
            if one not in FORMATS:
                raise BadInput(f"--format: {one!r} is not one of {', '.join(FORMATS)}")
        if self.width not in WIDTHS_IN:
            raise BadInput(f"--width: {self.width!r} is not one of {', '.join(WIDTHS_IN)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report left: its files, the first line, and what could not be read."""

    files: tuple[Path, ...]
    headline: str
    warnings: tuple[str, ...]


def report(roots: Sequence[Path], out: Path | None, wishes: Wishes) -> Written:
    """Read the runs and write what is wished for."""
    wishes.check()
    material = gather(roots, wishes)
    chapters = chapters_of(material)
    folder = out or _default_folder(material)
    texts = _texts(material, chapters, wishes)
    try:
        files = [*_figures(chapters, folder, wishes), *_write(texts, folder)]
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: could not be written: {error.strerror}") from None
    if wishes.tensorboard is not None:
        write_scalars(material, wishes.tensorboard)
    first = material.scaling_stories[0] if material.scaling_stories else material.stories[-1]
    warnings = tuple(warning for story in material.stories for warning in story.run.warnings)
    return Written(files=tuple(files), headline=headline(first), warnings=warnings)


def gather(roots: Sequence[Path], wishes: Wishes) -> Material:
    """All runs at or below the roots that hold a result, oldest first."""
    paths = [path for root in roots or (DEFAULT_ROOT,) for path in _runs_below(root)]
    runs = [load_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    finished = [run for run in runs if run.results]
    finished.sort(key=lambda run: min(result.started_at for result in run.results))
    if not any(run.of_status("ok") for run in finished):
        where = ", ".join(map(str, roots or (DEFAULT_ROOT,)))
        raise BadInput(f"report: {where}: {_why_nothing(runs)}")
    stories = _stories(finished)
    what = stories[0].name if len(stories) == 1 else f"{len(stories)} runs"
    title = wishes.title or f"scalescope: {what}"
    material = Material(stories, title, wishes.datasets, wishes.skip_epochs, wishes.by)
    known = Material(stories, title).dataset_names
    for name in wishes.datasets:
        if name not in known:
            raise BadInput(f"--datasets: no run has {name!r}; there are {', '.join(known) or 'none'}")
    if wishes.by is not None and not any(wishes.by in one.trial.settings for one in material.measured):
        raise BadInput(f"--by: no trial has a setting {wishes.by!r}")
    return material


def _stories(runs: Sequence[Run]) -> tuple[Story, ...]:
    """Runs by the names of their folders, or by whole paths where two are the same."""
    names = Counter(run.path.name for run in runs)
    return tuple(Story(run, str(run.path) if names[run.path.name] > 1 else "") for run in runs)


def _why_nothing(runs: Sequence[Run]) -> str:
    """Why there is nothing to show, in half a sentence."""
    failed = [result for run in runs for result in run.results]
    if failed:
        return f"every launch failed; the first: {' '.join((failed[0].reason or failed[0].status).split())}"
    warnings = [warning for run in runs for warning in run.warnings]
    return warnings[0] if warnings else "holds no run with results; scalescope run makes one"


def _runs_below(root: Path) -> list[Path]:
    if not root.exists():
        raise BadInput(f"report: {root}: no such run folder")
    found = list(find_runs(root.resolve() if root.is_symlink() else root))
    if not found:
        raise BadInput(f"report: {root}: holds no run")
    return found


def _default_folder(material: Material) -> Path:
    """Beside a single run's own files, or under the folder that holds all runs."""
    paths = [story.run.path for story in material.stories]
    return paths[0] if len(paths) == 1 else paths[-1].parent / "report"


def _figures(chapters: tuple[Chapter, ...], folder: Path, wishes: Wishes) -> list[Path]:
    if "figures" not in wishes.formats:
        return []
    check_drawing()
    place = folder / "figures"
    place.mkdir(parents=True, exist_ok=True)
    return [
        path
        for chapter in chapters
        for figure in chapter.figures
        for path in save(figure, place, wishes.width)
    ]


def _texts(material: Material, chapters: tuple[Chapter, ...], wishes: Wishes) -> dict[str, str]:
    """File name → text, of everything but figures."""
    texts: dict[str, str] = {}
    if "html" in wishes.formats:
        texts[PAGE] = page(chapters, material.title, len(material.stories))
    made = tables(material)
    wished = {name: text for name, text in made.items() if name.rpartition(".")[2] in wishes.formats}
    texts |= {f"tables/{name}": text for name, text in wished.items()}
    if "txt" in wishes.formats:
        stories = [*material.scaling_stories, *(s for s in material.stories if not s.scales)]
        parts = [performance_text(story) for story in stories]
        named = [f"{story.name}\n\n{text}" for story, text in zip(stories, parts, strict=True)]
        texts[PERFORMANCE] = parts[0] if len(parts) == 1 else "\n".join(named)
    if "json" in wishes.formats:
        summaries = {story.name: _summary(story) for story in material.stories}
        texts["report.json"] = to_text({"title": material.title, "runs": summaries})
    return texts


def _summary(story: Story) -> object:
    """A run's own results.json; None where it is missing, broken, or holds what is no JSON."""
    found = read_json(story.run.path / RESULTS)
    try:
        to_text(found)
    except ValueError:
        return None
    return found


def _write(texts: dict[str, str], folder: Path) -> list[Path]:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)
    return [folder / name for name in texts]
