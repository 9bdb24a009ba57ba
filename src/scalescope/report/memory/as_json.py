"""The `memory` of results.json: plain bytes, ready for calculations."""

import dataclasses
from typing import Any

from scalescope.analysis.memory.capacity import FittedLine
from scalescope.analysis.memory.forecast import MemoryGroup, MemoryRow, memory_groups, memory_rows
from scalescope.experiment.trial import Trial
from scalescope.report.memory.sections import CATEGORIES
from scalescope.results.run import Run


def memory_json(run: Run) -> list[dict[str, Any]]:
    """Every trial as bytes, those that failed with their reason, then one entry for each kind of job.

    Their `kind` is `measure` for a full measurement, `search` for a batch that was only tried, and `job`.
    """
    entries = [_row_json(row) for row in memory_rows(run.results)]
    return entries + [_group_json(group) for group in memory_groups(run)]


def _row_json(row: MemoryRow) -> dict[str, Any]:
    parts = ("activations", "gradients", "temporary", "growth", "given_back", "held_after_forward")
    return {
        "kind": "search" if row.is_search else "measure",
        "trial_id": row.trial.trial_id,
        **_description(row.trial),
        "batch_size": row.batch,
        "all_samples": row.all_samples,
        "status": row.status,
        "reason": row.reason,
        "measured_bytes": {
            name: row.measured(name)
            for name in (
                *CATEGORIES,
                "inputs",
                "library",
                "peak",
                "peak_requested",
                "peak_of_first_steps",
                "reserved",
            )
        },
        "at_peak_bytes": {name: row.at_peak(name) for name in parts},
        "forecast_bytes": None
        if row.forecast is None
        else {**dataclasses.asdict(row.forecast), "peak": row.forecast.peak},
        "no_forecast": row.no_forecast,
        "no_trace": row.counters.get("trace/problem"),
        "difference": row.difference,
        "device_bytes": {name: row.counters.get(f"device/{name}") for name in ("total", "free")},
        "settings": dict(row.trial.settings),
    }


def _description(trial: Trial) -> dict[str, Any]:
    return {
        "workload": trial.workload,
        "strategy": trial.strategy,
        "world_size": trial.world_size,
        "device": trial.device,
        "optimizer": trial.optimizer,
        "precision": trial.precision,
    }


def _group_json(group: MemoryGroup) -> dict[str, Any]:
    batch, source = _largest(group)
    return {
        "kind": "job",
        **_description(group.trial),
        "capacity_bytes": group.capacity,
        "bytes_per_sample": _slope(group.line),
        "base_bytes": None if group.line is None else group.line.base,
        "line_from": None if group.line is None else "forecast" if group.line_is_forecast else "measured",
        "forecast_bytes_per_sample": _slope(group.forecast_line),
        "activation_bytes_per_sample": _slope(group.activations),
        "largest_batch": batch,
        "largest_batch_is": source,
        "smallest_batch_that_fails": group.bracket.fails,
        "search_finished": group.bracket.is_closed if group.is_tried else None,
        "tries": group.tries,
        "savings_at_batch": None if group.savings is None else group.savings.batch,
        "savings": []
        if group.savings is None
        else [dataclasses.asdict(change) for change in group.savings.changes],
    }


def _largest(group: MemoryGroup) -> tuple[int | None, str]:
    """The largest batch that is known to fit, and how that is known."""
    if not group.is_tried:
        batch = group.calculated_batch
        return batch, "unknown" if batch is None else "calculated"
    if group.bracket.fits:
        return group.bracket.fits, "all_samples" if group.bracket.is_all else "tried"
    return None, "none_fits" if group.bracket.fails == 1 else "unknown"


def _slope(line: FittedLine | None) -> float | None:
    return None if line is None else line.slope
