"""The sbatch script of a run: every launch is a step of one allocation; requeued when time is up.

Values in `#SBATCH` lines are not read by a shell, so they must match a pattern; all others are quoted.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.measuring import NEXT_LAUNCH
from scalescope.errors import BadInput, ExitCode

TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={job_name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks_per_node}
#SBATCH --cpus-per-task={cpus_per_task}
#SBATCH --gres=gpu:{gpus_per_node}
#SBATCH --partition={partition}
#SBATCH --account={account}
#SBATCH --time={time}
#SBATCH --output={output}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@60

# A minute before the time limit, or when it is preempted, the job is requeued. What is finished is kept, and
# the next start continues from there. A job that finished nothing is not requeued.
finished() {
    echo "$(($(grep -cE '"status":"(ok|oom|invalid)"' {run_folder}/trials.jsonl 2>/dev/null)))"
}
stored() {
    echo "$(($(grep -c '' {run_folder}/trials.jsonl 2>/dev/null)))"
}
at_start=$(finished)
requeue() {
    if ((${SLURM_RESTART_COUNT:-0} >= 20)); then
        echo "scalescope: started 20 times and not finished: giving up" >&2
        return
    fi
    if (($(finished) <= at_start)); then
        echo "scalescope: nothing was finished since the start: not requeued; give more --time" >&2
        return
    fi
    echo "requeued; what is finished is kept"
    scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1

{setup}
cd {directory} || exit 7
export OMP_NUM_THREADS={cpus_per_task}

# Every launch is a separate step with new processes: launches are independent of each other.
status=0
code_file=$(mktemp)
for launch in {launches}; do
    : >"$code_file"
    before=$(stored)
    {
        srun --export=ALL --nodes={nodes} --ntasks={tasks} --cpus-per-task={cpus_per_task} \\
            --kill-on-bad-exit=1 {command} --only-launch="$launch"
        echo "$?" >"$code_file" # a `wait` that a signal ends may lose the step's status
    } &
    while kill -0 "$!" 2>/dev/null; do wait "$!"; done
    code=$(cat "$code_file")
    code=${code:-1}
    ((code == {search_over})) && status=0 && break  # of a search, this was the last launch
    ((code == 0)) || status=$code
    ((code == 2 || code == 3)) && break  # what cannot run now cannot run in the next launch either
    [[ $launch == next ]] && ((code != 0 && $(stored) == before)) && break  # it would fail again
done
rm -f "$code_file"
exit "$status"
"""

# A training command starts its own ranks, on other nodes by an srun of its own, so none may surround it.
_SRUN = """\
srun --export=ALL --nodes={nodes} --ntasks={tasks} --cpus-per-task={cpus_per_task} \\
            --kill-on-bad-exit=1 """
