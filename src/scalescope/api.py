"""Runs from Python: plain rows that a data frame takes as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import configurations
from scalescope.analysis.launches import summarise
from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.step_facts import step_facts_of
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run

Row = dict[str, Any]


def load(path: str | Path) -> "StoredRun":
    """A run folder, read once."""
    return StoredRun(run=load_run(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as rows; `run` has everything, down to the samples of every rank."""

    run: Run

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, versions, variables and code, as environment.json has them."""
        return self.run.environment

    def trials(self) -> list[Row]:
        """One row for each launch: every setting, how it ended, and what it delivered."""
        return [_launch(result) for result in self.run.results]

    def scaling(self) -> list[Row]:
        """One row for each configuration against the smallest world size of its kind."""
        return [_scaling(row) for row in scaling_rows(configurations(self.run.results))]

    def steps(self) -> list[Row]:
        """One row for each part of one rank's step, of every configuration whose parts are known."""
        return [
            row
            for facts in step_facts_of(self.run)
            if facts.waterfall is not None
            for row in _parts(facts.waterfall)
        ]

    def findings(self) -> list[Row]:
        """What costs speed and what to do first, the most expensive first."""
        return [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "claim": finding.claim,
                "about": finding.about,
                "lost_ranks": finding.lost,
                "share": finding.share,
                "cost_s": finding.cost_s,
                "estimated": finding.estimated,
                "certain": finding.certain,
                "advice": finding.advice[0].label if finding.advice else None,
                "command": (finding.advice[0].command or None) if finding.advice else None,
            }
            for finding in diagnose(self.run).findings
        ]


def _launch(result: Result) -> Row:
    return {
        "trial_id": result.trial_id,
        "launch": result.launch,
        "status": result.status,
        "reason": result.reason,
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        **_delivered(result),
        **_flat(result.settings),
    }


def _delivered(result: Result) -> Row:
    """What a launch of training gave; None where it failed or measured something else."""
    if result.status != "ok" or not result.trial.is_training:
        names = ("samples_per_s", "mean_step_time_s", "samples", "measured_steps", "peak_memory_bytes")
        return dict.fromkeys((*names, "last_loss"))
    launch = summarise(result)
    return {
        "samples_per_s": launch.samples_per_s,
        "mean_step_time_s": launch.mean_step_s,
        "samples": launch.samples,
        "measured_steps": len(launch.step_times_s),
        "peak_memory_bytes": launch.peak_memory_bytes,
        "last_loss": launch.losses[-1] if launch.losses else None,
    }


def _scaling(row: ScalingRow) -> Row:
    waterfall = row.waterfall
    terms = () if waterfall is None else waterfall.terms
    return {
        "trial_id": row.trial.trial_id,
        "ranks": row.ranks,
        "batch": row.batch,
        "mode": row.trial.mode,
        "launches": len(row.configuration.launches),
        "baseline_ranks": row.baseline_ranks,
        **_estimate("samples_per_s", row.configuration.speed),
        **_estimate("mean_step_time_s", row.configuration.step_time_s),
        **_estimate("speedup", row.speedup),
        **_estimate("efficiency", row.efficiency),
        **_estimate("exposed_comm_s", row.communication_s),
        "serial_fraction": row.serial_fraction,
        "delivered_ranks": None if waterfall is None else waterfall.delivered,
        **{
            f"lost_ranks_{term.name.replace(' ', '_')}": None if term.lost is None else term.lost.value
            for term in terms
        },
        "reading": row.reading,
        **_flat(row.trial.settings),
    }


def _parts(waterfall: StepWaterfall) -> list[Row]:
    return [
        {
            "trial_id": waterfall.trial.trial_id,
            "ranks": waterfall.trial.world_size,
            "batch": waterfall.trial.rank_batch_size,
            "part": term.name,
            **_estimate("time_s", term.time_s),
            "share": term.time_s.value / waterfall.step_s,
            "measured_by": term.source,
            "step_time_s": waterfall.step_s,
            "ideal_step_time_s": waterfall.ideal_s,
            **_flat(waterfall.trial.settings),
        }
        for term in waterfall.terms
    ]


def _estimate(name: str, estimate: Estimate | None) -> Row:
    if estimate is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _flat(settings: Mapping[str, Any]) -> Row:
    """Settings as columns; variables of the ranks become one each."""
    flat: Row = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": text for key, text in value.items()}
        else:
            flat[name] = value
    return flat
