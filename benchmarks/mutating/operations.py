"""Changes of run folders, as damage, another program or a stranger might make them."""

import contextlib
import gzip
import json
import os
import random
import shutil
import socket
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutating.values import WORDS, change_record, odd_value, to_line
from scalescope.experiment.trial import Trial

Operation = Callable[[Path, random.Random], None]
OUTSIDE = "outside"  # beside the run folder: what nothing in it may read or write
SECRET = "content-of-a-file-outside"
KNOWN_NAMES = (
    *("trials.jsonl", "results.json", "run.json", "tuning.json", "tuned.yaml", "performance_report.txt"),
    *("experiment.yaml", "environment.json", "slurm/request.yaml", "slurm/job.json", ".lock", "curve.json"),
    *("report.html", "report.json", "ranks", "logs", "slurm", "traces", "figures", "tables"),
)
_BOMB_BYTES = 3_000_000_000
_LARGEST_CHANGED = 64 << 20
_LARGEST_TRACE = 1 << 20  # a bomb is larger
LEDGER = "ledger.jsonl"


def make_outside(parent: Path) -> Path:
    """Files and folders that links lead to."""
    outside = parent / OUTSIDE
    (outside / "folder").mkdir(parents=True)
    for name in ("secret.json", "secret.txt", "folder/secret.json"):
        (outside / name).write_text(json.dumps({"secret": SECRET, "name": SECRET, "reason": SECRET}))
    return outside


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder with its mode and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def mutate(folder: Path, rng: random.Random) -> list[str]:
    """Change a run folder in a few ways; their names."""
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        operation = rng.choice(OPERATIONS)
        with contextlib.suppress(OSError):  # an earlier change stands in the way
            operation(folder, rng)
            names.append(operation.__name__)
    return names


def _files(folder: Path) -> list[Path]:
    paths = (Path(parent) / name for parent, _, files in os.walk(folder) for name in files)
    return sorted(path for path in paths if stat.S_ISREG(path.lstat().st_mode))


def _file(folder: Path, rng: random.Random) -> Path:
    """A file of the folder; those that decide most are chosen most."""
    files = _files(folder)
    weights = [1.0 if path.parent == folder else 0.1 for path in files]
    if not files:
        raise OSError("no file is left")
    return rng.choices(files, weights)[0]


def _content(path: Path) -> bytes:
    """A file's content; an earlier change may have made it larger than memory."""
    if path.stat().st_size > _LARGEST_CHANGED:
        raise OSError("the file is too large to be changed")
    return path.read_bytes()


def _own(folder: Path, name: str) -> Path:
    """A path in the folder that no link leads out of; an earlier change may have made one."""
    path = folder / name
    if path.is_symlink() or not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(f"{name} leads out of the folder")
    return path


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


def _to_replace(folder: Path, rng: random.Random) -> Path:
    """A name that scalescope reads or writes, in a folder of the run itself."""
    path = folder / rng.choice(KNOWN_NAMES)
    return _own(folder, str(path.parent.relative_to(folder))) / path.name


