"""The ledger in a table: how far predictions were off, and how often their intervals held."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.prediction.intervals import COVERAGE, Proportion, binomial_interval
from scalescope.report.numbers import MISSING, counted, percent, short_percent
from scalescope.report.section import Section, Table
from scalescope.results.ledger import Ledger, LedgerEntry

_ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """The errors of one kind: of step time, relative; of exposed communication, as a share of the step."""

    kind: str
    count: int
    mean_error: float
    median_error: float
    exposed_error: float | None
    coverage: Proportion


def ledger_rows(entries: Sequence[LedgerEntry]) -> tuple[LedgerRow, ...]:
    """One row for each kind, and of several kinds one for all."""
    kinds: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind.name, []).append(entry)
    rows = [_row(name, members) for name, members in sorted(kinds.items())]
    return (*rows, *([_row(_ALL, entries)] if len(rows) > 1 else []))


def _row(kind: str, entries: Sequence[LedgerEntry]) -> LedgerRow:
    errors = [abs(entry.predicted_s / entry.measured_s - 1.0) for entry in entries]
    exposed = [abs(error) for entry in entries if (error := entry.exposed_error) is not None]
    return LedgerRow(
        kind=kind,
        count=len(entries),
        mean_error=statistics.fmean(errors),
        median_error=statistics.median(errors),
        exposed_error=statistics.fmean(exposed) if exposed else None,
        coverage=binomial_interval(sum(entry.is_covered for entry in entries), len(entries)),
    )


def ledger_section(ledger: Ledger, file: str | None) -> Section:
    """Errors and coverage by kind."""
    if not ledger.entries:
        adds = "" if file is None else f"; scalescope scale adds to {file}"
        line = f"No prediction has been checked against a measurement yet{adds}."
        return Section(lines=(line, *ledger.warnings))
    rows = ledger_rows(ledger.entries)
    held = [row.coverage for row in rows][-1]
    inside = held.low <= COVERAGE <= held.high
    return Section(
        title=f"Ledger · {counted(len(ledger.entries), 'prediction')} checked against measurements",
        table=Table(
            columns=(
                "kind",
                "n",
                "mean error",
                "median error",
                "exposed error",
                "in interval",
                "95 % interval",
            ),
            rows=tuple(_cells(row) for row in rows),
            left=frozenset(("kind",)),
            optional=("exposed error", "median error", "95 % interval"),
        ),
        lines=(
            "Errors are absolute, of step time; of exposed communication as a share of the step.",
            f"The nominal 90 % is {'inside' if inside else 'outside'} the interval of the observed coverage.",
            *(() if file is None else (f"The user's ledger: {file}",)),
            *ledger.warnings,
        ),
    )


def ledger_json(ledger: Ledger, file: str | None) -> dict[str, Any]:
    """The same as data."""
    return {
        "file": file,
        "nominal_coverage": COVERAGE,
        "kinds": [
            {
                "kind": row.kind,
                "n": row.count,
                "mean_abs_error": row.mean_error,
                "median_abs_error": row.median_error,
                "mean_abs_exposed_error": row.exposed_error,
                "coverage": row.coverage.value,
                "ci95_coverage": [row.coverage.low, row.coverage.high],
            }
            for row in ledger_rows(ledger.entries)
        ],
        "warnings": list(ledger.warnings),
    }


def _cells(row: LedgerRow) -> tuple[str, ...]:
    coverage = row.coverage
    return (
        row.kind,
        f"{row.count:,}",
        short_percent(row.mean_error),
        short_percent(row.median_error),
        MISSING if row.exposed_error is None else short_percent(row.exposed_error),
        percent(coverage.value),
        f"{100.0 * coverage.low:.0f} to {percent(coverage.high)}",
    )
