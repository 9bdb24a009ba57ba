"""Stored runs, files of nccl-tests, curves and ledgers that cannot be used."""

from scalescope.errors import ExitCode
from tests.bad_input.case import STORED_RUNS, Case, Content, Fifo, Folder, StoredRun, of_command

_LINES = (STORED_RUNS / "train" / "trials.jsonl").read_text(encoding="utf-8")
_MACHINE = (STORED_RUNS / "train" / "environment.json").read_text(encoding="utf-8")
_ON_ANOTHER = {
    "environment.json": _MACHINE.replace('"cpu_model": "', '"cpu_model": "other '),
    "run.json": '{"verb": "train", "flags": ["--profile"]}',
}
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
    _explain("pickled results", {"r/results.pkl": b"\x80\x04K\x01."}, "r is not a run folder"),
    _trials("no results", "", "r"),
    _trials("only a newer schema", _LINES.replace('"schema_version":"2.0"', '"schema_version":"9.0"'), "r"),
    of_command("report: torch checkpoint", "report m.pt", "m.pt", files={"m.pt": b"PK\x03\x04"}),
    of_command("report: folder without runs", "report d", "d", files={"d/x": "x"}),
    of_command(
        "compare: folder without runs",
        "compare r d",
        "d: contains no run",
        files={"r": StoredRun("train"), "d": Folder()},
    ),
    of_command(
        "compare: another job", "compare r c", "r", files={"r": StoredRun("train"), "c": StoredRun("memory")}
    ),
    of_command(
        "compare: other hardware",
        "compare r s",
        "--any-hardware",
        files={
            "r": StoredRun("train"),
            "s": StoredRun("train", _ON_ANOTHER),
        },
        code=ExitCode.CANNOT_RUN,
    ),
    of_command("resume: empty folder", "resume r", "r", files={"r": Folder()}),
    of_command(
        "resume: run of another machine",
        "resume r --repeats=2",
        "r was measured on another machine",
        files={"r": StoredRun("train", _ON_ANOTHER)},
        code=ExitCode.CANNOT_RUN,
    ),
    of_command(
        "resume: without an experiment",
        "resume r",
        "r",
        files={"r": StoredRun("train", {"experiment.yaml": None})},
    ),
    of_command(
        "resume: without a record",
        "resume r",
        "r does not record which command created it",
        files={"r": StoredRun("train", {"run.json": None})},
    ),
    of_command(
        "resume: experiment with an unknown key",
        "resume r",
        "unknown key batchsize; did you mean batch_size?",
        files={"r": StoredRun("train", {"experiment.yaml": "batchsize: 4\n"})},
    ),
    of_command(
        "resume: experiment with a python object",
        "resume r",
        "are not allowed",
        files={"r": StoredRun("train", {"experiment.yaml": "a: !!python/object/apply:os.system [id]\n"})},
    ),
    of_command(
        "resume by the verb: number as a key",
        "train --resume --output-dir=r --device=cpu",
        "r",
        files={"r": StoredRun("train", {"environment.json": None, "experiment.yaml": "4: 5\n"})},
    ),
)

_IMPORTED = (
    of_command("import: missing", "comm --import gone", "gone: cannot be read: No such file"),
    of_command("import: device", "comm --import /dev/zero", "/dev/zero: too large"),
    _import("folder", Folder(), "n: cannot be read: Is a directory"),
    _import("not text", b"\xff\xfe", "n: not text"),
    _import("another text", "hello\nworld\n", "n"),
    of_command(
        "import: ranks in words",
        "comm --import n --world-size two",
        "--world-size",
        "'two'",
        files={"n": _TABLE},
    ),
    of_command("import: no ranks", "comm --import n --world-size 0", "--world-size", files={"n": _TABLE}),
)

_NETWORKS = (
    _network("unknown name", "nvlink44", "nvlink44", "nvlink4"),
    _network("missing file", "./gone.json", "--network ./gone.json: no such file"),
    _network("pipe", "p.json", "--network p.json", content=Fifo()),
    _network(
        "curve of one rank",
        "c.json",
        "--network c.json: has no curve of two",
        content='{"curves": [{"collective": "all_reduce", "world_size": 1, "points": [[8, 1.0]]}]}',
    ),
    _network("deep JSON", "c.json", "--network c.json", content='{"curves":' * 5000),
    of_command(
        "predict: run without a profile", "predict r", "r", "profile", files={"r": StoredRun("train")}
    ),
    of_command("predict: run of collectives alone", "predict r", "r", files={"r": StoredRun("comm")}),
)

CASES = (*_EXPLAINED, *_IMPORTED, *_NETWORKS)
