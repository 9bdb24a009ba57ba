"""Finds mistakes that people copy from job script to job script: each with its line and its mend."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One finding in a job script."""

    line: int
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as the shell reads it: continued ones joined, comments taken away."""

    number: int
    text: str
    is_directive: bool = False


_NODE_LIST = r"\$\{?SLURM_(?:JOB_|STEP_)?NODELIST\}?"
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_SRUN = re.compile(r"\bsrun\b")
_COMMENT = re.compile(r"(?:^|\s)#(?!SBATCH).*")
_ENDPOINT = r"(?:--rdzv[-_]endpoint|--master[-_]addr|\bMASTER_ADDR)(?:=|\s+)[\"']?"
_COPY_OF_LIST = re.compile(rf"\b([A-Za-z_]\w*)=[\"']?{_NODE_LIST}[\"']?(?:\s|;|$)")
_FIXED_PORT = re.compile(
    r"(?:--master[-_]port(?:=|\s+)|\bMASTER_PORT=)[\"']?([0-9]{2,5})\b"
    r"|--rdzv[-_]endpoint(?:=|\s+)\S*?:([0-9]{2,5})\b"
    rf"|{_NODE_LIST}:([0-9]{{2,5}})\b"
)
_PORT_MEND = "let the port depend on the job: MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"


def lint(script: str) -> list[Mistake]:
    """All mistakes of a script, in the order of its lines."""
    lines = list(_lines(script))
    found = [mistake for rule in _RULES for mistake in rule(lines)]
    return sorted(dict.fromkeys(found), key=lambda one: one.line)


def _lines(script: str) -> Iterator[_Line]:
    begun, kept = 0, ""
    for number, raw in enumerate(script.splitlines(), start=1):
        if raw.startswith("#SBATCH"):
            yield _Line(number, re.sub(r"\s#.*", "", raw.removeprefix("#SBATCH")), is_directive=True)
            continue
        text = _COMMENT.sub("", raw)
        begun = begun or number
        if text.endswith("\\"):
            kept += text[:-1] + " "
            continue
        if (kept + text).strip():
            yield _Line(begun, kept + text)
        begun, kept = 0, ""
    if kept.strip():
        yield _Line(begun, kept)


def _node_list_as_address(lines: list[_Line]) -> Iterator[Mistake]:
    copies = [match[1] for line in lines for match in _COPY_OF_LIST.finditer(line.text)]
    names = [_NODE_LIST, *(rf"\$\{{?{name}\b\}}?" for name in copies if name != "MASTER_ADDR")]
    pattern = re.compile(rf"{_ENDPOINT}(?:{'|'.join(names)})|{_NODE_LIST}:[0-9$]")
    for line in lines:
        if pattern.search(line.text):
            yield Mistake(
                line.number,
                "the ranks are to meet at a list of nodes, which is no host as soon as there are two",
                'take the first: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )


def _several_launchers(lines: list[_Line]) -> Iterator[Mistake]:
    starts = [line for line in lines if not line.is_directive and _TORCHRUN.search(line.text)]
    if not starts:
        return
    directives = [line for line in lines if line.is_directive]
    mend = "one task for each node (--ntasks-per-node=1) and torchrun's --nproc_per_node for the ranks"
    for line in (one for one in lines if not one.is_directive and _SRUN.search(one.text)):
        options = _options(line.text[: _end_of_srun(line.text)])
        if _tasks_of(options) != (None, None) and _launchers(options, directives) > 1:
            yield Mistake(line.number, _too_many(_launchers(options, directives)), mend)
        if _tasks_of(options) != (None, None):
            return
    count = _launchers({}, directives)
    if count > 1:
        asked = next(one for one in directives if _tasks_of(_options(one.text)) != (None, None))
        yield Mistake(asked.number, _too_many(count), mend)


def _too_many(count: int) -> str:
    return f"{count} tasks a node together with torchrun: each starts a launcher with ranks of its own"


def _end_of_srun(text: str) -> int:
    """Where srun's own options end and the command it starts begins."""
    match = _TORCHRUN.search(text)
    return match.start() if match else len(text)


