"""`comm --import`: what nccl-tests wrote becomes a run of ours, for everything downstream to use."""

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalescope.analysis.collectives import collective_rows
from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.report.comm.nccl_tests import ImportedRow, parse
from scalescope.report.comm.sections import communication_sections, curves_json
from scalescope.report.results_json import results_json
from scalescope.results.files import to_text
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import load_run
from scalescope.results.run_folder import ENVIRONMENT, RESULTS, RunFolder, new_run_path, point_latest_at
from scalescope.studies.study import StudyReport


def import_nccl(
    file: Path, output_dir: str | None, world_size: int | None, collective: str | None
) -> StudyReport:
    """Read the file, store it as a run folder, and show it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read: {error}") from None
    results = list(_results(parse(text, str(file), collective), world_size, file))
    folder = RunFolder.open(Path(output_dir) if output_dir else new_run_path("comm"), resume=False)
    try:
        for order, result in enumerate(results):
            folder.append(dataclasses.replace(result, order=order))
        folder.write(ENVIRONMENT, to_text({"imported_from": file.name}))
        run = load_run(folder.path)
        folder.write(RESULTS, to_text(results_json(run, _experiment())))
        folder.write("curve.json", to_text(curves_json(collective_rows(run.results))))
    finally:
        folder.close()
    if not output_dir:
        point_latest_at(folder.path)
    return StudyReport(sections=communication_sections(run), path=folder.path, run=run)


def _experiment() -> Experiment:
    defaults: dict[str, Any] = {setting.name: setting.default for setting in settings_of(Measuring)}
    return Experiment(verb="comm", benchmark="comm", settings={}, measuring=Measuring(**defaults))


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
        for card in (Placement, Comm)
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
