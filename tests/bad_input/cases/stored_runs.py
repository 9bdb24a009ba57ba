"""Stored runs, files of nccl-tests, curves and ledgers that cannot be used."""

from scalescope.errors import ExitCode
from tests.bad_input.case import OLD_RUNS, Case, Content, Fifo, Folder, Link, StoredRun

_LINES = (OLD_RUNS / "train" / "trials.jsonl").read_text(encoding="utf-8")
_TABLE = "#  Rank  0 Group  0\n#  Rank  1 Group  0\n# Collective test starting: all_reduce_perf\n"


def _explain(name: str, files: dict[str, Content], *says: str) -> Case:
    return Case(name=f"explain: {name}", command=("explain", "r"), files=files, says=says)


def _trials(name: str, trials: str | bytes | None, *says: str) -> Case:
    return _explain(name, {"r": StoredRun("train", {"trials.jsonl": trials})}, *says)


def _import(name: str, content: Content, *says: str) -> Case:
    return Case(name=f"import: {name}", command=("comm", "--import", "n"), files={"n": content}, says=says)


def _network(name: str, network: str, *says: str, content: Content | None = None) -> Case:
    files: dict[str, Content] = {"r": StoredRun("scale")}
    if content is not None:
        files[network] = content
    return Case(
        name=f"network: {name}", command=("predict", "r", "--network", network), files=files, says=says
    )


_EXPLAINED = (
    _explain("empty folder", {"r": Folder()}, "r is not a run folder"),
    _explain("pipe instead of a folder", {"r": Fifo()}, "r is not a run folder"),
    _explain("link to nothing", {"r": Link("gone")}, "r"),
    _explain("pickled results", {"r/results.pkl": b"\x80\x04K\x01."}, "r is not a run folder"),
    _explain("checkpoint of torch", {"r/model.pt": b"PK\x03\x04"}, "r is not a run folder"),
    _trials("no results", "", "r"),
    _trials("results of NULs", b"\0" * 4096, "r"),
    _trials("only a newer schema", _LINES.replace('"schema_version":"1.0"', '"schema_version":"9.0"'), "r"),
    _trials("deep nesting", '{"a":' * 5000 + "}" * 5000 + "\n", "r"),
    Case(
        name="explain: pickle",
        command=("explain", "r.pkl"),
        files={"r.pkl": b"\x80\x04K\x01."},
        says=("r.pkl",),
    ),
    Case(
        name="report: torch checkpoint",
        command=("report", "m.pt"),
        files={"m.pt": b"PK\x03\x04"},
        says=("m.pt",),
    ),
    Case(name="report: folder without runs", command=("report", "d"), files={"d/x": "x"}, says=("d",)),
    Case(
        name="compare: folder without runs",
        command=("compare", "r", "d"),
        files={"r": StoredRun("train"), "d": Folder()},
        says=("d: holds no run",),
    ),
    Case(
        name="compare: another job",
        command=("compare", "r", "c"),
        files={"r": StoredRun("train"), "c": StoredRun("memory")},
        says=("r",),
    ),
    Case(
        name="compare: other hardware",
        command=("compare", "r", "s"),
        files={
            "r": StoredRun("train"),
            "s": StoredRun("train", {"environment.json": '{"machine": {"cpu_model": "other"}}'}),
        },
        says=("--any-hardware",),
        code=ExitCode.CANNOT_RUN,
    ),
    Case(name="resume: empty folder", command=("resume", "r"), files={"r": Folder()}, says=("r",)),
    Case(
        name="resume: run of another machine",
        command=("resume", "r"),
        files={"r": StoredRun("train", {"environment.json": '{"machine": {"cpu_model": "other"}}'})},
        says=("r was measured on another machine",),
        code=ExitCode.CANNOT_RUN,
    ),
    Case(
        name="resume: without an experiment",
        command=("resume", "r"),
        files={"r": StoredRun("train", {"experiment.yaml": None})},
        says=("r",),
    ),
    Case(
        name="resume: experiment with an unknown key",
        command=("resume", "r"),
        files={"r": StoredRun("train", {"experiment.yaml": "batchsize: 4\n"})},
        says=("r does not say which command made it",),
    ),
    Case(
        name="resume: experiment with escape codes",
        command=("resume", "r"),
        files={"r": StoredRun("train", {"experiment.yaml": '"\\e[2Jx": 4\n'})},
        says=("r does not say which command made it",),
    ),
    Case(
        name="resume: experiment with a python object",
        command=("resume", "r"),
        files={"r": StoredRun("train", {"experiment.yaml": "a: !!python/object/apply:os.system [id]\n"})},
        says=("r does not say which command made it",),
    ),
    Case(
        name="resume by the verb: number as a key",
        command=("train", "--resume", "--output-dir=r", "--device=cpu"),
        files={"r": StoredRun("train", {"environment.json": None, "experiment.yaml": "4: 5\n"})},
        says=("r",),
    ),
    Case(
        name="remove: link to a run",
        command=("rm", "l", "--yes"),
        files={"r": StoredRun("train"), "l": Link("r")},
        says=("l",),
    ),
)

