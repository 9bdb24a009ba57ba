"""Records of a launch that is ok: all ranks, with the samples that its benchmark takes, and whole tables.

A table is not shortened by a damaged row: a profile without a gradient would promise a faster step.
"""

import re
from collections.abc import Mapping, Sequence

from scalescope.catalog.cards import names
from scalescope.results.result import RankRecord, Result
from scalescope.results.stored.shapes import NUMBER, misfit

_PAIR = "pair/"  # samples that only the two ranks of a pair have
_COLLECTIVE = re.compile(r"([a-z_]+)/(in|out)/([0-9]{1,18})")
# Samples that are looked at step by step over all ranks.
_PER_STEP = ("step_time_s", "loss", "recorded_step_time_s")
# Rows that are read by these names. Of other tables nothing is required.
_ROWS: Mapping[str, Mapping[str, type]] = {
    "gradients": {"parameter": int, "size_bytes": int, "ready_s": NUMBER},
    "units": {
        "name": str,
        "parameter_bytes": int,
        "forward_s": NUMBER,
        "backward_s": NUMBER,
        "activation_bytes": int,
    },
    "synchronizations": {"file": str, "line": int, "per_step": NUMBER},
}
_PROFILE = "profile/"  # counters of the profile of one rank


def check_records(result: Result) -> None:
    """Refuse a launch that is ok without what such a launch has, by a ValueError."""
    if result.status != "ok":
        return
    ranks = [record.rank for record in result.ranks]
    if sorted(ranks) != list(range(len(ranks))):
        raise ValueError("ranks: not numbered from 0")
    for name in _PER_STEP:
        if len({len(record.samples.get(name, ())) for record in result.ranks}) > 1:
            raise ValueError(f"{name}: a launch that is ok has as many of every rank")
    for record in result.ranks:
        _check_tables(record)
        for name, value in record.counters.items():
            if name.startswith(_PROFILE) and name.endswith("_s") and not _fits(value, NUMBER):
                raise ValueError(f"rank {record.rank}: {name}: not a time")
    if result.settings.get("benchmark") == "comm":
        _check_collectives(result.ranks)


def _check_tables(record: RankRecord) -> None:
    for table, shape in _ROWS.items():
        for number, row in enumerate(record.tables.get(table, ())):
            for name, kind in shape.items():
                if not _fits(row.get(name), kind):
                    raise ValueError(
                        f"rank {record.rank}: {table}, row {number}: {name} is missing or damaged"
                    )


def _fits(value: object, kind: type) -> bool:
    """Whether a value is there, and text or a number that is not negative."""
    is_whole = value is not None and misfit(value, kind, "") is None
    return is_whole and (isinstance(value, str) or (isinstance(value, int | float) and value >= 0))


def _check_collectives(records: Sequence[RankRecord]) -> None:
    if not records:
        raise ValueError("ranks: a launch that is ok has records of its ranks")
    for name in records[0].samples:
        if name.startswith(_PAIR):
            continue
        match = _COLLECTIVE.fullmatch(name)
        if match is None or match[1] not in names("collectives"):
            raise ValueError(f"{name[:60]}: not a measurement of a collective")
        times = [record.samples.get(name, []) for record in records]
        if len({len(members) for members in times}) > 1 or not all(map(all, times)) or not times[0]:
            raise ValueError(f"{name}: a launch that is ok has as many times above 0 of every rank")
