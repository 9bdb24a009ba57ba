"""The study of `comm`, and times that nccl-tests measured."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalescope.catalog.benchmarks.comm import Comm as CommCard
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput, CannotRun, ExitCode
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.report.comm.nccl_tests import ImportedRow, parse, read_output
from scalescope.results.files import to_text
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import load_run
from scalescope.results.run_folder import ENVIRONMENT, RunFolder, new_run_path, point_latest_at
from scalescope.results.run_record import RunEnd, RunRecord, write_run_record
from scalescope.studies.execution import write_files
from scalescope.studies.flags import read_flags
from scalescope.studies.plan import Plan
from scalescope.studies.scaling.network import nccl_logs
from scalescope.studies.scaling.scale import chosen_device, default_most_ranks
from scalescope.studies.study import Host, Report, Study

if TYPE_CHECKING:
    from scalescope.results.run import Run

# ---- `comm`: how fast the network carries the collectives that training uses


CURVE = "curve.json"
_CPU_RANKS = 2  # beyond that, they would share cores and memory rather than use a network
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([kKmMgGtT]?)[bB](?:/s)?")
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, kw_only=True)
class CommStudy(Study):
    """Measures collectives; below `least_busbw` bytes per second the exit code says so."""

    verb: ClassVar[str] = "comm"
    compares_ranks: ClassVar[bool] = True
    runs_on_slurm: ClassVar[bool] = True
    benchmark: ClassVar[str] = "comm"
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 1}
    planned_defaults: ClassVar[Mapping[str, str]] = {"world_size": f"{_CPU_RANKS} on CPU, all GPUs on GPU"}
    flags_may_differ: ClassVar[tuple[str, ...]] = ("min-busbw", "json-nccl")

    least_busbw: float | None = None
    is_import: bool = False  # a file of nccl-tests is read, nothing is measured
    nccl_json: Path | None = None  # where the results go in the layout of nccl-tests

    def flags(self) -> tuple[str, ...]:
        gate = () if self.least_busbw is None else ("--min-busbw", f"{self.least_busbw!r}B/s")
        return gate if self.nccl_json is None else (*gate, "--json-nccl", str(self.nccl_json.absolute()))

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        given = read_flags(flags)
        rate, file = given.get("min-busbw"), given.get("json-nccl")
        return cls(
            least_busbw=None if rate is None else rate_from(str(rate)),
            nccl_json=None if file is None else Path(str(file)),
        )

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        experiment = _with_world_size(experiment, host)
        expansion = expand(experiment, host.machine, many=many)
        separated = _inside_and_between_nodes(expansion.trials, host.machine, host.nodes)
        logged = nccl_logs(expansion.trials) if host.repeatable else ()
        return Plan(
            experiment=expansion.experiment,
            trials=(*expansion.trials, *separated, *logged),
            machine=host.machine,
            notes=expansion.notes,
        )

    def present(self, run: "Run") -> Report:
        from scalescope.analysis.collectives import collective_rows
        from scalescope.report.comm.nccl_tests import to_json
        from scalescope.report.comm.sections import (
            communication_sections,
            curves_json,
            gate_section,
            next_after_communication,
        )
        from scalescope.results.files import to_text
        from scalescope.studies.stored import report_of, with_files

        rows = collective_rows(run.results)
        report = report_of(self, run, communication_sections(run), next_after_communication(run))
        report = with_files(report, {CURVE: lambda: to_text(curves_json(rows))})
        if self.nccl_json is not None:
            # The layout of nccl-tests has no field for where ranks are: only what was asked for goes there.
            asked = [row for row in rows if row.among == "all"]
            report = with_files(report, {str(self.nccl_json.absolute()): lambda: to_text(to_json(asked))})
        if self.is_import:  # what another program measured: only the gate can fail
            report = dataclasses.replace(report, exit_code=ExitCode.OK)
        if self.least_busbw is None or report.exit_code:
            return report
        section, missed = gate_section(rows, self.least_busbw)
        code = ExitCode.GATE_MISSED if missed else ExitCode.OK
        return dataclasses.replace(report, sections=(*report.sections, section), exit_code=code)


def rate_from(text: str) -> float:
    """Bytes per second of a rate such as 10GB/s."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _SCALES[match[2].lower()] if match else 0.0
    if not 0.0 < rate < math.inf:
        raise BadInput(f"--min-busbw: expected a rate such as 10GB/s, got {text!r}")
    return rate