COMMAND_TEMPLATE = (
    TEMPLATE.replace(_SRUN, "")
    .replace("export OMP_NUM_THREADS={cpus_per_task}\n", "")
    .replace("Every launch is a separate step with new processes", "Every launch starts the command anew")
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]{0,255}")  # SLURM takes several partitions
_PATH = re.compile(r"/[A-Za-z0-9._/+@=:,-]*")
_SLURM_TIME = re.compile(r"(?:[0-9]{1,4}-)?[0-9]{1,3}(?::[0-5]?[0-9]){1,2}")
_DURATION = re.compile(r"([0-9]{1,6})(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SHORTEST_TIME_S = 300  # the last minute of a job is for requeueing
_IN_A_STEP = re.compile(r"(?m)^(?!\s*#).*\bsrun\b.*\{command\}")
# Not `${nodes}`, which is the shell's.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """All that the script of a run contains."""

    name: str
    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    run_folder: Path
    output: Path
    directory: Path
    command: tuple[str, ...]
    launches: int  # at most, where they are made in turn
    in_turn: bool = False  # each is decided by the results so far, until a step says that it was the last
    of_command: bool = False  # a training command starts the ranks, not srun
    gpus_per_node: int | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    setup: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node


def sbatch_script(job: SlurmJob, template: str | None = None) -> str:
    """The script; a line of the template that only hands on a value that was not given is left out."""
    if template is None:
        template = COMMAND_TEMPLATE if job.of_command else TEMPLATE
    _check_template(template, job)
    values = _values(job)
    filled = (_filled(line, number, values) for number, line in enumerate(template.splitlines(), start=1))
    lines = [line for line in filled if line is not None]
    command = values["command"]
    assert command is not None
    if not any(command in line for line in lines if not line.lstrip().startswith("#")):
        raise BadInput("--slurm-template: {command} appears only in comments, so the job would run nothing")
    return "\n".join(lines) + "\n"


def _check_template(template: str, job: SlurmJob) -> None:
    """Refuse a template whose job could not make every launch of the run."""
    needed = {
        "{command}": "so the job would run nothing",
        "{launches}": "so the job would not make every launch: for launch in {launches}; do ...; done",
        "--only-launch": 'so steps would not know their launch: {command} --only-launch="$launch"',
    }
    if job.in_turn:
        needed["{search_over}"] = (
            "so the job would not end with the search: (($? == {search_over})) && break after each step"
        )
    for words, why in needed.items():
        if words not in template:
            raise BadInput(f"--slurm-template: {words} is missing, {why}")
    if job.of_command and _IN_A_STEP.search(template.replace("\\\n", " ")):
        raise BadInput(
            "--slurm-template: {command} is started by srun, but a training command starts its own ranks; "
            "write {command} without srun"
        )


def _values(job: SlurmJob) -> dict[str, str | None]:
    """What stands for each placeholder, refused where it could mean something else to sbatch or the shell."""
    return {
        "job_name": _allowed(job.name, _NAME, "--name"),
        "nodes": str(int(job.nodes)),
        "tasks_per_node": str(int(job.tasks_per_node)),
        "tasks": str(int(job.tasks)),
        "cpus_per_task": str(int(job.cpus_per_task)),
        "gpus_per_node": None if job.gpus_per_node is None else str(int(job.gpus_per_node)),
        "partition": None if job.partition is None else _allowed(job.partition, _NAMES, "--partition"),
        "account": None if job.account is None else _allowed(job.account, _NAME, "--account"),
        "time": None if job.time is None else _slurm_time(job.time),
        "output": _allowed(str(job.output), _PATH, "--output-dir") + "/slurm-%j.out",
        "run_folder": _quoted(str(job.run_folder)),
        "directory": _quoted(str(job.directory)),
        "setup": "\n".join(_shell_lines(job.setup)) or None,
        "launches": _launches(job),
        "search_over": str(int(ExitCode.SEARCH_OVER)),
        "command": " ".join(_quoted(word) for word in job.command),
    }


def _launches(job: SlurmJob) -> str:
    """What --only-launch gets, one word per step."""
    if job.in_turn:
        return f"$(printf '{NEXT_LAUNCH} %.0s' {{1..{int(job.launches)}}})"
    return " ".join(map(str, range(job.launches)))


def _filled(line: str, number: int, values: dict[str, str | None]) -> str | None:
    """A line with its values, in one pass: what a value holds is never filled in again."""
    for name in _PLACEHOLDER.findall(line):
        if name not in values or values[name] is not None:
            continue
        if line.startswith("#SBATCH") or line.strip() == f"{{{name}}}":
            return None
        raise BadInput(
            f"--slurm-template: line {number} requires {{{name}}}; "
            f"give --{name.replace('_', '-')}, or remove it from the line"
        )
    return _PLACEHOLDER.sub(lambda match: values.get(match[1]) or match[0], line)


def _allowed(text: str, pattern: re.Pattern[str], flag: str) -> str:
    if not pattern.fullmatch(text):
        raise BadInput(
            f"{flag}: {text!r} is not allowed in an sbatch script; use letters, digits, '.', '_', '-'"
        )
    return text


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise BadInput(f"{text!r} is not allowed in an sbatch script")
    return shlex.quote(text)


def _shell_lines(setup: tuple[str, ...]) -> list[str]:
    """The user's lines for the job, unchanged."""
    lines = [line for text in setup for line in text.split("\n")]
    for line in lines:
        if not line.replace("\t", " ").isprintable():
            raise BadInput(f"--setup: {line!r} is not a line of a shell script")
        if line.lstrip().startswith("#SBATCH"):
            raise BadInput(f"--setup: sbatch would ignore {line!r} at this position; use --slurm-template")
    return lines


def _slurm_time(text: str) -> str:
    """A limit as SLURM takes it; a bare number is refused: it would be minutes there and seconds here."""
    if match := _DURATION.fullmatch(text):
        seconds = int(match[1]) * _SECONDS[match[2]]
        minutes = seconds // 60
        written = f"{minutes // 60:02}:{minutes % 60:02}:{seconds % 60:02}"
    elif _SLURM_TIME.fullmatch(text):
        seconds, written = _seconds_of(text), text
    else:
        raise BadInput(f"--time: expected a time such as 30m, 2h or 1-12:00:00, got {text!r}")
    if seconds == 0:
        raise BadInput(f"--time: {text} means no limit to SLURM; leave --time out, or give 5m or more")
    if seconds < _SHORTEST_TIME_S:
        raise BadInput(f"--time: must be at least 5m, got {text}")
    return written


def _seconds_of(text: str) -> int:
    """SLURM's D-HH:MM[:SS], HH:MM:SS or MM:SS."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash and len(parts) == 2:
        parts.append(0)
    units = (1, 60, 3600)
    return int(days or 0) * 86_400 + sum(n * unit for n, unit in zip(parts[::-1], units, strict=False))
