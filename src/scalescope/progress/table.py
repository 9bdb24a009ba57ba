"""Draws how far a campaign is: a table that fills up, the time, and the answer so far."""

import textwrap
from collections.abc import Sequence

from rich.text import Text

from scalescope.progress.leaderboard import search_lines
from scalescope.progress.state import CampaignProgress, TimeLeft, TrialRow
from scalescope.report.numbers import MISSING, counted
from scalescope.report.training.launch_figures import main_figure, sample_rate
from scalescope.results.printable import printable

_MOST_ROWS = 15
_MOST_VERDICT_LINES = 2
_OTHER_LINES = 4 + _MOST_VERDICT_LINES  # the heading, "and N more", the time, the verdict, one to spare
_NARROWEST_LABEL = 30
_GAP = "  "
_HEADINGS = ("trial", "done", "latest", "per second", "state")
_SAMPLES = _HEADINGS.index("per second")
_WIDEST_STATE = len("running 99%")  # columns do not move while it changes
_STYLES = {"waiting": "dim", "running": "bold", "ok": "green"}

Cells = tuple[str, ...]  # one text per heading


def draw(progress: CampaignProgress, width: int, height: int) -> Text:
    """The whole display for a terminal of that size, one line less high than it."""
    interim = progress.interim
    if progress.is_search:
        lines = search_lines(progress, width, height)
    else:
        lines = _table(progress, width, height) if progress.rows else []
        lines.append(Text(_time_line(progress)[:width], style="bold"))
    if interim is not None and not interim.rows:
        lines += [Text(line) for line in _verdict_lines(interim.text, width)]
    return Text("\n").join(lines)


def _table(progress: CampaignProgress, width: int, height: int) -> list[Text]:
    rows, fraction = progress.rows, progress.fraction
    cells = [_cells(row, fraction) for row in rows]
    has_samples = any(row.trial.is_training for row in rows)
    widths = _widths((_HEADINGS, *cells), width, has_samples=has_samples)
    blocks = [_block(texts, widths, _style(row)) for texts, row in zip(cells, rows, strict=True)]
    running = next((number for number, row in enumerate(rows) if row.state == "running"), None)
    chosen = _chosen([len(block) for block in blocks], running, height - _OTHER_LINES)
    lines = _block(_HEADINGS, widths, "dim")
    for number in chosen:
        lines += blocks[number]
    if len(chosen) < len(rows):
        lines.append(Text(f"… and {len(rows) - len(chosen)} more", style="dim"))
    return lines


def _cells(row: TrialRow, fraction: float) -> Cells:
    state = f"running {min(0.99, fraction):.0%}" if row.state == "running" else row.state
    figure, samples = main_figure(row.figures), sample_rate(row.figures)
    return printable(row.label), f"{row.done}/{row.planned}", figure or MISSING, samples or MISSING, state


def _style(row: TrialRow) -> str:
    return _STYLES.get(row.state, "") if row.is_expected else "red"


def _widths(rows: Sequence[Cells], width: int, *, has_samples: bool) -> list[int]:
    """The width of every column, 0 for none.

    Where they do not fit, labels go on several lines, or samples are left out.
    """
    widths = [max(len(row[number]) for row in rows) for number in range(len(_HEADINGS))]
    widths[-1] = max(widths[-1], _WIDEST_STATE)
    others = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
    if not has_samples or min(widths[0], _NARROWEST_LABEL) > width - others:
        others -= widths[_SAMPLES] + len(_GAP)
        widths[_SAMPLES] = 0
    widths[0] = max(1, min(widths[0], width - others))
    return widths


def _block(cells: Cells, widths: Sequence[int], style: str) -> list[Text]:
    """The lines of one row; a label that is too long takes several."""
    label, *figures, state = cells
    first, *others = textwrap.wrap(label, widths[0], subsequent_indent=_GAP)
    aligned = [f"{text:>{size}}" for text, size in zip(figures, widths[1:-1], strict=True) if size]
    line = _GAP.join((f"{first:<{widths[0]}}", *aligned, state))
    return [Text(text, style=style) for text in (line, *others)]


def _chosen(heights: Sequence[int], running: int | None, room: int) -> list[int]:
    """The numbers of the rows to show: the first that fit, and the running one in any case."""
    chosen: list[int] = []
    left = room - (heights[running] if running is not None else 0)
    for number, lines in enumerate(heights):
        if number == running:
            continue
        if lines > left or len(chosen) + (running is not None) >= _MOST_ROWS:
            break
        chosen.append(number)
        left -= lines
    return sorted({*chosen, *(() if running is None else (running,))})


def _time_line(progress: CampaignProgress) -> str:
    elapsed = f"elapsed {_clock(progress.elapsed_s)}"
    if not progress.rows:
        return f"Preparing, {elapsed}"
    done, planned = progress.launches
    launches = f"{counted(done, 'launch')} done" if planned is None else f"{done} of {planned} launches"
    left = progress.time_left()
    return ", ".join((launches, elapsed, *(() if left is None else (_left_text(left),))))


def _left_text(left: TimeLeft) -> str:
    reason = " (budget)" if left.bound == "at most" else ""
    return f"{left.bound} {_clock(left.seconds)} left{reason}"


def _clock(seconds: float) -> str:
    """`0:45`, `3:20`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _verdict_lines(verdict: str, width: int) -> list[str]:
    text = f"So far: {printable(verdict)}"
    return textwrap.wrap(text, width, max_lines=_MOST_VERDICT_LINES, placeholder=" …")
