"""`comm --import`: what nccl-tests wrote becomes a run of ours, for everything downstream to use."""

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalescope.catalog.benchmarks.comm import Comm as CommCard
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.report.comm.nccl_tests import ImportedRow, parse, read_output
from scalescope.results.files import to_text
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import load_run
from scalescope.results.run_folder import ENVIRONMENT, RunFolder, new_run_path, point_latest_at
from scalescope.results.run_record import RunEnd, RunRecord, write_run_record
from scalescope.studies.comm.comm import CommStudy
from scalescope.studies.execution import write_files
from scalescope.studies.study import Report


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
