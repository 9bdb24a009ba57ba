"""The summary of `train`: one block for each configuration."""

import json

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.catalog import cards
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import is_useful, percent, significant
from scalescope.report.section import Section
from scalescope.results.run import Run

_LABEL_WIDTH = 17


def training_sections(run: Run) -> tuple[Section, ...]:
    """A summary for every configuration that was measured."""
    return tuple(summary_section(one) for one in configurations(run.results))


def next_after_training(run: Run) -> str | None:
    """What to do after `train`."""
    if not run.of_status("ok"):
        return None
    more = "" if len(run.results) > 1 else "; --repeats 5 gives an interval"
    return f"scalescope scale shows how this changes with the number of ranks{more}."


def summary_section(one: Configuration) -> Section:
    """The benchmark's summary, in the words and columns its users know."""
    settings = one.trial.settings
    step = one.step_time_s
    shown = {name: value for name, value in settings.items() if value is not None}
    total = one.measured_steps + settings["warmup_steps"]
    facts = [
        ("World size", f"{one.trial.world_size}"),
        ("Device", one.device),
        ("Config", json.dumps(shown)),
        ("Warmup steps", f"{settings['warmup_steps']}"),
        ("Measured steps", f"{one.measured_steps} / {total}"),
        ("Avg step time", f"{step.value * 1e3:.2f} ms"),
        ("Throughput", f"{one.samples_per_s.value:,.0f} samples/s"),
        ("Measured samples", f"{sum(launch.samples for launch in one.launches):,}"),
        ("Median step time", f"{one.median_step_s * 1e3:.2f} ms"),
        ("95 % interval", _interval(one)),
        ("Reading", compute_reading(one)),
    ]
    lines = [f"{label:<{_LABEL_WIDTH}}: {text}" for label, text in facts]
    lines += [f"{'Warning':<{_LABEL_WIDTH}}: {doubt}" for doubt in warnings_of(one)]
    return Section(title="=== DDP Scaling Benchmark ===", lines=tuple(lines))


def surroundings(trial: Trial) -> list[str]:
    """What was made for this trial: a result from a shaped link or a split GPU must say so."""
    found = []
    if trial.settings.get("link"):
        found.append(f"link shaped to {trial.settings['link']}")
    if trial.settings.get("split_gpu"):
        found.append(f"one GPU split in {trial.settings['split_gpu']}: memory bandwidth and power are shared")
    if trial.settings.get("stand_in"):
        found.append("ranks stand in: each sleeps for the compute time one was measured to need alone")
    return found


def warnings_of(one: Configuration) -> list[str]:
    """What a reader must know before believing this configuration."""
    found = [f"unstable: {cause}" for cause in one.instabilities()] + one.remarks()
    found[:0] = surroundings(one.trial)
    if one.trial.settings["oversubscribe"]:
        found.insert(0, "ranks share a GPU: this is no scaling measurement")
    return found


def _interval(one: Configuration) -> str:
    step = one.step_time_s
    if step.low is None or step.high is None:
        return "no interval: one launch"
    if not is_useful(step):
        return f"too wide to say anything: {len(one.launches)} launches are too few or too different"
    return (
        f"{step.low * 1e3:.2f} to {step.high * 1e3:.2f} ms (average step, over {len(one.launches)} launches)"
    )


def compute_reading(one: Configuration) -> str:
    """How much of the device one rank uses, held against a bare matrix product on the same device."""
    settings = one.trial.settings
    workload = one.trial.options(cards.card("workloads", settings["workload"]))
    flops = workload.flops_per_sample()
    if flops is None:
        return "unknown: nobody counts the operations of this workload"
    rate = flops * one.samples_per_s.value / one.trial.world_size
    shown = f"{_flops(rate)} a rank"
    ceiling = one.matmul_flops_per_s
    if ceiling is None:
        return shown
    return f"{shown}, {percent(rate / ceiling)} of a bare matrix product ({_flops(ceiling)})"


def _flops(rate: float) -> str:
    for size, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if rate >= size:
            return f"{significant(rate / size)} {unit}"
    return f"{significant(rate / 1e6)} MFLOP/s"
