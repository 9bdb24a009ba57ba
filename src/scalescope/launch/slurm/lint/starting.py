"""Mistakes in how ranks are started and find each other."""

import re
from collections.abc import Iterator

from scalescope.launch.slurm.lint.facts import (
    DOUBLE,
    SINGLE,
    LaunchCommand,
    LintedJob,
    Mistake,
    ScriptLine,
    ShellCommand,
    assignments,
    commands,
    expanded,
    slurm_options,
    unquoted,
)
from scalescope.launch.slurm.lint.resources import (
    FIRST_NODE,
    PORT_OF_JOB,
    is_elsewhere_too,
    is_for_several_nodes,
    is_on_one_node,
    line_of_nodes,
    nodes_of_launch,
    runs_on_other_nodes,
)

# ---- torchrun on several nodes: how its nodes find each other and tell each other apart


_WITHOUT_VALUE = frozenset(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"}
)
_MODULE = re.compile(r".*?-m\s+torch\.distributed\.\w+\s+", re.DOTALL)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.DOTALL)
_FLAGS_IN_VARIABLE = re.compile(r"[\"']?\$\S*(?:--|ARG|OPT|FLAG|PARAM|DIST|RDZV|LAUNCH)", re.IGNORECASE)
_BY_VARIABLES = re.compile(r"\bPET_(?:NNODES|NODE_RANK|RDZV_\w+|MASTER_ADDR|STANDALONE)=")


def torchrun_on_first_node_only(job: LintedJob) -> Iterator[Mistake]:
    for launch, options in _for_several_nodes(job):
        if not _is_on_first_node_only(launch, job):
            continue
        needed = " " + _meeting(launch, options) if _is_static(options) or "standalone" in options else ""
        cores = "--cpus-per-task=$SLURM_CPUS_PER_TASK " if "cpus-per-task" in job.options else ""
        yield Mistake(
            launch.number,
            "torchrun for several nodes without srun: a job script runs only on the first node",
            f"start it on all nodes: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {cores}torchrun{needed}",
        )


def torchrun_without_rendezvous(job: LintedJob) -> Iterator[Mistake]:
    for launch, options in _for_several_nodes(job):
        if _is_on_first_node_only(launch, job):  # whose fix says all that is needed
            continue
        if what := _why_nodes_do_not_meet(launch, options):
            yield Mistake(
                line_of_nodes(launch), f"torchrun for several nodes {what}", _meeting(launch, options)
            )


def numbers_nodes_itself(launch: LaunchCommand) -> bool:
    """Whether --node_rank has no effect, because the rendezvous backend numbers the nodes."""
    return not _is_static(_options(launch) or {})


def _why_nodes_do_not_meet(launch: LaunchCommand, options: dict[str, str]) -> str | None:
    rank = options.get("node_rank")
    if "standalone" in options:
        return "with --standalone, which is for one node: each waits alone for the others"
    if not _is_static(options):
        return (
            None if "rdzv_endpoint" in options else "without --rdzv_endpoint: each meets at its own localhost"
        )
    if rank is None:
        return "without --node_rank or a rendezvous backend: every node takes itself for node 0"
    if rank.isdigit() and launch.started.step is not None and not is_on_one_node(launch):
        return f"with --node_rank={rank}: every node takes itself for node {rank}"
    if not {"rdzv_endpoint", "master_addr"} & options.keys():
        return "without --master_addr: each meets at its own localhost"
    return None


def _meeting(launch: LaunchCommand, options: dict[str, str]) -> str:
    """Flags by which nodes meet that srun starts with the same words, as far as they are missing."""
    replaced = [
        f"--{name}" for name in ("standalone", "node_rank", "master_addr", "master_port") if name in options
    ]
    instead = f" instead of {' and '.join(replaced)}" if replaced else ""
    if "rdzv_endpoint" in options and "standalone" not in options:
        return "--rdzv_backend=c10d" + instead
    address = _written(launch, "master_addr") or FIRST_NODE
    port = _written(launch, "master_port") or PORT_OF_JOB
    return f"--rdzv_backend=c10d --rdzv_endpoint={address}:{port}{instead}"


def _written(launch: LaunchCommand, name: str) -> str | None:
    """The value of a flag as the command spells it, without the variables that stand for it."""
    flag = name.replace("_", "[-_]")
    match = re.search(rf"--{flag}(?:=|\s+)([\"']?)([^\s\"']+)\1", launch.command.text)
    return None if match is None or re.match(r"localhost|127\.|\[?::1", match[2]) else match[2]


def _for_several_nodes(job: LintedJob) -> Iterator[tuple[LaunchCommand, dict[str, str]]]:
    """Every torchrun that others have to join, with its flags."""
    if any(_BY_VARIABLES.search(line.text) for line in job.script.lines):
        return
    for launch in job.launchers:
        options = _options(launch) if launch.started.program == "torchrun" else None
        if options and _most_nodes(options, job) > 1 and nodes_of_launch(launch, job) != 1:
            yield launch, options


def _most_nodes(options: dict[str, str], job: LintedJob) -> int:
    """Of MIN:MAX the larger; a variable holds what the job has."""
    most = options.get("nnodes", "1").rpartition(":")[2]
    return int(most) if most.isdigit() else job.nodes


def _is_static(options: dict[str, str]) -> bool:
    return options.get("rdzv_backend", "static") == "static"


def _is_on_first_node_only(launch: LaunchCommand, job: LintedJob) -> bool:
    return job.nodes > 1 and not runs_on_other_nodes(launch) and not is_elsewhere_too(job)


def _options(launch: LaunchCommand) -> dict[str, str] | None:
    """torchrun's own flags, which end at its script; None where a variable may hold more of them."""
    arguments = _MODULE.sub("", launch.started.arguments, count=1)
    options: dict[str, str] = {}
    words = [word for command in list(commands(arguments))[-1:] for word in command.words]
    while words:
        word = words.pop(0)
        if word.startswith(("$", '"$', "'$")):
            is_script = not _FLAGS_IN_VARIABLE.match(word) and not any(map(_names_script, words))
            return options if is_script else None
        if not (match := _FLAG.fullmatch(unquoted(word))):
            break
        name = match["name"].replace("-", "_")
        takes_next = match["value"] is None and name not in _WITHOUT_VALUE and words
        options[name] = unquoted(words.pop(0)) if takes_next else (match["value"] or "")[1:]
    return options


def _names_script(word: str) -> bool:
    return word == "-m" or unquoted(word).endswith(".py")


# ---- Mistakes in how ranks find each other: addresses, ports, numbers of nodes


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


# ---- Ranks of several nodes whose rendezvous is "this host", which is a different host on each node


_THIS_HOST = r"(?:localhost(?:\.localdomain)?|127(?:\.[0-9]{1,3}){3}|\[::1\]|::1)(?![\w.-])"
_DEFAULT = r"(?:\$\{\w+:?[-=])?"
_HERE = re.compile(rf"{ADDRESS}{_DEFAULT}{_THIS_HOST}")
_VALUE_HERE = re.compile(rf"[\"']?{_DEFAULT}{_THIS_HOST}\}}?(?::\S*)?")
_THIS_HOST_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")


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
        if name in names and (match := _THIS_HOST_REFERENCE.match(value.lstrip("\"'"))):
            names.add(match[1])
    return names


def _launch_at(line: ScriptLine, offset: int, job: LintedJob) -> LaunchCommand | None:
    for launch in job.launches:
        begin = launch.command.offset
        if launch.line == line and begin <= offset < begin + len(launch.command.text):
            return launch
    return None
