"""How far off predictions are, and how often their 90 % intervals hold, on machines and for families of
models whose errors are left out.

    python benchmarks/prediction_left_out.py [--reference ../shared/reference] [--cases] [--ledger FILE]

Cases are the shipped ledger (measured by benchmarks/prediction.py) and published step times
(predicting/published.csv, and the tables in `--reference` where that folder exists). Published tables have
neither profiles nor spreads: forward is taken as a third of a step, and gradients become ready evenly. Each
row is predicted from one GPU over the nominal network, and once more fitted to fewer GPUs where the table has
them: what those took beyond the simulation is taken for contention.

Every case gets the interval that the package would give it had it never seen its machine (or its family). The
simple rule beside it: the efficiency stays as on the largest smaller number of ranks that was measured.
`--ledger` writes the cases of published.csv as entries of the shipped ledger.
"""

import argparse
import csv
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.prediction.collective_times import network_named
from scalescope.analysis.prediction.intervals import (
    LedgerResidual,
    Origin,
    Uncertainty,
    binomial_interval,
    doublings,
    half_widths,
    residuals_of,
)
from scalescope.analysis.prediction.profiles import Gradient, RankProfile
from scalescope.analysis.prediction.setup import Fitted, RankLayout, Setup, StepTimeline
from scalescope.analysis.prediction.simulation import simulate
from scalescope.results.ledger import LedgerEntry, PredictionKind, ledger_line, read_ledger

PUBLISHED = Path(__file__).resolve().parent / "predicting" / "published.csv"
DEFAULT_REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"
PUBLISHED_RUN = "benchmarks/prediction_left_out.py"
PARTS_OF_A_MODEL = 32  # gradients of equal size
MLP_PARAMETERS = 3 * 4096 * 4096 + 4096 * 2048
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """A prediction that met a measurement, what its network may be off by, and what the simple rule says."""

    entry: LedgerEntry
    same_efficiency_s: float
    network_error: float = 0.0

    @property
    def residual(self) -> LedgerResidual:
        """Its error, less what an uncertain network explains: that is added to every interval anew."""
        (whole,) = residuals_of([self.entry])
        rest = math.sqrt(max(0.0, whole.step**2 - self.network_error**2))
        return dataclasses.replace(whole, step=math.copysign(rest, whole.step))

    @property
    def evidence(self) -> str:
        backend, curve, is_fitted = self.entry.kind.evidence
        return f"{backend}, {curve}, {'fitted' if is_fitted else 'one rank'}"

    def half_width(self, residuals: Sequence[LedgerResidual]) -> float:
        """Of ln(step), as the package would make it from these errors."""
        distance = doublings(self.entry.world_size, self.entry.curve_ranks)
        uncertainty = Uncertainty(network=self.network_error, distance=distance)
        origin = Origin(machine=self.entry.environment_id, family=self.entry.family)
        return half_widths(self.entry.kind, residuals, uncertainty, origin).step


