"""nccl-tests' own output, written and read: its users know the table, and their measurements feed ours."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.collectives import CollectiveRow
from scalescope.catalog.collectives import collective_named
from scalescope.errors import BadInput

_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
}
_NAMES = {short: name for name, short in _TYPES.items()}
_THEIR_COLLECTIVES = {"alltoall": "all_to_all"}  # theirs is ours otherwise
_HEADER = (
    "#",
    f"#{'out-of-place':>72}{'in-place':>34}",
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
    "#        (B)    (elements)                          "
    "     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
)
_STARTING = re.compile(r"Collective test starting: (\w+?)(?:_perf)?\s*$")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b")

_LARGEST_BYTES = 64 << 20  # of an output, which has a line for each size


def read_output(path: Path, origin: str) -> str:
    """The text of a file that nccl-tests wrote; never reads more than the largest allowed size."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{origin}: cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_BYTES:
        raise BadInput(
            f"{origin}: too large for an output of nccl-tests (at most {_LARGEST_BYTES >> 20} MiB)"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{origin}: not text") from None


def table_text(rows: Iterable[CollectiveRow]) -> str:
    """The table of nccl-tests, one block for each collective and type."""
    blocks: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in rows:
        blocks.setdefault((row.collective, row.trial_id or f"{row.dtype} {row.ranks}"), []).append(row)
    return "\n".join(_block(members) for members in blocks.values())


def _block(rows: list[CollectiveRow]) -> str:
    name, ranks = rows[0].collective, rows[0].ranks
    lines = [f"# Collective test starting: {name}_perf", f"# ranks {ranks}", *_shaped(rows[0]), *_HEADER]
    sizes = sorted({row.size_bytes for row in rows})
    for size in sizes:
        out = next((row for row in rows if row.size_bytes == size and not row.in_place), None)
        inside = next((row for row in rows if row.size_bytes == size and row.in_place), None)
        lines.append(_line(out or inside, out, inside))
    wrong = sum(row.wrong for row in rows)
    busy = [row.busbw_bytes_per_s / 1e9 for row in rows]
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(busy) / len(busy):g}",
        "#",
        f"# Collective test concluded: {name}_perf",
    ]
    return "\n".join(lines)


def _shaped(row: CollectiveRow) -> list[str]:
    nodes = len(set(row.hosts))
    lines = [f"# nodes {nodes}"] if nodes > 1 or row.among != "all" else []
    lines += [f"# network emulated at {row.link}"] if row.link else []
    return lines + ([f"# one GPU split into {row.split_gpu} parts"] if row.split_gpu else [])


def _line(any_row: CollectiveRow | None, out: CollectiveRow | None, inside: CollectiveRow | None) -> str:
    assert any_row is not None
    card = collective_named(any_row.collective)
    numbers = f"{any_row.size_bytes:>12}  {any_row.count:>12}"
    head = f"{numbers}  {_TYPES[any_row.dtype]:>8}  {card.redop:>6}  {card.root:>6}"
    return f"{head}{_half(out)}{_half(inside)}"


def _half(row: CollectiveRow | None) -> str:
    if row is None:  # torch does not offer it this way
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    micro = row.time_s * 1e6
    time = f"{micro:.2f}" if micro < 10_000 else f"{micro:.0f}"
    algorithm, bus = row.algbw_bytes_per_s / 1e9, row.busbw_bytes_per_s / 1e9
    return f"  {time:>7}  {algorithm:>6.2f}  {bus:>6.2f}  {row.wrong:>5}"