def _inside_and_between_nodes(trials: tuple[Trial, ...], machine: Machine, nodes: int) -> tuple[Trial, ...]:
    """The same inside one node and between nodes of one rank each, for trials that mix the two."""
    ranks = machine.ranks_per_node or 1
    if nodes < 2 or ranks < 2:
        return ()
    mixed = [trial for trial in trials if trial.world_size > max(nodes, ranks) and not trial.measures_pairs]
    separated = [
        trial.replace(among=among, world_size=size)
        for trial in mixed
        for among, size in (("one_node", ranks), ("one_per_node", nodes))
    ]
    return tuple({trial.trial_id: trial for trial in separated}.values())


def _with_world_size(experiment: Experiment, host: Host) -> Experiment:
    if "world_size" in experiment.settings:
        return experiment
    device = chosen_device(experiment, host.machine)
    all_ranks = default_most_ranks(device, host.machine, experiment) if device == "cuda" else _CPU_RANKS
    ranks = host.ranks or all_ranks
    if ranks < 2:
        raise CannotRun("collectives require at least 2 ranks; this machine has 1 GPU: use --device cpu")
    return experiment.with_settings(world_size=(ranks,))


# ---- `comm --import`: what nccl-tests wrote becomes a run of ours, for everything downstream to use


def import_nccl(
    study: CommStudy, file: Path, output_dir: str | None, world_size: int | None, collective: str | None
) -> Report:
    """Read the file, store it as a run folder, and present it as the study would."""
    text = read_output(file, str(file))
    results = list(_results(parse(text, str(file), collective), world_size, file))
    folder = RunFolder.open(Path(output_dir) if output_dir else new_run_path("comm"), resume=False)
    try:
        for order, result in enumerate(results):
            folder.append(dataclasses.replace(result, order=order))
        folder.write(ENVIRONMENT, to_text({"imported_from": file.name}))
        write_run_record(folder.path, RunRecord(verb=study.verb, end=RunEnd(why="finished")))
        report = study.present(load_run(folder.path))
        write_files(report, folder)
    finally:
        folder.close()
    if not output_dir:
        point_latest_at(folder.path)
    return report


def _results(rows: tuple[ImportedRow, ...], world_size: int | None, file: Path) -> Iterable[Result]:
    grouped: dict[tuple[int, str], list[ImportedRow]] = {}
    for row in rows:
        ranks = world_size or row.ranks
        if ranks is None:
            raise BadInput(f"{file}: does not say how many ranks it ran on; add --world-size")
        grouped.setdefault((ranks, row.dtype), []).append(row)
    for (ranks, dtype), members in grouped.items():
        yield _result(ranks, dtype, members)


def _result(ranks: int, dtype: str, rows: list[ImportedRow]) -> Result:
    settings: dict[str, Any] = {
        setting.name: setting.default_for("cuda")
        for card in (Placement, CommCard)
        for setting in settings_of(card)
    }
    settings |= {
        "benchmark": "comm",
        "world_size": ranks,
        "dtype": dtype,
        "device": "cuda",
        "backend": "nccl",
    }
    keys = {row: f"{row.collective}/{'in' if row.in_place else 'out'}/{row.size_bytes}" for row in rows}
    record = RankRecord(
        rank=0,
        host="imported",
        device="unknown",
        placement="imported from nccl-tests",
        samples={key: [row.time_s] for row, key in keys.items()},
        counters={f"{key}/wrong": row.wrong for row, key in keys.items()},
    )
    trial = Trial(settings=dict(sorted(settings.items())))
    return Result(
        trial_id=trial.trial_id,
        launch=0,
        order=0,
        status="invalid" if any(row.wrong for row in rows) else "ok",
        settings=dict(trial.settings),
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        duration_s=0.0,
        environment_id="imported",
        ranks=[record],
    )
