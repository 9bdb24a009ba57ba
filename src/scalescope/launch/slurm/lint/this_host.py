"""Ranks of several nodes whose rendezvous is "this host", which is a different host on each node."""

import re
from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake
from scalescope.launch.slurm.lint.launches import LaunchCommand
from scalescope.launch.slurm.lint.nodes import is_for_several_nodes
from scalescope.launch.slurm.lint.rendezvous import ADDRESS, FIRST_HOST
from scalescope.launch.slurm.lint.script import DOUBLE, SINGLE, ScriptLine, assignments, expanded, unquoted

_THIS_HOST = r"(?:localhost(?:\.localdomain)?|127(?:\.[0-9]{1,3}){3}|\[::1\]|::1)(?![\w.-])"
_DEFAULT = r"(?:\$\{\w+:?[-=])?"
_HERE = re.compile(rf"{ADDRESS}{_DEFAULT}{_THIS_HOST}")
_VALUE_HERE = re.compile(rf"[\"']?{_DEFAULT}{_THIS_HOST}\}}?(?::\S*)?")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")


def rendezvous_at_this_host(job: LintedJob) -> Iterator[Mistake]:
    if job.nodes < 2:
        return
    known = _certain_values(job)
    lost = [rank for rank in job.ranks if is_for_several_nodes(rank) and _meets_here(rank, known)]
    if not lost:
        return
    for line, offset in _address_positions(job, known):
        launch = _launch_at(line, offset, job)
        if launch is None or launch in lost:
            yield Mistake(
                line.number_at(offset),
                f"the rendezvous of {job.nodes} nodes is this host, which is a different one on each node",
                FIRST_HOST,
            )


_NAME_OF_NODE = re.compile(
    rf"{ADDRESS}\\?(?:\$\{{?(?:HOSTNAME|HOST|SLURMD_NODENAME)\b|\$\(\s*(?:hostname|uname -n)\b|`hostname\b)"
)


def rendezvous_at_each_node(job: LintedJob) -> Iterator[Mistake]:
    """`$HOSTNAME` that a shell on each node expands; the batch script's own is the first node's."""
    if job.nodes < 2:
        return
    for launch in job.ranks:
        if launch.started.step is None or not is_for_several_nodes(launch):
            continue
        for match in _NAME_OF_NODE.finditer(_left_to_nodes(launch.command.text)):
            yield Mistake(
                launch.line.number_at(launch.command.offset + match.start()),
                f"the rendezvous of {job.nodes} nodes is the name of each node, a different one on each",
                FIRST_HOST,
            )


def _left_to_nodes(text: str) -> str:
    """The text without what the batch script's shell expands."""

    def kept(match: re.Match[str]) -> str:
        return match[0] if match[1] else re.sub(r"(\\.)|[$`]", lambda sign: sign[1] or " ", match[0])

    return re.sub(rf"({SINGLE}|\\.)|{DOUBLE}|[$`]", kept, text, flags=re.DOTALL)


def _meets_here(launch: LaunchCommand, known: dict[str, str]) -> bool:
    """By its own address; else by the variable, which ranks read for themselves, and torchrun does not."""
    text = expanded(launch.command.text, known)
    if re.search(ADDRESS, text):
        return bool(_HERE.search(text))
    return launch.started.program != "torchrun" and bool(_VALUE_HERE.match(known.get("MASTER_ADDR", "")))


def _certain_values(job: LintedJob) -> dict[str, str]:
    """What variables hold; one that is this host in one case and not in another stands for itself."""
    known: dict[str, str] = {}
    for line in job.script.lines:
        for name, value, _ in assignments(line):
            plain = expanded(value[1:-1] if value.startswith("(") else unquoted(value), known)
            is_changed = name in known and not value.startswith(f"${name} ")
            is_unsure = is_changed and _names_this_host(known[name]) != _names_this_host(plain)
            known[name] = f"${{{name}}}" if is_unsure else plain
    return known


def _names_this_host(text: str) -> bool:
    return bool(re.search(rf"(?<![\w.:]){_THIS_HOST}", text))


def _address_positions(job: LintedJob, known: dict[str, str]) -> Iterator[tuple[ScriptLine, int]]:
    """Where this host is written for an address: at once, or in a variable that comes to stand there."""
    names = _names_of_addresses(job)
    for line in job.script.lines:
        given = {offset: (name, value) for name, value, offset in assignments(line)}
        for match in _HERE.finditer(line.text):
            name, _ = given.get(match.start(), ("", ""))
            if not name or _names_this_host(known[name]):
                yield line, match.start()
        for offset, (name, value) in given.items():
            is_address = name in names and name != "MASTER_ADDR"
            if is_address and _VALUE_HERE.match(value) and _names_this_host(known[name]):
                yield line, offset


def _names_of_addresses(job: LintedJob) -> set[str]:
    used = re.compile(rf"{ADDRESS}\$\{{?([A-Za-z_]\w*)")
    names = {match[1] for line in job.script.lines for match in used.finditer(line.text)}
    given = [(name, value) for line in job.script.lines for name, value, _ in assignments(line)]
    for name, value in reversed(given):  # a variable is set before it is used
        if name in names and (match := _REFERENCE.match(value.lstrip("\"'"))):
            names.add(match[1])
    return names


def _launch_at(line: ScriptLine, offset: int, job: LintedJob) -> LaunchCommand | None:
    for launch in job.launches:
        begin = launch.command.offset
        if launch.line == line and begin <= offset < begin + len(launch.command.text):
            return launch
    return None
