"""Tables for papers and spreadsheets: every configuration as CSV, TeX and Markdown; before and after."""

import csv
import io
import unicodedata
from typing import Any

from scalescope.analysis.configurations import Configuration, comparable_log_rates
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.report.analyzed_run import ReportInput, dataset_of
from scalescope.report.commands import job_name, units_of
from scalescope.report.numbers import MISSING, milliseconds, percent_with_interval, significant
from scalescope.report.render.markdown import table_text
from scalescope.report.section import Table
from scalescope.report.varied import shown_value, varied_settings

_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "[": "{[}", "*": "{*}",  # after a line's end these two would be its arguments
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''",
    "×": r"$\times$", "÷": r"$\div$", "→": r"$\to$", "—": "--", "–": "--", "−": "$-$", "±": r"$\pm$",
    "µ": r"$\mu$", "·": r"$\cdot$", "…": r"\ldots{}", "°": r"$^\circ$",
    "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ł": r"\l{}", "Ł": r"\L{}",
    "œ": r"\oe{}", "Œ": r"\OE{}",
}  # fmt: skip
_TEX_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u030c": "v",
    "\u0304": "=", "\u0306": "u", "\u0307": ".", "\u030b": "H", "\u0327": "c",
}  # fmt: skip
_MOST_VARIED = 4  # columns for settings that differ
_FORMULA = ("=", "+", "-", "@", "\t", "\n")  # what a spreadsheet would run


def tables(report_input: ReportInput) -> dict[str, str]:
    """File name → text."""
    summary = summary_table(report_input)
    texts = {
        "comprehensive_summary.csv": comprehensive_csv(report_input),
        "summary_table.tex": to_tex(summary),
        "summary_table.md": table_text(summary) + "\n",
    }
    if (compared := before_after(report_input)) is not None:
        texts |= {"before_after.tex": to_tex(compared), "before_after.md": table_text(compared) + "\n"}
    return texts


def summary_table(report_input: ReportInput) -> Table:
    """One row for each configuration, with what differs between them."""
    jobs = sorted(
        report_input.selected,
        key=lambda job: (dataset_of(job), job.trial.rank_batch_size, job.trial.world_size),
    )
    varied = varied_settings([job.trial for job in report_input.selected])
    names = tuple(name for name in varied if name != "batch_size")[:_MOST_VARIED]
    columns = (
        "data",
        "strategy",
        "ranks",
        "batch per rank",
        *names,
        "step ms",
        f"{units_of(jobs)}/s",
        "speedup",
        "efficiency",
    )
    cells = []
    for job in jobs:
        cells.append(
            (
                dataset_of(job),
                job.trial.strategy,
                str(job.trial.world_size),
                f"{job.trial.rank_batch_size:,}" if job.trial.has_known_batch else MISSING,
                *(shown_value(job.trial, name) for name in names),
                milliseconds(job.step_time_s.value),
                significant(job.speed.value, 4),
                *_scaling_cells(report_input.row_of(job)),
            )
        )
    return Table(columns=columns, rows=tuple(cells), left=frozenset(("data", "strategy", *names)))


def _scaling_cells(row: ScalingRow | None) -> tuple[str, str]:
    if row is None or row.is_baseline:
        return MISSING, MISSING
    return f"{row.speedup.value:.2f}×", percent_with_interval(row.efficiency)


def before_after(report_input: ReportInput) -> Table | None:
    """Two configurations of one job on the same ranks: the later one against the earlier one."""
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for configuration in report_input.selected:
        trial = configuration.trial
        job = (dataset_of(configuration), job_name(trial), configuration.device)
        groups.setdefault((*job, trial.world_size, trial.rank_batch_size), []).append(configuration)
    pairs = [group for group in groups.values() if len(group) == 2]
    different = [pair for pair in pairs if varied_settings([configuration.trial for configuration in pair])]
    rows = tuple(_change(before, after) for before, after in different)
    units = units_of(configuration for pair in different for configuration in pair)
    columns = (
        "workload",
        "ranks",
        "changed settings",
        f"before, {units}/s",
        f"after, {units}/s",
        "after ÷ before",
    )
    left = frozenset(("workload", "changed settings"))
    return Table(columns=columns, rows=rows, left=left) if rows else None


def _change(before: Configuration, after: Configuration) -> tuple[str, ...]:
    changed = varied_settings([before.trial, after.trial])
    words = [f"{n} {shown_value(before.trial, n)} → {shown_value(after.trial, n)}" for n in changed]
    ratio = ratio_of_logs(*comparable_log_rates(after, before))
    return (
        job_name(before.trial),
        str(before.trial.world_size),
        "; ".join(words) or MISSING,
        significant(before.speed.value, 4),
        significant(after.speed.value, 4),
        _times(ratio),
    )


def _times(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}×"
    return f"{ratio.value:.2f}× [{ratio.low:.2f}, {ratio.high:.2f}]"


def comprehensive_csv(report_input: ReportInput) -> str:
    """Everything about every configuration: figures in SI units, then all settings."""
    records = [_record(job, report_input.row_of(job)) for job in report_input.selected]
    names = list(dict.fromkeys(name for record in records for name in record))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n", restval="")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _csv_cell(value) for name, value in record.items()})
    return stream.getvalue()


def _record(configuration: Configuration, row: ScalingRow | None) -> dict[str, Any]:
    rate, step = configuration.samples_per_s, configuration.step_time_s
    scaled = row is not None and not row.is_baseline
    exposed = row.communication_s if row is not None else None
    epochs = configuration.epochs
    return {
        "trial_id": configuration.trial.trial_id,
        "dataset": dataset_of(configuration),
        "device": configuration.device,
        "launches": len(configuration.launches),
        "mode": configuration.trial.mode,
        "global_batch": configuration.global_batch or None,
        "samples_per_s": None if rate is None else rate.value,
        "samples_per_s_low": None if rate is None else rate.low,
        "samples_per_s_high": None if rate is None else rate.high,
        "step_time_s": step.value,
        "median_step_time_s": configuration.median_step_s,
        "speedup": row.speedup.value if scaled and row else None,
        "efficiency": row.efficiency.value if scaled and row else None,
        "exposed_comm_s": None if exposed is None else exposed.value,
        "epoch_time_s": epochs[-1].time_s if epochs else None,
        "validation_accuracy": epochs[-1].validation_accuracy if epochs else None,
        "mfu": configuration.mfu,
        "hfu": configuration.hfu,
        "bare_product_share": configuration.bare_product_share,
        **{f"setting_{name}": value for name, value in sorted(configuration.trial.identity.items())},
    }


def _csv_cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is marked as text; a bare \\r would end the line."""
    if isinstance(value, str):
        text = value.replace("\r\n", "\n").replace("\r", "\n")
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value


def to_tex(table: Table) -> str:
    """A tabular with the rules of booktabs; everything in it is escaped."""
    kinds = "".join("l" if column in table.left else "r" for column in table.columns)
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        " & ".join(map(tex, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(map(tex, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def tex(text: str) -> str:
    """Text in one line that every TeX can print; unsupported letters become a question mark."""
    return "".join(map(_tex_letter, " ".join(text.split())))


def _tex_letter(letter: str) -> str:
    if letter in _TEX:
        return _TEX[letter]
    if letter.isascii() and letter.isprintable():
        return letter
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[1] in _TEX_ACCENTS and parts[0].isascii() and parts[0].isalpha():
        return f"\\{_TEX_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return "?"
