"""Ranks of several nodes whose rendezvous is "this host", which is a different host on each node."""

import re
from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, number_in, slurm_options
from scalescope.launch.slurm.lint.launches import LaunchCommand
from scalescope.launch.slurm.lint.rendezvous import ADDRESS, FIRST_HOST, OTHER_NODES
from scalescope.launch.slurm.lint.script import ScriptLine, assignments, expanded, unquoted

_THIS_HOST = r"(?:localhost(?:\.localdomain)?|127(?:\.[0-9]{1,3}){3}|\[::1\]|::1)(?![\w.-])"
_DEFAULT = r"(?:\$\{\w+:?[-=])?"
_HERE = re.compile(rf"{ADDRESS}{_DEFAULT}{_THIS_HOST}")
_VALUE_HERE = re.compile(rf"[\"']?{_DEFAULT}{_THIS_HOST}\}}?(?::\S*)?")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_NODES_OF_LAUNCHER = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=|\s+)[\"']?([^\s\"']+)")


def rendezvous_at_this_host(job: LintedJob) -> Iterator[Mistake]:
    if job.nodes < 2:
        return
    known = _certain_values(job)
    lost = [rank for rank in job.ranks if _is_for_several_nodes(rank) and _meets_here(rank, known)]
    if not lost:
        return
    has_no_flag = any(
        launch.started.program == "torchrun" and not _has_address(launch, known) for launch in lost
    )
    for line, offset in _address_positions(job, known):
        launch = _launch_at(line, offset, job)
        if launch is None or launch in lost:
            yield Mistake(
                line.number_at(offset),
                f"the rendezvous of {job.nodes} nodes is this host, which is a different one on each node",
                FIRST_HOST + (", and torchrun --master_addr=$MASTER_ADDR" if has_no_flag else ""),
            )


def _is_for_several_nodes(launch: LaunchCommand) -> bool:
    if "--standalone" in launch.started.arguments:
        return False
    if launch.started.is_launcher and (nodes := _NODES_OF_LAUNCHER.search(launch.started.arguments)):
        return nodes[1] not in {"1", "1:1"}
    step = slurm_options(launch.started.step or "")
    is_on_one = 1 in {number_in(step.get("nodes")), number_in(step.get("ntasks"))}
    return bool(OTHER_NODES.search(launch.command.text)) and not is_on_one


def _meets_here(launch: LaunchCommand, known: dict[str, str]) -> bool:
    """By its own address; else by the variable, which ranks read for themselves."""
    if _has_address(launch, known):
        return bool(_HERE.search(expanded(launch.command.text, known)))
    return bool(_VALUE_HERE.match(known.get("MASTER_ADDR", "")))


def _has_address(launch: LaunchCommand, known: dict[str, str]) -> bool:
    return bool(re.search(ADDRESS, expanded(launch.command.text, known)))


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