@dataclass(frozen=True, slots=True)
class Model:
    """Published steps of one model on one machine, by number of GPUs."""

    first: Row
    steps_s: Mapping[int, float]

    def simulated(self, gpus: int, fitted: Fitted | None = None) -> StepTimeline:
        layout = RankLayout(
            ranks_per_node=int(self.first["gpus_per_node"]), cards_per_node=int(self.first["cards_per_node"])
        )
        profile = even_profile(self.steps_s[1], int(self.first["parameters"]))
        setup = Setup(world_size=gpus, layout=layout)
        return simulate(profile, network_named(self.first["network"]), setup, fitted)

    def cases(self) -> Iterator[Case]:
        for gpus in sorted(set(self.steps_s) - {1}):
            yield self._case(gpus, self.simulated(gpus), self.steps_s[1], is_fitted=False)
            fewer = sorted(count for count in self.steps_s if 1 < count < gpus)
            if fewer:
                line = self.simulated(gpus, Fitted(contention={gpus: self._contention(fewer)}))
                yield self._case(gpus, line, self.steps_s[fewer[-1]], is_fitted=True)

    def _contention(self, counts: Sequence[int]) -> float:
        """What compute takes longer on so many GPUs, in the mean."""
        beyond_s = [self.steps_s[count] - self.simulated(count).step_s for count in counts]
        return 1.0 + statistics.fmean(beyond_s) / self.steps_s[1]

    def _case(self, gpus: int, line: StepTimeline, same_s: float, *, is_fitted: bool) -> Case:
        kind = PredictionKind(
            strategy="ddp", backend="nccl", curve="assumed", is_extrapolated=True, is_fitted=is_fitted
        )
        setup = {"workload": self.first["family"], "model": self.first["model"], "world_size": gpus}
        entry = LedgerEntry(
            kind=kind,
            world_size=gpus,
            curve_ranks=None,
            predicted_s=line.step_s,
            low_s=line.step_s,
            high_s=line.step_s,
            measured_s=self.steps_s[gpus],
            setup={**setup, "source": self.first["source"]},
            run=PUBLISHED_RUN,
            trial_id=f"{self.first['machine']}, {self.first['model']}, {gpus} GPUs",
            environment_id=self.first["machine"],
        )
        return Case(entry, same_s, line.network_error)


def even_profile(step_s: float, parameters: int) -> RankProfile:
    """A step of which a third is forward, with gradients that become ready evenly."""
    backward_s = step_s * 2 / 3
    size = 4 * parameters // PARTS_OF_A_MODEL
    ready = [backward_s * part / PARTS_OF_A_MODEL for part in range(1, PARTS_OF_A_MODEL + 1)]
    return RankProfile(
        samples=1,
        input_s=0.0,
        forward_s=step_s / 3,
        backward_s=backward_s,
        optimizer_s=0.0,
        gradients=tuple(Gradient(size_bytes=size, ready_s=ready_s) for ready_s in ready),
    )


def published_models(rows: Sequence[Row]) -> list[Model]:
    """One for each machine and model."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["machine"], row["model"]), []).append(row)
    return [
        Model(members[0], {int(row["gpus"]): float(row["step_time_ms"]) * 1e-3 for row in members})
        for members in grouped.values()
    ]


def reference_rows(folder: Path) -> Iterator[Row]:
    """The shared tables in the form of published.csv; nothing where they are not there."""
    if not folder.is_dir():
        return
    for row in rows_of(folder / "ddp_v100_published.csv"):
        if row["ddp"] == "1":
            node = {
                "machine": "DGX V100",
                "network": "nvlink2+edr",
                "gpus_per_node": "8",
                "cards_per_node": "4",
            }
            yield {**row, **node, "family": "resnet", "step_time_ms": row["step_time_p50_ms"]}
    for row in rows_of(folder / "ddp_v100_pcie_mlp.csv"):
        node = {"machine": "2 V100 PCIe", "network": "pcie3", "gpus_per_node": "2", "cards_per_node": "1"}
        model = {"family": "mlp", "model": f"mlp, batch {row['batch_per_gpu']}", "source": "shared"}
        yield {**row, **node, **model, "parameters": str(MLP_PARAMETERS)}


def rows_of(path: Path) -> list[Row]:
    """A CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ledger_cases(entries: Sequence[LedgerEntry]) -> list[Case]:
    """What benchmarks/prediction.py measured; without fewer ranks, one rank is the last measured."""
    measured = {(entry.environment_id, _same_job(entry), entry.world_size): entry for entry in entries}

    def last_s(entry: LedgerEntry) -> float:
        ranks = entry.world_size // 2
        fewer = measured.get((entry.environment_id, _same_job(entry), ranks)) if ranks > 1 else None
        alone_s = entry.measured_s - (entry.measured_exposed_s or 0.0)
        return alone_s if fewer is None else fewer.measured_s

    return [Case(entry, last_s(entry)) for entry in entries]


def _same_job(entry: LedgerEntry) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in entry.setup.items() if name != "world_size"))


