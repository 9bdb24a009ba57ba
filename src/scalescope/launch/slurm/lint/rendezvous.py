"""Mistakes in how ranks find each other: addresses, ports, numbers of nodes."""

import re
from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import LintedJob, Mistake, slurm_options
from scalescope.launch.slurm.lint.launches import LaunchCommand
from scalescope.launch.slurm.lint.nodes import FIRST_NODE, PORT_OF_JOB, line_of_nodes, nodes_of_launch
from scalescope.launch.slurm.lint.script import DOUBLE, SINGLE, ShellCommand, assignments, commands
from scalescope.launch.slurm.lint.torchrun import numbers_nodes_itself

_NODE_LIST = r"\$\{?SLURM_(?:JOB_|STEP_)?NODELIST\}?"
ADDRESS = r"(?:--rdzv[-_]endpoint|--master[-_]addr|--main[-_]process[-_]ip|\bMASTER_ADDR)(?:=|\s+)[\"']?"
FIRST_HOST = f"use the first host: {FIRST_NODE}"


def node_list_as_address(job: LintedJob) -> Iterator[Mistake]:
    given = [assignment for line in job.script.lines for assignment in assignments(line)]
    copies = [name for name, value, _ in given if re.fullmatch(rf"[\"']?{_NODE_LIST}[\"']?", value)]
    names = [_NODE_LIST, *(rf"\$\{{?{name}\b\}}?" for name in copies if name != "MASTER_ADDR")]
    pattern = re.compile(rf"{ADDRESS}(?:{'|'.join(names)})|{_NODE_LIST}:[0-9$]")
    for line in job.script.lines:
        for match in pattern.finditer(line.text):
            yield Mistake(
                line.number_at(match.start()),
                "the rendezvous address is a list of nodes, which is not a host name for two or more nodes",
                FIRST_HOST,
            )


_ENDPOINT = r"--rdzv[-_]endpoint(?:=|\s+)[\"']?"
_BEFORE_PORT = (
    r"(?:--(?:master|main[-_]process)[-_]port(?:=|\s+)[\"']?"
    rf"|{_ENDPOINT}(?:\$\([^()]{{0,200}}\)|[^\s$]|\$(?!\()){{0,200}}?:)"
)
_FIXED = r"(?:\$\{(?P<unless>\w+):?[-=])?(?P<port>[0-9]{2,5})(?![\w$])"
_FIXED_HERE = re.compile(rf"(?:{_BEFORE_PORT}|{_NODE_LIST}:|\b(?P<name>MASTER_PORT)=[\"']?){_FIXED}")
_PORT_VARIABLE = re.compile(rf"{_BEFORE_PORT}\$\{{?([A-Za-z_]\w*)")
_ENDPOINT_VARIABLE = re.compile(rf"{_ENDPOINT}\$\{{?([A-Za-z_]\w*)\}}?(?![\w:$])")
_REFERENCE = re.compile(r"[\"']?\$\{?([A-Za-z_]\w*)\}?[\"']?")


def fixed_port(job: LintedJob) -> Iterator[Mistake]:
    if job.has_whole_nodes:  # then no other job is on the node
        return
    for line in job.script.lines:
        for match in _FIXED_HERE.finditer(line.text):
            if _is_kept(match, job):
                yield _fixed(line.number_at(match.start("port")), match, match["name"])
    ports, endpoints = _names_of_ports(job)
    for line in job.script.lines:
        for name, value, offset in assignments(line):
            before = r"[\"']?" if name in ports else r".*:" if name in endpoints else None
            held = re.fullmatch(rf"{before}{_FIXED}\}}?[\"']?", value) if before else None
            if held and name != "MASTER_PORT" and _is_kept(held, job):
                yield _fixed(line.number_at(offset), held, name if name in ports else None)


def _is_kept(match: re.Match[str], job: LintedJob) -> bool:
    """Whether the number is what counts: a default does not where the script gives another value."""
    return match["unless"] is None or job.variables.get(match["unless"], match["port"]).isdigit()


def _fixed(number: int, match: re.Match[str], name: str | None) -> Mistake:
    other = match["unless"] if (match["unless"] or "1")[0].isalpha() else None
    fix = f"{name or other or 'export MASTER_PORT'}={PORT_OF_JOB}"
    return Mistake(
        number,
        f"port {match['port']} is fixed: two jobs on the same node would use it",
        f"make the port depend on the job: {fix}{'' if name or other else ', and $MASTER_PORT here'}",
    )


def _names_of_ports(job: LintedJob) -> tuple[set[str], set[str]]:
    """Variables that come to stand where a port is due, and where an endpoint is, also by way of others."""
    texts = [line.text for line in job.script.lines]
    ports = {match[1] for text in texts for match in _PORT_VARIABLE.finditer(text)} | {"MASTER_PORT"}
    endpoints = {match[1] for text in texts for match in _ENDPOINT_VARIABLE.finditer(text)}
    given = [(name, value) for line in job.script.lines for name, value, _ in assignments(line)]
    for name, value in reversed(given):  # a variable is set before it is used
        if name in ports and (match := _REFERENCE.fullmatch(value)):
            ports.add(match[1])
        if name in endpoints and (match := re.fullmatch(r".*:\$\{?([A-Za-z_]\w*)\}?[\"']?", value)):
            ports.add(match[1])
    return ports, endpoints