def flip_bytes(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    content = bytearray(_content(path))
    for _ in range(rng.choice((1, 3, 30)) if content else 0):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


def change_character(folder: Path, rng: random.Random) -> None:
    """Change single characters of the results or of the environment: most lines stay valid JSON."""
    path = _own(folder, rng.choice(("trials.jsonl", "trials.jsonl", "environment.json")))
    if not path.is_file():
        raise OSError("no such file is left")
    content = bytearray(_content(path))
    for _ in range(rng.choice((1, 1, 5)) if content else 0):
        content[rng.randrange(len(content))] = rng.choice(b"0123456789eE-.abcxyz_/")
    path.write_bytes(content)


def truncate(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    content = _content(path)
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def replace_content(folder: Path, rng: random.Random) -> None:
    contents = (b"", b"\0" * 1_000, b"\xff\xfe" * 50, b"[" * 200_000, b"null", b"[]", b"{}", b"17", b'"x"')
    _file(folder, rng).write_bytes(rng.choice((*contents, rng.randbytes(500))))


def change_json(folder: Path, rng: random.Random) -> None:
    """Change values of a JSON file, or of one of its lines."""
    candidates = [path for path in _files(folder) if path.suffix in (".json", ".jsonl")]
    if not candidates:
        raise OSError("no JSON is left")
    weights = [1.0 if path.parent == folder else 0.05 for path in candidates]
    path = rng.choices(candidates, weights)[0]
    if path.suffix == ".jsonl":
        change_line(path, rng, times=rng.choice((1, 1, 3)))
        return
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(_content(path))
        for _ in range(rng.choice((1, 1, 3))):
            record = change_record(record, rng)
        path.write_text(to_line(record))


def change_lines(folder: Path, rng: random.Random) -> None:
    """Change a line of the results, twice as often as other files."""
    path = folder / "trials.jsonl"
    if not path.is_file() or path.is_symlink():
        raise OSError("no results are left")
    for _ in range(rng.choice((1, 1, 4))):
        change_line(path, rng, times=1)


def change_line(path: Path, rng: random.Random, times: int) -> None:
    """Change a line; where its settings change, mostly with the id that they then have."""
    if not path.is_file():
        return  # an operation before made it a device
    lines = _content(path).splitlines()
    if not lines:
        return
    number = rng.randrange(len(lines))
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(lines[number])
        for _ in range(times):
            record = _changed_result(record, rng)
        lines[number] = to_line(record).encode("utf-8", "replace")
    path.write_bytes(b"\n".join(lines) + b"\n")


def _changed_result(record: Any, rng: random.Random) -> Any:
    part = rng.choice((None, None, "settings", "settings", "ranks", "telemetry"))
    if not isinstance(record, dict) or part not in record or not record[part]:
        return change_record(record, rng)
    changed = {**record, part: change_record(record[part], rng)}
    if part == "settings" and rng.random() < 0.7:
        with contextlib.suppress(Exception):
            changed["trial_id"] = Trial(settings=changed["settings"]).trial_id
    return changed


def change_facts(folder: Path, rng: random.Random) -> None:
    """Change counters, tables, samples and settings in every line, mostly to values of a type that fits."""
    path = folder / "trials.jsonl"
    if not path.is_file() or path.is_symlink():
        raise OSError("no results are left")
    lines = _content(path).splitlines()
    share = rng.choice((0.02, 0.2, 1.0))
    for number, line in enumerate(lines):
        with contextlib.suppress(Exception):  # what an earlier change broke stays as it is
            record = json.loads(line)
            for rank in record["ranks"]:
                for part in rng.sample(("counters", "samples", "tables"), rng.randrange(1, 3)):
                    rank[part] = _other_facts(rank.get(part, {}), rng, share)
            if rng.random() < 0.2:
                record["settings"] = _other_facts(record["settings"], rng, 0.05)
                record["trial_id"] = Trial(settings=record["settings"]).trial_id
            lines[number] = to_line(record).encode("utf-8", "replace")
    path.write_bytes(b"\n".join(lines) + b"\n")


def _other_facts(value: Any, rng: random.Random, share: float) -> Any:
    """The same structure with other numbers and words in some places."""
    if isinstance(value, dict):
        kept = {key: _other_facts(item, rng, share) for key, item in value.items()}
        return {key: item for key, item in kept.items() if rng.random() >= share * 0.2}
    if isinstance(value, list):
        members = [_other_facts(item, rng, share) for item in value]
        return members[: rng.randrange(len(members) + 1)] if rng.random() < share * 0.2 else members
    if rng.random() >= share:
        return value
    if isinstance(value, bool) or rng.random() < 0.1:
        return rng.choice((True, False, None, "other", 0, 1))
    if isinstance(value, int | float):
        numbers = (
            0,
            1,
            -1,
            2,
            7,
            0.0,
            1e-12,
            1e-30,
            1e12,
            1e30,
            1e99,
            -1e99,
            value * 1e6,
            value / 1e6,
            -value,
        )
        return rng.choice(numbers)
    return rng.choice(WORDS)


def change_trace(folder: Path, rng: random.Random) -> None:
    """Change events of a recorded trace."""
    traces = [path for path in _files(folder) if path.name.endswith(".trace.json.gz")]
    if not traces:
        raise OSError("no trace is left")
    path = rng.choice(traces)
    with contextlib.suppress(ValueError, EOFError, RecursionError):  # an earlier change broke it
        if path.stat().st_size < _LARGEST_TRACE:
            record = json.loads(gzip.decompress(path.read_bytes()))
            for _ in range(rng.choice((1, 3, 30))):
                record = change_record(record, rng)
            path.write_bytes(gzip.compress(to_line(record).encode("utf-8", "replace")))


def mutate_ledger(path: Path, rng: random.Random) -> list[str]:
    """Change a ledger that lies alone in its folder, or what lies there in its place."""
    names = []
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        operation = rng.choice(LEDGER_OPERATIONS)
        with contextlib.suppress(OSError):
            operation(path.parent, rng)
            names.append(f"ledger: {operation.__name__}")
    return names


def change_entry(folder: Path, rng: random.Random) -> None:
    """Change fields of lines of a ledger."""
    for _ in range(rng.choice((1, 4, 20))):
        change_line(folder / LEDGER, rng, times=1)


def replace_ledger(folder: Path, rng: random.Random) -> None:
    """Put what is not a file in place of the ledger."""
    path = folder / LEDGER
    _clear(path)
    kind = rng.choice(("fifo", "folder", "link", "device"))
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        secret = folder.parent / OUTSIDE / "secret.json"
        path.symlink_to("/dev/zero" if kind == "device" else secret)


def change_text(folder: Path, rng: random.Random) -> None:
    """Put odd words into a text file, for instance the experiment."""
    candidates = [path for path in _files(folder) if path.suffix in (".yaml", ".txt", ".log")]
    if not candidates:
        raise OSError("no text is left")
    path = rng.choice(candidates)
    lines = _content(path).decode(errors="replace").splitlines() or [""]
    number = rng.randrange(len(lines))
    key = lines[number].partition(":")[0]
    value = odd_value(rng)
    text = value if isinstance(value, str) else to_line(value)
    lines[number] = rng.choice((text, f"{key}: {text}", f"{key}: [1, {text}]", "", lines[number] * 2))
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))