def to_json(rows: Iterable[CollectiveRow]) -> dict[str, Any]:
    """nccl-tests' JSON layout, one file for all collectives."""
    entries: dict[tuple[str, str, int, int, str], dict[str, Any]] = {}
    for row in rows:
        card = collective_named(row.collective)
        entry = entries.setdefault(
            (row.collective, row.dtype, row.ranks, row.size_bytes, row.trial_id),
            {
                "collective": row.collective,
                "ranks": row.ranks,
                "size": row.size_bytes,
                "count": row.count,
                "type": _TYPES[row.dtype],
                "redop": card.redop,
                "root": str(card.root),
            },
        )
        entry["in_place" if row.in_place else "out_of_place"] = {
            "time": row.time_s * 1e6,
            "alg_bw": row.algbw_bytes_per_s / 1e9,
            "bus_bw": row.busbw_bytes_per_s / 1e9,
            "nwrong": row.wrong,
        }
    return {"results": list(entries.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRow:
    """A line of somebody's nccl-tests output."""

    collective: str
    ranks: int | None
    dtype: str
    size_bytes: int
    in_place: bool
    time_s: float
    wrong: int


def parse(text: str, origin: str, collective: str | None = None) -> tuple[ImportedRow, ...]:
    """Read nccl-tests' JSON or its printed table."""
    read = _parse_json if text.lstrip().startswith("{") else _parse_table
    rows = read(text, origin, collective)
    if not rows:
        raise BadInput(f"{origin}: contains neither a table nor JSON of nccl-tests")
    for row in rows:
        collective_named(row.collective)
        if not (math.isfinite(row.time_s) and row.time_s > 0):
            raise BadInput(
                f"{origin}: {row.collective} of {row.size_bytes} bytes has an invalid time: {row.time_s} s"
            )
    return tuple(rows)


def _parse_table(text: str, origin: str, collective: str | None) -> list[ImportedRow]:
    name, ranks, rows = collective, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        starting = _STARTING.search(line)
        if starting:
            name = _THEIR_COLLECTIVES.get(starting[1], starting[1])
        if listed := _RANK.match(line):  # in their order, and again from 0 where another test begins
            ranks = int(listed[1]) + 1
        if stated := re.match(r"# ranks (\d+)$", line):
            ranks = int(stated[1])
        cells = line.split()
        if len(cells) >= 13 and cells[0].isdigit() and cells[2] in _NAMES:  # a time of day may follow
            try:
                rows += _halves(name or _guessed(cells, ranks, origin), ranks or None, cells)
            except ValueError as error:
                raise BadInput(f"{origin}:{number}: not a line of nccl-tests: {error}") from None
    return rows


def _guessed(cells: list[str], ranks: int, origin: str) -> str:
    """Older printouts do not name the collective; only an all-reduce can be recognised, by its factor."""
    algorithm, bus = float(cells[6]), float(cells[7])
    factor = collective_named("all_reduce").bus_factor(ranks) if ranks > 1 else None
    fits = factor is None or algorithm < 1.0 or abs(bus / algorithm - factor) < 0.05 * factor
    if cells[3] != "sum" or not fits:
        raise BadInput(f"{origin}: the collective is not named; add --collective NAME")
    return "all_reduce"


def _halves(name: str, ranks: int | None, cells: list[str]) -> list[ImportedRow]:
    rows = []
    for begin, in_place in ((5, False), (9, True)):
        time, wrong = cells[begin], cells[begin + 3]
        if time == "N/A":
            continue
        rows.append(
            ImportedRow(
                collective=name,
                ranks=ranks,
                dtype=_NAMES[cells[2]],
                size_bytes=int(cells[0]),
                in_place=in_place,
                time_s=float(time) / 1e6,
                wrong=0 if wrong == "N/A" else int(float(wrong)),  # printed with %g: 1.04858e+06
            )
        )
    return rows


def _parse_json(text: str, origin: str, collective: str | None) -> list[ImportedRow]:
    try:
        whole = json.loads(text)
        ranks = _ranks_of(whole)
        named = all("collective" in entry for entry in whole["results"])
        name = collective or ("" if named else _program_of(whole, origin))
        return [
            ImportedRow(
                collective=str(entry.get("collective", name)),
                ranks=int(entry["ranks"]) if "ranks" in entry else ranks,
                dtype=_NAMES[entry["type"]],
                size_bytes=int(entry["size"]),
                in_place=variant == "in_place",
                time_s=float(half["time"] if "time" in half else half["cpu_time"]) / 1e6,
                wrong=int(half.get("nwrong") or 0),  # null where it was not checked
            )
            for entry in whole["results"]
            for variant in ("out_of_place", "in_place")
            if (half := entry.get(variant)) is not None
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{origin}: not nccl-tests' JSON: {type(error).__name__} {error}") from None


def _program_of(whole: dict[str, Any], origin: str) -> str:
    """nccl-tests' JSON names the collective only in the command line it keeps."""
    if not whole.get("args"):
        raise BadInput(f"{origin}: the collective is not named; add --collective NAME")
    program = str(whole["args"][0]).rpartition("/")[2]
    name = re.sub(r"_perf(_mpi)?$", "", program)
    return _THEIR_COLLECTIVES.get(name, name)


def _ranks_of(whole: dict[str, Any]) -> int | None:
    """Its list of devices has one entry per process, each with a number of threads and of GPUs per thread."""
    config = whole.get("config") or {}
    ranks = len(config.get("devices", ())) * int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    return ranks or None