_PORT_OPTION = re.compile(
    r"--standalone|--master[-_]port|--rdzv[-_]endpoint|PET_MASTER_PORT=|PET_RDZV_ENDPOINT="
)


def shared_default_port(job: LintedJob) -> Iterator[Mistake]:
    """Several torchruns on one node; those of different nodes do not share ports."""
    launchers = {
        (launcher.line.number, launcher.command.offset): launcher
        for launcher in job.launchers
        if _is_at_default_port(launcher, job)
    }
    script = [(line.number, command) for line in job.script.lines for command in commands(line.text)]
    is_any_running = False
    for (number, command), is_repeated in zip(
        script, _repeated([command for _, command in script]), strict=True
    ):
        if "wait" in command.words:
            is_any_running = False
        launch = launchers.get((number, command.offset))
        if launch is None:
            continue
        is_left_running = command.ended_by == "&"
        if is_any_running or (is_left_running and is_repeated):
            yield Mistake(
                launch.number,
                "another torchrun runs on the node at the same time, and both use the default port 29500 "
                "(only newer versions choose a free one)",
                "torchrun --standalone, which chooses a free port",
            )
        is_any_running = is_any_running or is_left_running


def _is_at_default_port(launch: LaunchCommand, job: LintedJob) -> bool:
    if launch.started.program != "torchrun" or (launch.started.step is not None and job.nodes > 1):
        return False
    return not _PORT_OPTION.search(f"{launch.command.text} {launch.started.arguments}")


def _repeated(script: list[ShellCommand]) -> list[bool]:
    """For each command, whether a loop comes back to it without a wait."""
    repeated = []
    comes_to_end_of_loop = False
    for command in reversed(script):
        repeated.append(comes_to_end_of_loop)
        if command.words[0] in {"do", "done"} or "wait" in command.words:
            comes_to_end_of_loop = command.words[0] == "done"
    return repeated[::-1]


_RANK = r"--(?P<flag>node|machine)(?P<dash>[-_])rank(?:=|\s+)[\"']?\$\{?"
_FIRST_RANK = r"SLURM_(?:NODE|PROC)ID"


def rank_of_the_first_node(job: LintedJob) -> Iterator[Mistake]:
    """`$SLURM_NODEID` in srun's command line: the batch script's shell puts in its own, which is 0."""
    steps = [launch for launch in job.launchers if launch.started.step is not None]
    if job.nodes < 2 or all(
        launch.started.program == "torchrun" and numbers_nodes_itself(launch) for launch in steps
    ):
        return
    given = [assignment for line in job.script.lines for assignment in assignments(line)]
    copies = [
        name for name, value, _ in given if re.fullmatch(rf"[\"']?\$\{{?{_FIRST_RANK}\}}?[\"']?", value)
    ]
    for line in job.script.lines:
        shell_text = re.sub(rf"{DOUBLE}|\\.|({SINGLE})", _without_single_quoted, line.text, flags=re.DOTALL)
        found = [*re.finditer(rf"{_RANK}(?P<name>{_FIRST_RANK})\b", shell_text)]
        if copies:  # which the script has filled before any node reads them
            found += re.finditer(rf"{_RANK}(?P<name>{'|'.join(copies)})\b", line.text)
        for match in found:
            number = "$SLURM_NODEID" if match["name"] in copies else f"${match['name']}"
            flag = f"--{match['flag']}{match['dash']}rank={number}"
            yield Mistake(
                line.number_at(match.start()),
                f"${match['name']} gets its value before srun starts anything: it is 0 on every node",
                f"expand it on each node: srun bash -c '... {flag} ...' (export other variables)",
            )


def _without_single_quoted(match: re.Match[str]) -> str:
    return re.sub(r"\S", " ", match[0]) if match[1] else match[0]


_NODES = re.compile(
    r"(?P<flag>--(?:nnodes|num[-_]machines|num[-_]nodes))(?:=|\s+)[\"']?(?P<least>[0-9]+)"
    r"(?::(?P<most>[0-9]+))?(?![\w$:])"
)
_OTHER_HOST = re.compile(rf"{ADDRESS}(?!localhost|127\.|\[?::1)")


def nodes_of_another_number(job: LintedJob) -> Iterator[Mistake]:
    """A launcher that waits for more nodes than there are, or does without some of them."""
    for launch in job.launchers:
        asked, there = _NODES.search(launch.started.arguments), nodes_of_launch(launch, job)
        if asked is None or there is None:
            continue
        least, most = int(asked["least"]), int(asked["most"] or asked["least"])
        if least <= there <= most:
            continue
        number = most if most < there else least
        meets_others = number > 1 or _OTHER_HOST.search(launch.started.arguments)
        if number < there and not meets_others:  # a job of its own on every node, which may be wanted
            continue
        effect = (
            "it waits for nodes that never join" if number > there else f"the others do not join its {number}"
        )
        yield Mistake(
            line_of_nodes(launch),
            f"{launch.started.program} {asked['flag']}={number} on {there} node{'s'[: there > 1]}: {effect}",
            f"{asked['flag']}=$SLURM_NNODES"
            if "nodes" not in slurm_options(launch.started.step or "")
            else f"{asked['flag']}={there}",
        )
