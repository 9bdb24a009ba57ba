"""The step of N ranks as a picture: one rank's step, then the same step on more ranks and what they add."""

from collections.abc import Sequence

from scalescope.analysis.scaling.waterfall import DELIVERED, NOT_SEPARATED, NOT_SIGNIFICANT, TERMS
from scalescope.analysis.scaling.whole_step import WholeStep
from scalescope.report.numbers import counted
from scalescope.report.render.figure import Panel
from scalescope.report.training.step_figure import STEP_COLOURS, Bar, bar_of, bars_panel

# Numbers of colour and hatch of the segments of a scaling waterfall, the same in every figure.
SEGMENT_COLOURS = {
    part: number for number, part in enumerate((DELIVERED, *TERMS, NOT_SEPARATED, NOT_SIGNIFICANT))
}
_MORE = "more ranks: "
_COLOURS = STEP_COLOURS | {
    f"{_MORE}{part}": number for part, number in SEGMENT_COLOURS.items() if part != DELIVERED
}
_MOST_PANELS = 2  # side by side


def whole_panels(steps: Sequence[WholeStep]) -> tuple[tuple[Panel, ...], int]:
    """A panel for each batch, of those that lose most, and how many batches are left out."""
    batches: dict[int, list[WholeStep]] = {}
    for step in steps:
        batches.setdefault(_batch(step), []).append(step)
    worst = sorted(batches, key=lambda batch: -max(step.waterfall.lost for step in batches[batch]))
    shown = sorted(worst[:_MOST_PANELS])
    panels = tuple(_panel(batch, batches[batch], several=len(shown) > 1) for batch in shown)
    return panels, len(batches) - len(shown)


def _batch(step: WholeStep) -> int:
    trial = step.waterfall.trial
    return trial.rank_batch_size if trial.mode == "weak" else trial.samples_per_step


def _panel(batch: int, steps: Sequence[WholeStep], *, several: bool) -> Panel:
    ordered = sorted(steps, key=lambda step: step.waterfall.ranks)
    one_rank = ordered[0].one_rank
    bars: list[Bar] = [
        bar_of(one_rank),
        *({part.label: part.time_s for part in step.parts} for step in ordered),
    ]
    names = ["1 rank", *(counted(step.waterfall.ranks, "rank") for step in ordered)]
    ideals_s = [one_rank.ideal_s, *(step.ideal_s for step in ordered)]
    title = f"batch {batch:,}" if several else ""
    return bars_panel(bars, names, ideals_s, _COLOURS, faint=f"{_MORE}{NOT_SIGNIFICANT}", title=title)
