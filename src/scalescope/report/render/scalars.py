"""Scalars for TensorBoard: losses, step times and accuracies of every configuration."""

from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.errors import CannotRun
from scalescope.report.analyzed_run import ReportInput


def write_scalars(report_input: ReportInput, folder: Path) -> int:
    """One TensorBoard run for each configuration; returns how many scalars were written."""
    writer_of = _writer()
    written = 0
    for configuration in report_input.measured:
        writer = writer_of(str(folder / _name(configuration)))
        try:
            written += _write(writer, configuration)
        finally:
            writer.close()
    return written


def _name(configuration: Configuration) -> str:
    words = configuration.trial.label.replace(", ", "-").replace(" ", "_")
    return f"{words}-{configuration.trial.trial_id}"


def _write(writer: Any, configuration: Configuration) -> int:
    """Step by step of the first launch, epoch by epoch, and the figures over all launches."""
    first = configuration.launches[0]
    count = 0
    for name, values in (("step_time_s", first.step_times_s), ("loss", first.losses)):
        for step, value in enumerate(values):
            writer.add_scalar(f"training/{name}", value, step)
            count += 1
    for epoch in configuration.epochs:
        scalars = {
            "time_s": epoch.time_s,
            "train_accuracy": epoch.train_accuracy,
            "validation_accuracy": epoch.validation_accuracy,
        }
        for name, measured in scalars.items():
            if measured is not None:
                writer.add_scalar(f"epochs/{name}", measured, epoch.number)
                count += 1
    writer.add_scalar(f"summary/{_rate_name(configuration)}", configuration.speed.value, 0)
    return count + 1


def _rate_name(configuration: Configuration) -> str:
    return "samples_per_s" if configuration.knows_samples else "steps_per_s"


def _writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise CannotRun("--tensorboard requires tensorboardX: pip install 'scalescope[track]'") from None
    return SummaryWriter