def repeat_or_drop_lines(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    lines = _content(path).splitlines(keepends=True)
    if not lines:
        return
    number = rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[number]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[number])
    else:
        rng.shuffle(lines)
    path.write_bytes(b"".join(lines))


def swap_files(folder: Path, rng: random.Random) -> None:
    first, second = _file(folder, rng), _file(folder, rng)
    content, other = _content(first), _content(second)
    first.write_bytes(other)
    second.write_bytes(content)


def remove(folder: Path, rng: random.Random) -> None:
    _file(folder, rng).unlink()


def link(folder: Path, rng: random.Random) -> None:
    """Put a link in place of something that scalescope reads or writes."""
    path = _to_replace(folder, rng)
    outside = folder.parent / OUTSIDE
    files = (outside / "secret.json", outside / "secret.txt", "/dev/zero", "/dev/full", "/dev/random")
    targets = (*files, outside / "folder", outside / "new.json", path.name, "..", "/")
    target = rng.choice(targets if path.suffix or path.name == ".lock" else (outside / "folder", "..", "/"))
    _clear(path)
    path.symlink_to(target)


def special_file(folder: Path, rng: random.Random) -> None:
    """Put what is not a file in place of one."""
    path = rng.choice((_to_replace(folder, rng), _file(folder, rng)))
    kind = rng.choice(("fifo", "folder", "socket", "device"))
    _clear(path)
    if kind == "folder":
        path.mkdir()
    elif kind == "socket" and len(str(path)) < 100:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device" and os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    else:
        os.mkfifo(path)


def odd_names(folder: Path, rng: random.Random) -> None:
    """Add files of odd names, and rename others."""
    names = [word.replace("/", "_").replace("\0", "")[:250] for word in WORDS]
    name = rng.choice([name for name in names if name not in ("", ".", "..")]).encode("utf-8", "replace")
    where = _own(folder, rng.choice((".", "ranks", "logs", "traces")))
    where.mkdir(exist_ok=True)
    target = where / os.fsdecode(rng.choice((name, b"\xff\xfe" + name[:100])))
    if rng.random() < 0.5:
        _file(folder, rng).replace(target)
    else:
        target.write_bytes(b"{}")


def gzip_bomb(folder: Path, rng: random.Random) -> None:
    """A small file that becomes large: in place of a trace, or as one that a result names."""
    traces = _own(folder, "traces")
    traces.mkdir(exist_ok=True)
    known = sorted(path for path in traces.iterdir() if path.name.endswith(".gz"))
    path = rng.choice(known) if known else traces / "0123456789ab-0-0.pt.trace.json.gz"
    _clear(path)
    path.write_bytes(_bomb())


_made: list[bytes] = []


def _bomb() -> bytes:
    """Blanks between the ends of a trace; blocks of them are compressed once and repeated."""
    if not _made:
        first, block = (_packed(text) for text in (b'{"traceEvents": [', b" " * (1 << 20)))
        last = _packed(b"]}", zlib.Z_FINISH)
        size = (_BOMB_BYTES % (1 << 32)).to_bytes(4, "little")
        checksum = bytes(4)  # nobody reads so far
        _made.append(
            b"\x1f\x8b\x08"
            + bytes(6)
            + b"\xff"
            + first
            + block * (_BOMB_BYTES >> 20)
            + last
            + checksum
            + size
        )
    return _made[0]


def _packed(text: bytes, end: int = zlib.Z_FULL_FLUSH) -> bytes:
    """A part of a compressed stream that does not depend on what stands before it."""
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(text) + packer.flush(end)


def large_file(folder: Path, rng: random.Random) -> None:
    """A sparse file of many bytes."""
    with _file(folder, rng).open("r+b") as stream:
        stream.truncate(rng.choice((10**8, 10**11)))


def take_rights(folder: Path, rng: random.Random) -> None:
    rng.choice((_file(folder, rng), _own(folder, rng.choice(("ranks", "logs"))))).chmod(0)


OPERATIONS: tuple[Operation, ...] = (
    *(change_lines,) * 6,
    *(change_facts,) * 4,
    *(change_json,) * 6,
    *(link,) * 3,
    *(special_file,) * 2,
    *(flip_bytes, truncate, replace_content, change_text, repeat_or_drop_lines, swap_files, remove),
    *(change_trace,) * 3,
    *(change_character,) * 4,
    *(odd_names, gzip_bomb, large_file, take_rights),
)
LEDGER_OPERATIONS: tuple[Operation, ...] = (
    *(change_entry,) * 6,
    *(flip_bytes, truncate, replace_content, repeat_or_drop_lines, large_file, take_rights, replace_ledger),
)
