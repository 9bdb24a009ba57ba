"""Draws figures with matplotlib: files for papers (PNG, SVG, PDF). The page has its own: svg.py."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scalescope.errors import CannotRun
from scalescope.report.render.painting import (
    FAINT,
    GRID,
    INK,
    PAINTERS,
    fits_below,
    height_of,
)
from scalescope.report.section import Figure
from scalescope.results.files import write_atomically

WIDTHS_IN = {"column": 3.5, "page": 7.2}
_MOST_LEGEND = 18
_FEW_NAMES, _SHORT_NAME = 6, 24  # of lines, where the legend is inside the panel
_UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
FORMATS = ("png", "svg", "pdf")


def save(figure: Figure, folder: Path, width: str = "page") -> list[Path]:
    """Write the figure in every format."""
    paths = [folder / f"{figure.name}.{file_format}" for file_format in FORMATS]
    with _drawn(figure, width) as drawn:
        for file_format, path in zip(FORMATS, paths, strict=True):
            # No date inside: the same data makes the same file.
            drawing = io.BytesIO()
            drawn.savefig(drawing, format=file_format, dpi=200, metadata=_UNDATED.get(file_format, {}))
            write_atomically(path, drawing.getvalue())
    return paths


@contextlib.contextmanager
def _drawn(figure: Figure, width: str) -> Iterator[Any]:
    """A matplotlib figure after layout; it must be saved inside this context, which holds the style."""
    new_figure, in_style = _matplotlib()
    with in_style(_style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name may have letters that the font has not
        drawn = _draw(new_figure, figure, width)
        drawn.get_layout_engine().execute(drawn)
        drawn.set_layout_engine(None)  # or every format would do the layout again
        yield drawn


def _draw(new_figure: Any, figure: Figure, width: str) -> Any:
    """Panels side by side at page width, one below the other at column width."""
    count = len(figure.panels)
    side_by_side = width == "page" and count > 1
    rows, columns = (1, count) if side_by_side else (count, 1)
    room_in = WIDTHS_IN[width] / columns
    title_lines = _wrapped([figure.title, *figure.notes], 95 if width == "page" else 46)
    drawn = new_figure(layout="constrained")
    drawn.suptitle("\n".join(title_lines), fontsize=8.5, color=INK, ha="left", x=0.01)
    for number, panel in enumerate(figure.panels, start=1):
        axes = drawn.add_subplot(rows, columns, number)
        PAINTERS[panel.kind](axes, panel, room_in)
        lies = panel.kind == "bars" and not fits_below(panel, room_in)
        axes.set_xlabel(panel.y_label if lies else panel.x_label)
        axes.set_ylabel(panel.x_label if lies else panel.y_label)
        if panel.title:
            axes.set_title(panel.title, loc="left")
    legend_in = _legends(drawn, figure, WIDTHS_IN[width])
    height_in = max(height_of(panel, room_in) for panel in figure.panels) * rows
    drawn.set_size_inches(WIDTHS_IN[width], height_in + 0.17 * len(title_lines) + legend_in)
    return drawn


def _legends(drawn: Any, figure: Figure, width_in: float) -> float:
    """Legends inside the panels where there is room, else below all panels; returns the height below."""
    below: dict[str, Any] = {}
    legends = [axes.get_legend_handles_labels() for axes in drawn.axes]
    same = len(legends) > 1 and all(labels == legends[0][1] for _, labels in legends)
    for axes, panel, (handles, labels) in zip(drawn.axes, figure.panels, legends, strict=True):
        crowded = len(labels) > _FEW_NAMES or any(len(label) > _SHORT_NAME for label in labels)
        if panel.kind in ("stacked", "timeline", "forest") or same or crowded:
            below |= dict(zip(labels, handles, strict=True))
        elif len(labels) > 1:
            axes.legend(handles, labels)
    if not below or len(below) > _MOST_LEGEND:
        return 0.0
    columns = max(1, int(width_in / (0.6 + 0.062 * max(map(len, below)))))
    drawn.legend(below.values(), below.keys(), loc="outside lower center", ncols=columns)
    return 0.17 * -(-len(below) // columns)


def check_drawing() -> None:
    """Fail early if matplotlib is missing."""
    _matplotlib()


def _matplotlib() -> tuple[Any, Any]:
    """Its figure and its context of styles, loaded when something is drawn; pyplot would keep figures."""
    try:
        import matplotlib as library
        from matplotlib.figure import Figure as Drawn
    except ImportError:
        raise CannotRun(
            "figures require matplotlib: pip install 'scalescope[report]', or use --format csv,tex,txt"
        ) from None
    return Drawn, library.rc_context


def _style() -> dict[str, Any]:
    return {
        "font.size": 8,
        "font.family": "sans-serif",
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.titlesize": 8,
        "axes.titlecolor": INK,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.5,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "legend.frameon": False,
        "legend.fontsize": 7,
        "svg.fonttype": "none",
        "svg.hashsalt": "scalescope",
        "pdf.fonttype": 42,
        "hatch.linewidth": 0.4,
        "axes.axisbelow": True,
        "text.parse_math": False,  # names may hold a dollar sign
    }


def _wrapped(lines: Sequence[str], most: int) -> list[str]:
    wrapped: list[str] = []
    for line in lines:
        words, row = line.split(), ""
        for word in words:
            if row and len(row) + len(word) + 1 > most:
                wrapped.append(row)
                row = word
            else:
                row = f"{row} {word}".strip()
        wrapped += [row] if row else []
    return wrapped
