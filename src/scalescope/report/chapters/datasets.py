"""Data sets: epoch times, accuracy, throughput and speedup of each, over all runs."""

from collections.abc import Sequence

from scalescope.analysis.commands import batch_text
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.epochs import Epoch, has_epochs
from scalescope.report.analyzed_run import ReportInput, dataset_of, notes_of
from scalescope.report.chapter import Chapter
from scalescope.report.chapters.scaling import efficiency_panel, grouped, speedup_panel
from scalescope.report.commands import units_of
from scalescope.report.numbers import counted, useful_interval
from scalescope.report.section import Figure, Panel, Series
from scalescope.report.training.sections import epoch_section
from scalescope.report.varied import disambiguate

_MOST_LINES = 8


def chapter(report_input: ReportInput) -> Chapter | None:
    figures = tuple(figure for name in report_input.dataset_names for figure in _figures(name, report_input))
    epoch_sections = map(epoch_section, report_input.selected[:_MOST_LINES])
    sections = tuple(section for section in epoch_sections if section is not None)
    if not figures and not sections:
        return None
    return Chapter(name="data", title="Results by data set", order=40, sections=sections, figures=figures)


def _figures(name: str, report_input: ReportInput) -> list[Figure]:
    everything = _in_order(report_input.of_dataset(name))
    measured = everything[:_MOST_LINES]
    trained = [
        configuration for configuration in measured if has_epochs(_epochs(configuration, report_input))
    ]
    figures = [_throughput(name, measured, len(everything) - len(measured))]
    if trained:
        figures.append(_epoch_times(name, trained, report_input))
    if any(
        epoch.validation_accuracy is not None for configuration in trained for epoch in configuration.epochs
    ):
        figures.append(_accuracy(name, trained))
    speedups = _speedups(name, report_input)
    return figures if speedups is None else [*figures, speedups]


def _in_order(measured: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
    """By batch and ranks; one rank inside a wrapper is left out where plain training was measured."""
    trials = [configuration.trial for configuration in measured]
    plain_batches = {trial.rank_batch_size for trial in trials if not trial.is_wrapped}
    jobs = [
        configuration
        for configuration, trial in zip(measured, trials, strict=True)
        if trial.world_size > 1 or not trial.is_wrapped or trial.rank_batch_size not in plain_batches
    ]
    return tuple(sorted(jobs, key=lambda job: (job.trial.rank_batch_size, job.trial.world_size)))


def _epochs(configuration: Configuration, report_input: ReportInput) -> tuple[Epoch, ...]:
    """The epochs that count; the first ones may be left out as warm-up."""
    return tuple(epoch for epoch in configuration.epochs if epoch.number > report_input.skip_epochs)


def _throughput(name: str, measured: tuple[Configuration, ...], left: int) -> Figure:
    rates = [configuration.speed for configuration in measured]
    per_s = f"{units_of(measured)} per second"
    series = Series(
        label=per_s,
        x=tuple(map(float, range(len(measured)))),
        y=tuple(rate.value for rate in rates),
        low=tuple(useful_interval(rate)[0] for rate in rates),
        high=tuple(useful_interval(rate)[1] for rate in rates),
    )
    names = _labels(measured)
    more = f"; {left:,} more configurations are in the tables" if left else ""
    panel = Panel(kind="bars", x_label="", y_label=per_s, series=(series,), names=names)
    return Figure(
        name=f"{_stem(name)}_throughput",
        title=f"{name}: throughput{more}",
        alt=f"Bars of {per_s} on {name} for {', '.join(names)}.".replace("\n", " "),
        panels=(panel,),
        notes=notes_of(measured),
    )


def _epoch_times(name: str, trained: list[Configuration], report_input: ReportInput) -> Figure:
    series = tuple(
        Series(
            label=label.replace("\n", ", "),
            x=tuple(float(epoch.number) for epoch in _epochs(configuration, report_input)),
            y=tuple(epoch.time_s for epoch in _epochs(configuration, report_input)),
        )
        for label, configuration in zip(_labels(trained), trained, strict=True)
    )
    skipped = (
        f" (first {counted(report_input.skip_epochs, 'epoch')} left out)" if report_input.skip_epochs else ""
    )
    return Figure(
        name=f"{_stem(name)}_epoch_time_detailed",
        title=f"{name}: time per epoch{skipped}",
        alt=f"Lines of the time per epoch on {name} for {counted(len(series), 'configuration')}.",
        panels=(Panel(kind="lines", x_label="epoch", y_label="seconds", series=series),),
        notes=notes_of(trained),
    )


def _accuracy(name: str, trained: list[Configuration]) -> Figure:
    panels = []
    for title, part in (("validation", "validation_accuracy"), ("training", "train_accuracy")):
        series = []
        for label, configuration in zip(_labels(trained), trained, strict=True):
            known = [epoch for epoch in configuration.epochs if getattr(epoch, part) is not None]
            series.append(
                Series(
                    label=label.replace("\n", ", "),
                    x=tuple(float(epoch.number) for epoch in known),
                    y=tuple(float(getattr(epoch, part)) for epoch in known),
                )
            )
        panels.append(
            Panel(kind="lines", x_label="epoch", y_label="accuracy", series=tuple(series), title=title)
        )
    return Figure(
        name=f"{_stem(name)}_accuracy",
        title=f"{name}: accuracy per epoch",
        alt=f"Lines of validation and training accuracy per epoch on {name}.",
        panels=tuple(panels),
        notes=notes_of(trained),
    )


def _speedups(name: str, report_input: ReportInput) -> Figure | None:
    rows = tuple(row for row in report_input.rows if dataset_of(row.configuration) == name)
    if not any(not row.is_baseline for row in rows):
        return None
    groups = grouped(rows, report_input.by)
    modes = sorted({row.trial.mode for row in rows})
    return Figure(
        name=f"{_stem(name)}_speedup_efficiency",
        title=f"{name}: speedup and efficiency ({' and '.join(modes)} scaling)",
        alt=f"Lines of speedup and efficiency by number of ranks on {name} for {', '.join(groups)}.",
        panels=(speedup_panel(groups), efficiency_panel(groups)),
        notes=notes_of([row.configuration for row in rows]),
    )


def _short(configuration: Configuration) -> str:
    ranks = counted(configuration.trial.world_size, "rank")
    return f"{ranks}\n{batch_text(configuration.trial, configuration.trial.rank_batch_size)}"


def _labels(measured: Sequence[Configuration]) -> tuple[str, ...]:
    return disambiguate(
        [_short(configuration) for configuration in measured],
        [configuration.trial for configuration in measured],
        [configuration.device for configuration in measured],
    )


def _stem(name: str) -> str:
    """The name with only characters that are safe in file names."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:60] or "data"