_IMPORTED = (
    Case(
        name="import: missing",
        command=("comm", "--import", "gone"),
        says=("gone: cannot be read: No such file",),
    ),
    Case(name="import: device", command=("comm", "--import", "/dev/zero"), says=("/dev/zero: too large",)),
    _import("folder", Folder(), "n: cannot be read: Is a directory"),
    _import("empty", "", "n"),
    _import("not text", b"\xff\xfe", "n: not text"),
    _import("another text", "hello\nworld\n", "n"),
    _import("JSON of something else", '{"a": 1}', "n"),
    _import("JSON list", "[1, 2]", "n"),
    _import("broken JSON", '{"results": [', "n"),
    _import("deep JSON", '{"results":' * 5000, "n"),
    _import("table without rows", _TABLE, "n"),
    _import("infinite times", _TABLE + "1024 256 float sum -1 inf inf inf 0 inf inf inf 0\n", "n"),
    _import("times that are no numbers", _TABLE + "1024 256 float sum -1 nan nan nan 0 nan nan nan 0\n", "n"),
    _import("negative times", _TABLE + "1024 256 float sum -1 -5.0 0.1 0.1 0 -5.0 0.1 0.1 0\n", "n"),
    _import(
        "size of 5,000 digits", _TABLE + f"{'9' * 5000} 256 float sum -1 5.0 0.1 0.1 0 5.0 0.1 0.1 0\n", "n"
    ),
    Case(
        name="import: ranks in words",
        command=("comm", "--import", "n", "--world-size", "two"),
        files={"n": _TABLE},
        says=("--world-size", "'two'"),
    ),
    Case(
        name="import: superscript ranks",
        command=("comm", "--import", "n", "--world-size", "²"),
        files={"n": _TABLE},
        says=("--world-size",),
    ),
    Case(
        name="import: ranks of 5,000 digits",
        command=("comm", "--import", "n", "--world-size", "9" * 5000),
        files={"n": _TABLE},
        says=("--world-size",),
    ),
    Case(
        name="import: no ranks",
        command=("comm", "--import", "n", "--world-size", "0"),
        files={"n": _TABLE},
        says=("--world-size",),
    ),
)

_NETWORKS = (
    _network("unknown name", "nvlink44", "nvlink44", "nvlink4"),
    _network("name that resembles nothing", "zzzzzz", "zzzzzz"),
    _network("name with escape codes", "\x1b[2J", "\\x1b[2J"),
    _network("missing file", "./gone.json", "--network ./gone.json: no such file"),
    _network("folder that is not a run", "d", "--network d: not a run folder", content=Folder()),
    _network("pipe", "p.json", "--network p.json", content=Fifo()),
    _network("not text", "c.json", "--network c.json: not text", content=b"\xff\xfe"),
    _network("empty file", "c.json", "--network c.json", content=""),
    _network(
        "curves of a wrong type", "c.json", "--network c.json: not a curve.json", content='{"curves": 3}'
    ),
    _network(
        "curve without points",
        "c.json",
        "--network c.json: not a curve.json",
        content='{"curves": [{"collective": "all_reduce", "world_size": 2}]}',
    ),
    _network(
        "curve with negative times",
        "c.json",
        "--network c.json: not a curve.json",
        content='{"curves": [{"collective": "all_reduce", "world_size": 2, "points": [[8, -1.0]]}]}',
    ),
    _network(
        "curve with NaN",
        "c.json",
        "--network c.json: not a curve.json",
        content='{"curves": [{"collective": "all_reduce", "world_size": 2, "points": [[8, NaN]]}]}',
    ),
    _network(
        "curve with huge sizes",
        "c.json",
        "--network c.json: not a curve.json",
        content='{"curves": [{"collective": "all_reduce", "world_size": 2, "points": [[1e999, 1]]}]}',
    ),
    _network(
        "curve of one rank",
        "c.json",
        "--network c.json: has no curve of two",
        content='{"curves": [{"collective": "all_reduce", "world_size": 1, "points": [[8, 1.0]]}]}',
    ),
    _network("deep JSON", "c.json", "--network c.json", content='{"curves":' * 5000),
    _network(
        "run without collectives", "t", "--network t: has no times of collectives", content=StoredRun("train")
    ),
    Case(
        name="predict: run without a profile",
        command=("predict", "r"),
        files={"r": StoredRun("train")},
        says=("r", "profile"),
    ),
    Case(
        name="predict: run of collectives alone",
        command=("predict", "r"),
        files={"r": StoredRun("comm")},
        says=("r",),
    ),
)

CASES = (*_EXPLAINED, *_IMPORTED, *_NETWORKS)
