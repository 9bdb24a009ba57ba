"""The summary of `train`: a block for each configuration, then the parts of a step and what costs most."""

import json

from scalescope.analysis.configurations import TOKENS, Configuration, configurations
from scalescope.analysis.epochs import Epoch, has_epochs
from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.catalog.benchmarks.train import warmup_of
from scalescope.experiment.trial import Trial
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.caveats import warnings_of
from scalescope.report.commands import job_name, script_sections
from scalescope.report.findings import command_of, continuing, findings_section
from scalescope.report.machine import threads_text
from scalescope.report.more_ranks import on_more_ranks
from scalescope.report.numbers import (
    MISSING,
    counted,
    flop_rate,
    in_ms,
    in_s,
    is_useful,
    percent,
    range_ms,
    significant,
)
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.report.training.step_waterfall import step_sections, why_not_counted
from scalescope.report.trials import side_by_side
from scalescope.report.varied import changed_settings, shown_value
from scalescope.results.run import Run

_LABEL_WIDTH = 17
_MOST_EPOCHS = 20  # shown; results.json has them all


def training_sections(run: Run | AnalyzedRun) -> tuple[Section, ...]:
    """A summary for every configuration that was asked for, the parts of a step, and findings."""
    analyzed = analyzed_run(run)
    measured = tuple(
        configuration for configuration in analyzed.measured if not configuration.trial.is_ablation
    )
    plain_s = {facts.trial.trial_id: facts.events.plain_s for facts in analyzed.steps if facts.events.events}
    shown = [
        (
            summary_section(configuration, plain_s.get(configuration.trial.trial_id)),
            epoch_section(configuration),
        )
        for configuration in measured
    ]
    sections = tuple(section for pair in shown for section in pair if section is not None)
    return (
        *sections,
        *((side_by_side(measured),) if len(measured) > 1 else ()),
        *script_sections(analyzed.run),
        *step_sections(analyzed.steps),
        *findings_section(analyzed.diagnosis),
    )


_LAUNCHES_TO_SCALE = 3
_WINDOW_TO_SCALE_S = 3.0


def next_after_training(analyzed: AnalyzedRun) -> ShownCommand | None:
    """What to do after `train`."""
    run = analyzed.run
    trials = [result.trial for result in run.of_status("ok") if result.trial.is_training]
    trained = [trial for trial in trials if not trial.is_ablation]
    if not trained:
        return continuing(run)
    findings = analyzed.diagnosis.findings
    costly = [finding for finding in findings if finding.severity != "low" and finding.advice]
    if costly:
        return command_of(costly[0].advice[0])
    # One long launch answers how fast it is; how it scales takes several, and they may be short.
    several = {"repeats": _LAUNCHES_TO_SCALE, "window": _WINDOW_TO_SCALE_S}
    return on_more_ranks(run, trained[0], "scale", "how this changes with the number of ranks", several)


def training_so_far(run: Run) -> str | None:
    """The fastest configuration in the middle of a run, with its number of launches; None without one."""
    asked = [member for member in configurations(run.results) if not member.trial.is_ablation]
    if not asked:
        return None
    fastest = max(asked, key=lambda member: member.speed.value)
    return f"{training_sentence(fastest)[:-1]} ({counted(len(fastest.launches), 'launch')})."


def training_sentence(configuration: Configuration) -> str:
    """The fastest configuration in a sentence."""
    trial = configuration.trial
    return (
        f"{job_name(trial)} ({trial.label}) trains {_throughput(configuration)} on {configuration.device}, "
        f"{in_ms(configuration.step_time_s.value)} per step."
    )


def _measured_steps(configuration: Configuration, warmup: int) -> str:
    """`30 / 35` with those of the warm-up; of several launches all that count."""
    counts = [len(launch.step_times_s) for launch in configuration.launches]
    if len(counts) > 1:
        return f"{sum(counts):,} in {len(counts)} launches"
    return f"{counts[0]} / {counts[0] + warmup}"


