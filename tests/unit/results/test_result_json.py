"""A result as the JSON of its line in trials.jsonl."""

import dataclasses

from scalescope.results.result import RankRecord, Result, Stage, to_json

RANK = RankRecord(rank=0, host="h", device="cpu", placement="", samples={"step_time_s": [0.1, 0.2]})
RESULT = Result(
    trial_id="t", launch=0, stage=Stage("alone", 2), order=0, status="ok", settings={"world_size": 1},
    started_at="2026-01-15T10:30:00+00:00", duration_s=1.0, environment_id="e", ranks=[RANK], notes=["n"],
)  # fmt: skip


def test_all_fields_are_plain_values() -> None:
    assert to_json(RESULT) == dataclasses.asdict(RESULT)


def test_samples_are_not_copied() -> None:
    assert to_json(RESULT)["ranks"][0]["samples"] is RANK.samples
