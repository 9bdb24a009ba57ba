"""Environment: the machines and versions behind the numbers, and the commands that repeat them."""

from typing import Any

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.checks import node_sections
from scalescope.report.numbers import MISSING, data_size
from scalescope.report.section import Section, ShownCommand, Table

_COLUMNS = (
    "run",
    "date",
    "host",
    "CPU",
    "cores",
    "memory",
    "GPUs",
    "torch",
    "NCCL",
    "git commit",
)
_FEW_HOSTS = 4


def chapter(report_input: ReportInput) -> Chapter | None:
    rows = tuple(_row(analyzed) for analyzed in report_input.analyzed_runs)
    variables = tuple(
        f"{analyzed.name}: {name}={value}"
        for analyzed in report_input.analyzed_runs
        for name, value in sorted((analyzed.run.environment.get("variables") or {}).items())
    )
    table = Table(columns=_COLUMNS, rows=rows, left=frozenset(_COLUMNS))
    commands = tuple(
        ShownCommand(label=analyzed.name, argv=analyzed.argv)
        for analyzed in report_input.analyzed_runs
        if analyzed.argv
    )
    several = len(report_input.analyzed_runs) > 1
    nodes = tuple(
        section
        for analyzed in report_input.analyzed_runs
        for section in node_sections(analyzed.run, label=analyzed.name if several else "")
        if section.table is not None
    )
    repeated = (Section(title="Commands that repeat the runs", commands=commands),) if commands else ()
    return Chapter(
        name="environment",
        title="Environment and commands",
        order=110,
        sections=(Section(table=table, details=variables), *nodes, *repeated),
    )


def _row(analyzed: AnalyzedRun) -> tuple[str, ...]:
    environment = analyzed.run.environment
    machine: dict[str, Any] = environment.get("machine") or {}
    gpus = [str(gpu.get("name", "unknown")) for gpu in machine.get("gpus") or []]
    git = environment.get("git") or {}
    commit = str(git.get("commit", ""))[:10] + (" (modified)" if git.get("changed") else "")
    memory = machine.get("memory_bytes")
    return (
        analyzed.name,
        min((result.started_at for result in analyzed.run.results), default=MISSING)[:16].replace("T", " "),
        _hosts(environment),
        str(machine.get("cpu_model", "unknown")),
        str(machine.get("cores", "unknown")),
        data_size(memory) if isinstance(memory, int) else "unknown",
        ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)) or "none",
        str(machine.get("torch_version", "unknown")),
        str(machine.get("nccl_version") or MISSING),
        commit or MISSING,
    )


def _hosts(environment: dict[str, Any]) -> str:
    """The host, or how many and the first few of them."""
    nodes = list(environment.get("nodes") or {})
    if len(nodes) < 2:
        return str((environment.get("machine") or {}).get("host", "unknown"))
    named = ", ".join(nodes[:_FEW_HOSTS])
    return f"{len(nodes)}: {named}{', …' if len(nodes) > _FEW_HOSTS else ''}"