def summary_section(configuration: Configuration, plain_s: float | None = None) -> Section:
    """The benchmark's summary, in the lines its users know; `plain_s` is the step without events."""
    warmup = warmup_of(configuration.trial.settings)
    facts = [
        *([("Command", configuration.trial.command)] if configuration.trial.is_command else []),
        ("World size", _world_size(configuration.trial)),
        *[("CPU threads", text) for text in (threads_text((configuration,)),) if text],
        ("Device", configuration.device),
        ("Config", _changes(configuration)),
        ("Warmup steps", f"{warmup}"),
        ("Measured steps", _measured_steps(configuration, warmup)),
        ("Avg step time", in_ms(configuration.step_time_s.value, 2)),
        *([] if plain_s is None else [("Plain step time", f"{in_ms(plain_s, 2)} (without events)")]),
        ("Throughput", _throughput(configuration)),
        *_utilization(configuration),
        *_measured_samples(configuration),
        ("95 % interval", _interval(configuration)),
        *(("Warning", doubt) for doubt in warnings_of(configuration)),
    ]
    return Section(
        title=_banner(configuration.trial),
        lines=tuple(_labelled(label, text) for label, text in facts),
        details=tuple(_labelled(label, text) for label, text in _detailed_facts(configuration)),
    )


def _world_size(trial: Trial) -> str:
    """`2`, or where ranks share a batch `2 (1 replica)`."""
    shared = trial.replicas < trial.world_size
    return f"{trial.world_size} ({counted(trial.replicas, 'replica')})" if shared else f"{trial.world_size}"


def _measured_samples(configuration: Configuration) -> list[tuple[str, str]]:
    """In all launches; nothing where they are unknown."""
    if not configuration.knows_samples:
        return []
    counted = sum(launch.samples or 0 for launch in configuration.launches)
    name = "Measured tokens" if configuration.unit == TOKENS else "Measured samples"
    return [(name, f"{counted:,}")]


def _detailed_facts(configuration: Configuration) -> list[tuple[str, str]]:
    """What -v adds."""
    return [
        ("All settings", json.dumps(_all_settings(configuration))),
        ("Measured window", f"{in_s(configuration.window_s)} per launch"),
        ("Median step time", in_ms(configuration.median_step_s, 2)),
        ("Compute rate", compute_reading(configuration)),
        *[("GPU", text) for text in (gpu_reading(configuration.telemetry),) if text],
        *[("CPU", text) for text in (cpu_reading(configuration.telemetry),) if text],
    ]


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}: {text}"


def _all_settings(configuration: Configuration) -> dict[str, object]:
    identity = configuration.trial.identity
    shown = {name: value for name, value in identity.items() if value is not None}
    if configuration.launches[0].own_optimizer is not None:
        shown["optimizer"] = f"{configuration.launches[0].own_optimizer} of the {_owner(configuration.trial)}"
        shown.pop("lr", None)
    return shown


def _changes(configuration: Configuration) -> str:
    """The configuration as what differs from the defaults."""
    trial = configuration.trial
    optimizer = configuration.launches[0].own_optimizer
    unused = () if optimizer is None else ("optimizer", "lr")
    unused = (*unused, "workload") if trial.is_command else unused
    names = [name for name in changed_settings(trial) if name not in unused]
    words = [f"{name} {shown_value(trial, name)}" for name in names]
    words += [] if optimizer is None else [f"optimizer {optimizer} of the {_owner(trial)}"]
    return ", ".join(words) or "all settings at their defaults"


def _owner(trial: Trial) -> str:
    return "script" if trial.is_command else "workload"


def _banner(trial: Trial) -> str:
    if trial.is_command:
        return f"=== Training Benchmark ({job_name(trial)}) ==="
    if trial.strategy == "ddp":
        return "=== DDP Scaling Benchmark ==="
    return f"=== Training Benchmark ({trial.strategy}) ==="


def _throughput(configuration: Configuration) -> str:
    if not configuration.knows_samples:
        return f"{significant(configuration.speed.value)} steps/s (samples per step are not known)"
    speed = f"{configuration.speed.value:,.0f} {configuration.unit}/s"
    tokens, ranks = configuration.tokens_per_s, configuration.trial.world_size
    if tokens is not None and configuration.unit != TOKENS:
        speed = f"{speed}, {tokens:,.0f} tokens/s"
    if tokens is None or ranks == 1:
        return speed
    of_each = "rank" if configuration.trial.split_gpu or not configuration.trial.on_gpu else "GPU"
    return f"{speed} ({tokens / ranks:,.0f} per {of_each})"


