"""Records of a launch that is ok: all ranks, each with the samples that its benchmark takes."""

import re
from collections.abc import Sequence

from scalescope.catalog.cards import names
from scalescope.results.result import RankRecord, Result

_PAIR = "pair/"  # samples that only the two ranks of a pair have
_COLLECTIVE = re.compile(r"([a-z_]+)/(in|out)/([0-9]{1,18})")
# Samples that are looked at step by step over all ranks.
_PER_STEP = ("step_time_s", "loss", "recorded_step_time_s")


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
    if result.settings.get("benchmark") == "comm":
        _check_collectives(result.ranks)


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