def _launchers(options: dict[str, str], directives: list[_Line]) -> int:
    """Tasks of a node, as srun's options or those of the job say."""
    of_job: dict[str, str] = {}
    for line in directives:
        of_job |= _options(line.text)
    tasks, per_node = _tasks_of(options)
    if tasks is None and per_node is None:
        tasks, per_node = _tasks_of(of_job)
    nodes = _number(options.get("nodes")) or _number(of_job.get("nodes")) or 1
    if per_node is not None:
        return per_node
    return math.ceil((tasks or 1) / nodes)


def _tasks_of(options: dict[str, str]) -> tuple[int | None, int | None]:
    return _number(options.get("ntasks")), _number(options.get("ntasks-per-node"))


def _number(text: str | None) -> int | None:
    match = re.match(r"[0-9]+", text or "")
    return int(match[0]) if match else None


_SHORT = {"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus"}
_OPTION = re.compile(r"(?:^|\s)(?:--([a-z][a-z-]*)(?:[=\s]\s*([^\s-]\S*))?|-([A-Za-z])\s*=?\s*([^\s-]\S*)?)")


def _options(text: str) -> dict[str, str]:
    """SLURM's options in a line, under their long names."""
    found: dict[str, str] = {}
    for match in _OPTION.finditer(text):
        name = match[1] or _SHORT.get(match[3], match[3])
        found[name] = (match[2] or match[4] or "").strip("\"'")
    return found


def _pmix(lines: list[_Line]) -> Iterator[Mistake]:
    for line in lines:
        if re.search(r"--mpi[=\s]\s*[\"']?pmix", line.text):
            yield Mistake(
                line.number,
                "--mpi=pmix fails where SLURM was built without PMIx, and torch does not use it",
                "leave it out, or --mpi=none",
            )


def _gpus_per_task(lines: list[_Line]) -> Iterator[Mistake]:
    if not any(_TORCHRUN.search(line.text) for line in lines):
        return
    for line in lines:
        if re.search(r"--gpus-per-task\b", line.text):
            yield Mistake(
                line.number,
                "GPUs for each task together with torchrun: torchrun is one task, whose ranks share them",
                "ask for the GPUs of a node: --gpus-per-node=N",
            )


def _no_cores(lines: list[_Line]) -> Iterator[Mistake]:
    asked = re.compile(r"--cpus-per-(?:task|gpu)\b|(?:^|\s)-c[\s=]?[0-9$]")
    places = [line for line in lines if line.is_directive or _SRUN.search(line.text)]
    if not any(asked.search(line.text) for line in places):
        last = max((line.number for line in lines if line.is_directive), default=1)
        yield Mistake(
            last,
            "no --cpus-per-task: a task gets one core, for the ranks and their data loaders together",
            "#SBATCH --cpus-per-task=N, and the same for srun, which does not take it over since SLURM 22.05",
        )


def _no_thread_count(lines: list[_Line]) -> Iterator[Mistake]:
    started = [line for line in lines if not line.is_directive and _starts_ranks(line.text)]
    if started and not any("OMP_NUM_THREADS=" in line.text for line in lines):
        yield Mistake(
            started[0].number,
            "OMP_NUM_THREADS is not set: torchrun makes it 1, and without it every rank takes all cores",
            "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK, divided by the ranks of a task",
        )


def _starts_ranks(text: str) -> bool:
    return bool(_SRUN.search(text) or _TORCHRUN.search(text) or re.search(r"\bpython[0-9.]*\b", text))


def _fixed_port(lines: list[_Line]) -> Iterator[Mistake]:
    for line in lines:
        if match := _FIXED_PORT.search(line.text):
            port = next(group for group in match.groups() if group)
            yield Mistake(line.number, f"port {port} is fixed: two jobs on one node meet there", _PORT_MEND)


def _late_directive(lines: list[_Line]) -> Iterator[Mistake]:
    first = next((line.number for line in lines if not line.is_directive), math.inf)
    for line in lines:
        if line.is_directive and line.number > first:
            yield Mistake(
                line.number,
                f"sbatch reads no #SBATCH after the first command (line {first}): this one does nothing",
                "move it to the top",
            )


_RULES: tuple[Callable[[list[_Line]], Iterator[Mistake]], ...] = (
    _node_list_as_address,
    _several_launchers,
    _pmix,
    _gpus_per_task,
    _no_cores,
    _no_thread_count,
    _fixed_port,
    _late_directive,
)