def _utilization(configuration: Configuration) -> list[tuple[str, str]]:
    """What the GPU's data sheet promises against what is reached; nothing where that is unknown."""
    mfu, hfu, peak = configuration.mfu, configuration.hfu, configuration.peak_flops_per_s
    if mfu is None or peak is None:
        return []
    again = "" if hfu is None or percent(hfu) == percent(mfu) else f", HFU {percent(hfu)}"
    return [
        ("MFU", f"{percent(mfu)} of {flop_rate(peak)} (data sheet, {configuration.number_format}){again}")
    ]


def epoch_section(configuration: Configuration) -> Section | None:
    """Time and accuracy of every epoch; None for a single epoch without an evaluation."""
    epochs = configuration.epochs
    if not has_epochs(epochs):
        return None
    evaluated = epochs[-1].validation_accuracy is not None
    columns = ("Epoch", "Time (s)", "Train accuracy", "Validation accuracy")[: 4 if evaluated else 2]
    rows = tuple(_epoch_cells(epoch)[: len(columns)] for epoch in _first_and_last(epochs))
    return Section(
        title=f"Epochs ({configuration.trial.label})",
        table=Table(columns=columns, rows=rows),
        lines=(_final_accuracy(epochs[-1]),) if evaluated else (),
    )


def _final_accuracy(last: Epoch) -> str:
    _, _, train, validation = _epoch_cells(last)
    return f"Final accuracy: {validation} on validation data, {train} on training data (epoch {last.number})."


def _first_and_last(epochs: tuple[Epoch, ...]) -> tuple[Epoch | None, ...]:
    """The epochs that a screen has room for; None stands for those left out."""
    if len(epochs) <= _MOST_EPOCHS:
        return epochs
    half = _MOST_EPOCHS // 2
    return (*epochs[:half], None, *epochs[-half:])


def _epoch_cells(epoch: Epoch | None) -> tuple[str, ...]:
    if epoch is None:
        return ("…", "…", "…", "…")
    accuracies = (epoch.train_accuracy, epoch.validation_accuracy)
    shown = (MISSING if value is None else f"{value:.3f}" for value in accuracies)
    return (f"{epoch.number}", f"{epoch.time_s:.2f}", *shown)


def _interval(configuration: Configuration) -> str:
    step = configuration.step_time_s
    if step.low is None or step.high is None:
        return "none (one launch)"
    if not is_useful(step):
        return f"too wide to be useful: {len(configuration.launches)} launches are too few or differ too much"
    launches = len(configuration.launches)
    return f"{range_ms(step.low, step.high, 2)} (average step, over {launches} launches)"


def compute_reading(configuration: Configuration) -> str:
    """The compute rate of one rank, compared with a bare matrix product on the same device."""
    rate, share = configuration.model_flops_per_s, configuration.bare_product_share
    if rate is None:
        return f"unknown: {why_not_counted(configuration)}"
    shown = f"{flop_rate(rate)} per rank"
    if share is None:
        return shown
    return f"{shown}, {percent(share)} of a bare matrix product ({flop_rate(rate / share)})"


def gpu_reading(telemetry: TelemetrySummary) -> str | None:
    """What the GPUs did in the window; None where there was none."""
    if not telemetry.knows_gpu:
        return None if telemetry.problem is None else f"unknown: {telemetry.problem}"
    facts = [] if telemetry.gpu_utilization is None else [f"{percent(telemetry.gpu_utilization)} busy"]
    if telemetry.power_w is not None:
        limit = "" if telemetry.power_limit_w is None else f" of {telemetry.power_limit_w:.0f}"
        facts.append(f"{telemetry.power_w:.0f}{limit} W")
    if telemetry.sm_clock_hz is not None:
        limit = "" if telemetry.sm_clock_limit_hz is None else f" of {telemetry.sm_clock_limit_hz / 1e6:,.0f}"
        facts.append(f"{telemetry.sm_clock_hz / 1e6:,.0f}{limit} MHz")
    if telemetry.temperature_c is not None:
        facts.append(f"{telemetry.temperature_c:.0f} °C")
    return ", ".join([*facts, *(f"slowed by {name}" for name in telemetry.slowdowns)])


def cpu_reading(telemetry: TelemetrySummary) -> str | None:
    """What the processor did in the window; None where the system does not report it."""
    if telemetry.host_utilization is None:
        return None
    host = f"{percent(telemetry.host_utilization)} of the host busy"
    return (
        host
        if telemetry.rank_busy_cores is None
        else f"{telemetry.rank_busy_cores:.1f} cores busy per rank, {host}"
    )
