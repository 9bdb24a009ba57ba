"""results.json: the summary of a run in the shape users of such suites know, rebuilt from its trials."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.epochs import Epoch, has_epochs
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.whole_step import whole_step
from scalescope.analysis.training.step_waterfall import StepWaterfall
from scalescope.experiment.trial import Trial
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.caveats import warnings_of
from scalescope.report.comm.sections import communication_json, pairs_json
from scalescope.report.commands import job_name
from scalescope.report.findings import findings_json
from scalescope.report.memory.as_json import memory_json
from scalescope.report.prediction.as_json import answer_json
from scalescope.report.runs import headline_json
from scalescope.report.scaling.waterfall import waterfall_json, whole_step_json
from scalescope.report.trace.sections import profile_json
from scalescope.report.training.step_waterfall import step_waterfall_json
from scalescope.results.result import SCHEMA_VERSION, Result
from scalescope.results.run import Run


def results_json(of: Run | AnalyzedRun) -> dict[str, Any]:
    """Everything results.json holds; parts that were not measured are empty."""
    analyzed = analyzed_run(of)
    run = analyzed.run
    rows = analyzed.rows if run.record.verb != "train" else ()
    steps = {facts.trial.trial_id: facts.waterfall for facts in analyzed.steps if facts.waterfall is not None}
    summary = measured_json(analyzed, steps)
    measured = summary["results"]
    results = {
        "communication": measured["communication"],
        "pairs": pairs_json(run),
        "training": measured["training"],
        "memory": memory_json(run),
        "profile": profile_json(run),
        "scaling": [_scaling(row, tuple(steps.values())) for row in rows],
        "findings": findings_json(analyzed.diagnosis),
        **_predictions(analyzed),
    }
    # The results stay last: `list` reads only what stands above them.
    return summary | {
        "headline": headline_json(results, run.record.verb, len(run.results)),
        "results": results,
    }


def measured_json(of: Run | AnalyzedRun, steps: Mapping[str, StepWaterfall] | None = None) -> dict[str, Any]:
    """What was measured alone: no estimate, finding or prediction can cost it."""
    analyzed = analyzed_run(of)
    run = analyzed.run
    full = [configuration for configuration in analyzed.measured if not configuration.trial.is_ablation]
    main = _main_trial(run)
    results = {
        "communication": communication_json(analyzed.collectives),
        "training": [*(_training(member, steps or {}) for member in full), *_failures(run)],
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "name": run.record.name or run.path.name,
        "verb": run.record.verb,
        "world_size": max((result.trial.world_size for result in run.results), default=None),
        "timestamp": min((result.started_at for result in run.results), default=None),
        "config": {
            "warmup_iters": None if main is None else main.benchmark_card.warmup_iterations(main.settings),
            "benchmark_iters": None
            if main is None
            else main.benchmark_card.measured_iterations(main.settings),
            "window_s": None if main is None else main.window_s,
            "device": _device_name(run),
        },
        "headline": headline_json(results, run.record.verb, len(run.results)),
        "results": results,
    }


def _predictions(analyzed: AnalyzedRun) -> dict[str, Any]:
    """What only runs with a profile of one rank and times of collectives have."""
    answers = [answer_json(answer) for answer in analyzed.predicted.answers]
    return {"predictions": answers} if answers else {}


def _main_trial(run: Run) -> Trial | None:
    """The first timed training, or else the first trial of any benchmark."""
    trials = [result.trial for result in run.results]
    return next((trial for trial in trials if trial.is_training), trials[0] if trials else None)


def _device_name(run: Run) -> str | None:
    machine = run.environment.get("machine", {})
    gpus = machine.get("gpus") or []
    used = {result.trial.device for result in run.results}
    if "cuda" in used and gpus:
        return str(gpus[0]["name"])
    model = machine.get("cpu_model")
    return None if model is None else str(model)


def _training(configuration: Configuration, steps: Mapping[str, StepWaterfall]) -> dict[str, Any]:
    trial = configuration.trial
    step_terms = steps.get(trial.trial_id)
    step, rate = configuration.step_time_s, configuration.samples_per_s
    return {
        "trial_id": trial.trial_id,
        **_description(trial),
        "launches": len(configuration.launches),
        "step_time_s": {"median": configuration.median_step_s, "mean": step.value, "ci95": step.bounds},
        "samples_per_s": None if rate is None else rate.value,
        "ci95_samples_per_s": None if rate is None else rate.bounds,
        **_script_fields(configuration),
        **_text_and_epochs(configuration),
        "model_flops_per_s": configuration.model_flops_per_s,
        "number_format": configuration.number_format,
        "peak_flops_per_s": configuration.peak_flops_per_s,
        "mfu": configuration.mfu,
        "hfu": configuration.hfu,
        "bare_product_share": configuration.bare_product_share,
        "step_waterfall": None if step_terms is None else step_waterfall_json(step_terms),
        "telemetry": dataclasses.asdict(configuration.telemetry),
        "scaling_measurement": not trial.oversubscribe,
        "warnings": warnings_of(configuration),
        "settings": dict(trial.settings),
        "status": "ok",
    }


def _script_fields(configuration: Configuration) -> dict[str, Any]:
    """What only commands have: what their samples are, and what wraps their model."""
    if not configuration.trial.is_command:
        return {}
    return {
        "unit": configuration.unit,
        "samples_per_step": configuration.samples_per_step,
        "replicas": configuration.trial.replicas if configuration.knows_samples else None,
        "wrapper": configuration.wrapper,
        "again_ratio": configuration.again,
    }


def _text_and_epochs(configuration: Configuration) -> dict[str, Any]:
    """What only texts, and only runs of several epochs or with an evaluation, have."""
    fields: dict[str, Any] = {}
    if configuration.tokens_per_s is not None:
        fields["tokens_per_s"] = configuration.tokens_per_s
    if has_epochs(configuration.epochs):
        fields["epochs"] = [_epoch(epoch) for epoch in configuration.epochs]
    return fields


def _epoch(epoch: Epoch) -> dict[str, Any]:
    fields = dataclasses.asdict(epoch)
    return {"epoch": fields.pop("number"), **fields}


def _description(trial: Trial) -> dict[str, Any]:
    return {
        "workload": job_name(trial),
        "strategy": trial.strategy,
        "world_size": trial.world_size,
        "batch_size": trial.micro_batch_size or None,
        "accumulation_steps": trial.accumulation_steps,
        "global_batch_size": trial.samples_per_step or None,
        "mode": trial.mode,
        "device": trial.device,
        "precision": trial.settings["precision"],
        **({"command": trial.command} if trial.is_command else {}),
    }


def _failures(run: Run) -> list[dict[str, Any]]:
    return [
        _failure(result)
        for result in run.results
        if result.status != "ok" and result.trial.benchmark_card.lists_failures_as_training
    ]


def _failure(result: Result) -> dict[str, Any]:
    trial = result.trial
    return {
        "trial_id": result.trial_id,
        "launch": result.launch,
        **_description(trial),
        "status": result.status,
        "reason": result.reason,
        "rank": result.rank,
        "step": result.step,
    }


def _scaling(row: ScalingRow, steps: tuple[StepWaterfall, ...]) -> dict[str, Any]:
    exposed = row.communication_s
    wrapped = row.efficiency_of_wrapped
    return {
        "trial_id": row.trial.trial_id,
        "world_size": row.ranks,
        "batch_size": row.batch,
        "mode": row.trial.mode,
        "strategy": row.trial.strategy,
        "baseline_world_size": row.baseline_ranks,
        "speedup": row.speedup.value,
        "ci95_speedup": row.speedup.bounds,
        "efficiency": row.efficiency.value,
        "ci95_efficiency": row.efficiency.bounds,
        "efficiency_of_wrapped_one_rank": None if wrapped is None else wrapped.value,
        "exposed_comm_s": None if exposed is None else exposed.value,
        "ci95_exposed_comm_s": None if exposed is None else exposed.bounds,
        "serial_fraction": row.serial_fraction,
        "serial_fraction_law": "Amdahl" if row.trial.mode == "strong" else "Gustafson",
        "amdahl_serial_fraction": row.amdahl_fraction,
        "waterfall": None if row.waterfall is None else waterfall_json(row.waterfall),
        "whole_step": None if row.waterfall is None else whole_step_json(whole_step(row.waterfall, steps)),
        "reading": row.reading,
        "settings": dict(row.trial.settings),
    }