LEFT_OUT: Mapping[str, Callable[[Case], str]] = {
    "machine": lambda case: case.entry.environment_id,
    "family": lambda case: case.entry.family,
}


def left_out_widths(cases: Sequence[Case], key: Callable[[Case], str]) -> list[float]:
    """The half width of each case from the errors of all cases with another key."""
    others = {name: [case.residual for case in cases if key(case) != name] for name in set(map(key, cases))}
    return [case.half_width(others[key(case)]) for case in cases]


def table(title: str, cases: Sequence[Case], widths: Sequence[float]) -> Iterator[str]:
    """Coverage, errors and widths by kind of evidence, and of all."""
    yield f"| left out: {title} | cases | inside | 95 % interval | half width | error | same efficiency |"
    yield "|---|---|---|---|---|---|---|"
    kinds = sorted({case.evidence for case in cases})
    for name in (*kinds, "all"):
        chosen = [
            (case, width) for case, width in zip(cases, widths, strict=True) if name in ("all", case.evidence)
        ]
        yield f"| {name} | {' | '.join(_cells(chosen))} |"


def _cells(chosen: Sequence[tuple[Case, float]]) -> list[str]:
    inside = sum(abs(case.entry.error) <= width for case, width in chosen)
    share = binomial_interval(inside, len(chosen))
    errors = [abs(case.entry.predicted_s / case.entry.measured_s - 1.0) for case, _ in chosen]
    simple = [abs(case.same_efficiency_s / case.entry.measured_s - 1.0) for case, _ in chosen]
    return [
        str(len(chosen)),
        f"{share.value:.0%}",
        f"{share.low:.0%} to {share.high:.0%}",
        f"{statistics.fmean(width for _, width in chosen):.1%}",
        f"{statistics.fmean(errors):.1%}",
        f"{statistics.fmean(simple):.1%}",
    ]


def case_line(case: Case, width: float) -> str:
    """One case with its interval."""
    entry = case.entry
    low, high = entry.predicted_s * math.exp(-width), entry.predicted_s * math.exp(width)
    inside = "yes" if low <= entry.measured_s <= high else "no"
    return (
        f"{entry.trial_id:45} {case.evidence:24} measured {1e3 * entry.measured_s:7.1f} ms, predicted "
        f"{1e3 * entry.predicted_s:7.1f} [{1e3 * low:.1f} to {1e3 * high:.1f}]  {inside}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path, default=DEFAULT_REFERENCE)
    parser.add_argument("--cases", action="store_true", help="print every published case")
    parser.add_argument("--ledger", type=Path, help="write the cases of published.csv as a ledger")
    options = parser.parse_args()
    public = [case for model in published_models(rows_of(PUBLISHED)) for case in model.cases()]
    shared_rows = list(reference_rows(options.reference))
    shared = [case for model in published_models(shared_rows) for case in model.cases()]
    measured = [entry for entry in read_ledger().entries if entry.run != PUBLISHED_RUN]
    cases = [*public, *shared, *ledger_cases(measured)]
    for name, key in LEFT_OUT.items():
        widths = left_out_widths(cases, key)
        print("\n".join(table(name, cases, widths)), end="\n\n")
        if options.cases:
            pairs = list(zip(cases, widths, strict=True))[: len(public) + len(shared)]
            print("\n".join(case_line(case, width) for case, width in pairs), end="\n\n")
    if options.ledger:
        widths = left_out_widths(cases, LEFT_OUT["machine"])[: len(public)]
        options.ledger.write_text(
            "".join(
                ledger_line(_with_interval(case.entry, width))
                for case, width in zip(public, widths, strict=True)
            )
        )


def _with_interval(entry: LedgerEntry, width: float) -> LedgerEntry:
    return dataclasses.replace(
        entry,
        low_s=entry.predicted_s * math.exp(-width),
        high_s=entry.predicted_s * math.exp(width),
    )


if __name__ == "__main__":
    main()
