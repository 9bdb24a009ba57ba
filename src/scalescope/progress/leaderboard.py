"""Draws how far a search is: the best so far, what is being tried, and the time left."""

from rich.text import Text

from scalescope.progress.state import CampaignProgress
from scalescope.report.numbers import MISSING, counted, shortened
from scalescope.results.printable import printable
from scalescope.studies.study import InterimRow
from scalescope.studies.watcher import Budget

_MOST_ROWS = 6
_OTHER_LINES = 5  # the heading, "and N more", what is being tried, the time, one to spare
_NARROWEST_NAME = 16
_GAP = "  "
_HEADINGS = ("so far", "speedup", "launches", "")
_BEST = "best"

Cells = tuple[str, str, str, str]  # one text per heading


def search_lines(progress: CampaignProgress, width: int, height: int) -> list[Text]:
    """The display of a search for a terminal of that size, one line less high than it."""
    rows = () if progress.interim is None else progress.interim.ranking
    lines = _table(rows, width, height) if rows else []
    if progress.activity is not None:
        lines.append(Text(_activity_line(progress, width)))
    lines.append(Text(_time_line(progress)[:width], style="bold"))
    return lines


def best_line(best: InterimRow, budget: Budget | None) -> str:
    """`best so far: precision bf16, 1.43×, 1m 20s left`."""
    speedup = () if best.speedup is None else (_speedup(best.speedup),)
    left = () if budget is None else (f"{_time(budget.left_s)} left",)
    return f"best so far: {', '.join((best.name, *speedup, *left))}"


def _table(rows: tuple[InterimRow, ...], width: int, height: int) -> list[Text]:
    shown = rows[: max(1, min(_MOST_ROWS, height - _OTHER_LINES))]
    cells = [_cells(row) for row in shown]
    widths = _widths([_HEADINGS, *cells], width)
    lines = [_line(_HEADINGS, widths, width, "dim")]
    for texts, row in zip(cells, shown, strict=True):
        lines.append(_line(texts, widths, width, "green" if row.is_best else ""))
    if len(shown) < len(rows):
        lines.append(Text(f"… and {len(rows) - len(shown)} more"[:width], style="dim"))
    return lines


def _cells(row: InterimRow) -> Cells:
    speedup = MISSING if row.speedup is None else _speedup(row.speedup)
    return printable(row.name), speedup, f"{row.launches}", _BEST if row.is_best else ""


def _speedup(speedup: float) -> str:
    return f"{speedup:.2f}×"


def _widths(rows: list[Cells], width: int) -> list[int]:
    """The width of every column, 0 for none: a narrow terminal has neither launches nor marks."""
    widths = [max(len(cells[number]) for cells in rows) for number in range(len(_HEADINGS))]
    if width - _width_of_other_columns(widths) < min(widths[0], _NARROWEST_NAME):
        widths[2:] = [0, 0]
    widths[0] = max(1, min(widths[0], width - _width_of_other_columns(widths)))
    return widths


def _width_of_other_columns(widths: list[int]) -> int:
    return sum(len(_GAP) + size for size in widths[1:] if size)


def _line(cells: Cells, widths: list[int], width: int, style: str) -> Text:
    name, speedup, launches, mark = cells
    texts = (
        f"{shortened(name, widths[0]):<{widths[0]}}",
        f"{speedup:>{widths[1]}}",
        f"{launches:>{widths[2]}}",
        mark,
    )
    kept = [text for text, size in zip(texts, widths, strict=True) if size]
    return Text(_GAP.join(kept).rstrip()[:width], style=style)


def _activity_line(progress: CampaignProgress, width: int) -> str:
    done = f"{_GAP}{min(0.99, progress.fraction):.0%}" if progress.running is not None else ""
    return shortened(printable(progress.activity or ""), max(1, width - len(done))) + done


def _time_line(progress: CampaignProgress) -> str:
    budget, (done, _) = progress.budget(), progress.launches
    time = f"elapsed {_time(progress.elapsed_s)}"
    if budget is not None:
        time = f"{_time(budget.left_s)} left of {_time(budget.total_s)}"
    return f"{time}, {counted(done, 'launch')} done"


def _time(seconds: float) -> str:
    """`45s`, `1m 20s`, `3m`, `1h 5m`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (0 if hours else rest, "s"))
    return " ".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
