"""What benchmarks/prediction.py prints: errors by job and model, coverage of intervals, single points."""

import statistics
from collections.abc import Callable, Sequence

from predicting.scoring import Scored
from scalescope.analysis.prediction.intervals import binomial_interval, conformal_half_width
from scalescope.results.ledger import CurveOrigin, LedgerEntry, PredictionKind

MODELS = ("same N", "N = 2", "perfect overlap", "no overlap", "nominal rate")
CURVES: dict[str, CurveOrigin] = {"same N": "same ranks", "N = 2": "other ranks"}
_SHOWN = (
    "world_size",
    "batch_size",
    "link",
    "bucket_cap_mb",
    "comm_hook",
    "accumulation_steps",
    "reshard_after_forward",
    "schedule",
    "microbatches",
)


def is_data_parallel(row: Scored) -> bool:
    return row.strategy == "ddp"


def errors_table(scored: Sequence[Scored]) -> list[str]:
    """Mean absolute error of the half that nothing was fitted on, by job and model."""
    held_out = [row for row in scored if row.half == "score"]
    lines = [
        f"| job | points | {' | '.join(MODELS)} | exposed, of the step |",
        "|---|" + "---|" * (len(MODELS) + 2),
    ]
    groups = {
        job: [row for row in held_out if row.job == job] for job in dict.fromkeys(r.job for r in held_out)
    }
    groups["all data-parallel"] = [row for row in held_out if is_data_parallel(row)]
    groups["… on more than 2 ranks"] = [row for row in groups["all data-parallel"] if row.ranks > 2]
    for hook in ("none", "bf16", "fp16"):
        rows = [row for row in groups["all data-parallel"] if row.settings.get("comm_hook") == hook]
        groups[f"… with comm_hook {hook}"] = rows
    for name, rows in groups.items():
        if rows:
            cells = [_mean_error(rows, model) for model in MODELS]
            lines.append(f"| {name} | {len(rows)} | {' | '.join(cells)} | {_exposed_error(rows)} |")
    return lines


def coverage_table(scored: Sequence[Scored]) -> list[str]:
    """How many steps of the score half lie in intervals that the errors of the calibration half gave."""
    lines = [
        "| prediction | points | half width | inside | 95 % interval of that share |",
        "|---|---|---|---|---|",
    ]
    for name, belongs in _GROUPS.items():
        for model in CURVES:
            rows = _applicable(scored, belongs, model)
            width = half_width(rows, model)
            held_out = [row for row in rows if row.half == "score"]
            if width is not None and held_out:
                share = binomial_interval(
                    sum(_is_inside(row, model, width) for row in held_out), len(held_out)
                )
                lines.append(
                    f"| {name}, curve at {model} | {len(held_out)} | {width:.1%} | {share.value:.0%} "
                    f"| {share.low:.0%} to {share.high:.0%} |"
                )
    return lines


_GROUPS: dict[str, Callable[[Scored], bool]] = {
    "data-parallel": is_data_parallel,
    "FSDP and pipeline": lambda row: not is_data_parallel(row),
}


def _applicable(scored: Sequence[Scored], belongs: Callable[[Scored], bool], model: str) -> list[Scored]:
    """A curve at N = 2 is another one only for more ranks."""
    return [row for row in scored if belongs(row) and (model != "N = 2" or row.ranks > 2)]


def half_width(rows: Sequence[Scored], model: str) -> float | None:
    """That covers 90 %, by the errors of the calibration half."""
    errors = [error for row in rows if row.half == "calibration" and (error := row.error(model)) is not None]
    return conformal_half_width(errors)


def _is_inside(row: Scored, model: str, width: float) -> bool:
    error = row.error(model)
    return error is not None and abs(error) <= width


def ledger_of(scored: Sequence[Scored]) -> list[LedgerEntry]:
    """Every prediction from a measured curve beside its measurement, as `predict --ledger` reads them."""
    entries = []
    for belongs in _GROUPS.values():
        for model, curve in CURVES.items():
            rows = _applicable(scored, belongs, model)
            width = half_width(rows, model) or 0.1
            entries += [_entry(row, model, curve, width) for row in rows]
    return entries


def _entry(row: Scored, model: str, curve: CurveOrigin, width: float) -> LedgerEntry:
    predicted_s = row.predicted_s[model]
    assert predicted_s is not None
    return LedgerEntry(
        kind=PredictionKind(
            strategy=row.strategy,
            backend="nccl" if row.settings.get("device") == "cuda" else "gloo",
            curve=curve,
            is_extrapolated=curve == "other ranks",
            is_fitted=True,
        ),
        world_size=row.ranks,
        curve_ranks=2 if curve == "other ranks" else row.ranks,
        predicted_s=predicted_s,
        low_s=predicted_s * (1.0 - width),
        high_s=predicted_s * (1.0 + width),
        measured_s=row.step_s,
        predicted_exposed_s=max(0.0, row.predicted_exposed_s),
        measured_exposed_s=row.exposed_s,
        setup=dict(row.settings),
        run=f"benchmarks/prediction.py on {row.environment_id}",
        trial_id=row.trial_id,
        environment_id=row.environment_id,
        date=row.started_at,
    )


def point_line(row: Scored) -> str:
    """One point with its errors by model."""
    settings = " ".join(f"{name}={row.settings[name]}" for name in _SHOWN if name in row.settings)
    errors = [row.error(model) for model in MODELS]
    shown = " ".join("—" if error is None else f"{error:+.3f}" for error in errors)
    exposed = "—" if row.exposed_s is None else f"{1e3 * row.exposed_s:.1f}"
    return (
        f"{row.job:12s} {row.half:11s} {1e3 * row.step_s:8.1f} ms, exposed {exposed} predicted "
        f"{1e3 * row.predicted_exposed_s:.1f}  {shown}  {settings}"
    )


def _mean_error(rows: Sequence[Scored], model: str) -> str:
    ratios = [value / row.step_s for row in rows if (value := row.predicted_s[model]) is not None]
    if not ratios:
        return "—"
    count = "" if len(ratios) == len(rows) else f" ({len(ratios)})"
    return f"{statistics.fmean(abs(ratio - 1.0) for ratio in ratios):.1%}{count}"


def _exposed_error(rows: Sequence[Scored]) -> str:
    errors = [
        abs(row.predicted_exposed_s - row.exposed_s) / row.step_s for row in rows if row.exposed_s is not None
    ]
    return f"{statistics.fmean(errors):.1%}" if errors else "—"
