"""Plain rows of a run, which a data frame takes as they are: text, numbers and None."""

from collections.abc import Mapping
from typing import Any

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.launches import summarise
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.diagnose.diagnosis import diagnose
from scalescope.results.result import Result
from scalescope.results.run import Run

Row = dict[str, Any]


def finding_rows(run: Run) -> list[Row]:
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
        for finding in diagnose(run).findings
    ]


def launch_row(result: Result) -> Row:
    """One launch: every setting, how it ended, and what it delivered."""
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


def scaling_row(row: ScalingRow) -> Row:
    """One configuration against the smallest world size of its kind."""
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


def part_rows(waterfall: StepWaterfall) -> list[Row]:
    """One row for each part of one rank's step."""
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


def configuration_row(configuration: Configuration) -> Row:
    """One configuration over all its launches."""
    trial = configuration.trial
    return {
        "trial_id": trial.trial_id,
        "ranks": trial.world_size,
        "batch": trial.rank_batch_size,
        "launches": len(configuration.launches),
        **_estimate("samples_per_s", configuration.samples_per_s),
        **_estimate("mean_step_time_s", configuration.step_time_s),
        "peak_memory_bytes": configuration.peak_memory_bytes,
        "unstable_because": "; ".join(configuration.instabilities()) or None,
        **_flat(trial.settings),
    }


def collective_row(row: CollectiveRow) -> Row:
    """One collective at one size."""
    return {
        "trial_id": row.trial_id,
        "collective": row.collective,
        "dtype": row.dtype,
        "ranks": row.ranks,
        "among": row.among,
        "in_place": row.in_place,
        "size_bytes": row.size_bytes,
        "time_s": row.time_s,
        "transfer_s": row.transfer_s,
        "wait_s": row.wait_s,
        "algbw_bytes_per_s": row.algbw_bytes_per_s,
        "busbw_bytes_per_s": row.busbw_bytes_per_s,
        "wrong": row.wrong,
    }


def combination_row(combination: Mapping[str, Any]) -> Row:
    """One combination of levers as tuning.json has it; no lever is the current settings."""
    low, high = combination["ci95_speedup"] or (None, None)
    plain = {name: value for name, value in combination.items() if name not in ("levers", "ci95_speedup")}
    return {
        "levers": ", ".join(combination["levers"]),
        **plain,
        "speedup_low": low,
        "speedup_high": high,
    }


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
