"""A job script as facts: directives, variables, and what it launches."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# ---- A job script as its two readers see it: sbatch the comments at its top, the shell the rest


@dataclass(frozen=True, slots=True)
class Directive:
    """A line of #SBATCH, with what keeps sbatch from reading it."""

    number: int
    text: str
    is_indented: bool = False
    comes_after: int | None = None
    """The line of the first command, where sbatch stops reading."""
    is_comment: bool = False
    """A space keeps # and SBATCH apart."""


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line as the shell reads it: without comments; where it was continued there is a line break."""

    number: int
    text: str

    def number_at(self, offset: int) -> int:
        """The line of the file that holds this place of the text."""
        return self.number + self.text.count("\n", 0, offset)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a line: its words as they are written, where it begins, and what ends it."""

    words: tuple[str, ...]
    offset: int
    text: str
    ended_by: str


@dataclass(frozen=True, slots=True)
class JobScript:
    """What a script contains for sbatch and for the shell."""

    directives: tuple[Directive, ...]
    lines: tuple[ScriptLine, ...]
    documents: tuple[str, ...]
    """Bodies of here-documents: text that this script writes or passes on, not its commands."""


SINGLE = r"'[^']*'"
DOUBLE = r'"(?:[^"\\]++|\\.)*+"'
_PIECE = re.compile(
    rf"(?P<continued>\\\n)|\\.|{SINGLE}|{DOUBLE}"
    r"|(?P<comment>(?<![^\s;&|()])\#[^\n]*)"
    r"|<<<|(?P<document><<(?P<dash>-?)[ \t]*\\?(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote))"
    r"|(?P<array>(?<=\w)\+?=\()|(?P<close>\))|(?P<newline>\n)|[^\\'\"#<\n+=)]++|.",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"#(?:SBATCH|(?P<space>[ \t]+)SBATCH(?=[ \t]+-))")


def read(script: str) -> JobScript:
    """Take a script apart; whatever no shell could read is taken as plain words."""
    return _Reader(script).read()


class _Reader:
    """Goes through a script once, piece by piece."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._number = self._begun = 1
        self._pieces: list[str] = []
        self._in_array = False
        self._unclosed: set[str] = set()
        self._ends: list[tuple[str, bool]] = []
        self._directives: list[Directive] = []
        self._lines: list[ScriptLine] = []
        self._documents: list[str] = []

    def read(self) -> JobScript:
        position = 0
        while match := _PIECE.match(self._script, position):
            position = match.end()
            if match["comment"]:
                self._take_comment(match)
            elif match["newline"] and not self._in_array:
                self._end_line()
                self._number += 1
                position = self._skip_documents(position)
                self._begun = self._number
            else:
                self._take(match)
        self._end_line()
        return JobScript(tuple(self._directives), tuple(self._lines), tuple(self._documents))

    def _take(self, match: re.Match[str]) -> None:
        if match["document"]:
            self._ends.append((match["end"], bool(match["dash"])))
        elif match["array"] or match["close"]:
            self._in_array = bool(match["array"])
        self._number += match[0].count("\n")
        self._pieces.append("\n" if match["continued"] else match[0])

    def _take_comment(self, match: re.Match[str]) -> None:
        before = self._script[self._script.rfind("\n", 0, match.start()) + 1 : match.start()]
        opening = _DIRECTIVE.match(match[0])
        if before.strip() or opening is None:
            return
        is_within_line = any(piece.strip() for piece in self._pieces)
        first = self._lines[0].number if self._lines else self._begun if is_within_line else None
        text = re.sub(r"#.*", "", match[0][opening.end() :])
        if not opening["space"]:
            self._directives.append(Directive(self._number, text, bool(before), first))
        elif first is None:
            self._directives.append(Directive(self._number, text, is_comment=True))

    def _end_line(self) -> None:
        text = "".join(self._pieces)
        if text.strip():
            self._lines.append(ScriptLine(self._begun, _without_printed_text(text)))
        self._pieces, self._in_array = [], False

    def _skip_documents(self, position: int) -> int:
        for end, dashed in self._ends:
            closing = re.compile(("^\t*" if dashed else "^") + end + "$\n?", re.MULTILINE)
            # Without its end it is not a document: a shift in arithmetic is written the same way.
            match = None if end in self._unclosed else closing.search(self._script, position)
            if match is None:
                self._unclosed.add(end)
            else:
                self._documents.append(self._script[position : match.start()])
                self._number += self._script.count("\n", position, match.end())
                position = match.end()
        self._ends = []
        return position


_IN_PARENTHESES = r"\((?:[^()]++|\((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+\))*+\)"
_TOKEN = re.compile(
    rf"(?P<word>(?:{SINGLE}|{DOUBLE}|\\.|[$=]{_IN_PARENTHESES}|`[^`]*`|[<>]&[0-9-]?|&>>?|[^\s;&|()])+)"
    r"|(?P<end>&&|\|\||;;|\|&|[;&|()\n])|\s",
    re.DOTALL,
)
_SUBSTITUTED = re.compile(rf"\$({_IN_PARENTHESES})|(`[^`]*`)", re.DOTALL)


def commands(text: str, start: int = 0) -> Iterator[ShellCommand]:
    """The commands of a line, those of substitutions before the ones that use them."""
    words: list[re.Match[str]] = []
    for token in _TOKEN.finditer(text):
        if token["word"]:
            words.append(token)
            for inner in _SUBSTITUTED.finditer(token[0]):
                group = 1 if inner[1] else 2
                yield from commands(inner[group][1:-1], start + token.start() + inner.start(group) + 1)
        elif token["end"] and token["end"] != "\n":
            yield from _command(words, text, start, token["end"])
            words = []
    yield from _command(words, text, start, "")


def _command(words: list[re.Match[str]], text: str, start: int, ended_by: str) -> Iterator[ShellCommand]:
    if words:
        spelled = text[words[0].start() : words[-1].end()]
        yield ShellCommand(tuple(word[0] for word in words), start + words[0].start(), spelled, ended_by)


def _without_printed_text(text: str) -> str:
    """The line without what it only prints: that starts nothing and sets nothing."""
    kept, end = [], 0
    for command in sorted(commands(text), key=lambda command: command.offset):
        if command.words[0] in {"echo", "printf"} and command.offset >= end:
            kept += [text[end : command.offset], re.sub(r"\S", " ", command.text)]
            end = command.offset + len(command.text)
    return "".join([*kept, text[end:]])


def unquoted(word: str) -> str:
    """A word as its command gets it, as far as that is known without running it."""
    if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0]:
        return word[1:-1]
    return re.sub(r"['\"]", "", word)


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_REFERENCE = re.compile(
    r"(?<!\\)(?:\"?\$\{(\w+)\[[@*]\]\}\"?|\$\{(\w+)\}|\$([A-Za-z_]\w*)|\$\{(\w+):?[-=]([^{}]*)\})"
)
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset", "env"})
_MOST_EXPANDED = 4_000  # variables that double each other would grow without bound


def assignments(line: ScriptLine) -> Iterator[tuple[str, str, int]]:
    """Names that a line gives values to, the values as they are written, and where."""
    for command in commands(line.text):
        position = command.offset
        for word in command.words:
            position = line.text.find(word, position)
            if match := _ASSIGNMENT.fullmatch(word):
                yield match[1], (f"${match[1]} {match[3]}" if match[2] else match[3]), position
            elif word not in _DECLARING and not word.startswith("-"):
                break


def variables(lines: tuple[ScriptLine, ...]) -> dict[str, str]:
    """What the script's variables hold at its end, as far as the script shows it."""
    known: dict[str, str] = {}
    for line in lines:
        for name, value, _ in assignments(line):
            plain = value[1:-1] if value.startswith("(") else unquoted(value)
            known[name] = expanded(plain.replace("\\\n", " "), known)
    return known


def expanded(text: str, known: dict[str, str]) -> str:
    """The text with the variables that are known, as long as it stays short; the others stay."""
    room = _MOST_EXPANDED

    def held(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1] or match[2] or match[3] or match[4]
        value = known.get(name, match[0] if match[5] is None else match[5])
        room -= len(value)
        return value if room >= 0 else match[0]

    return _REFERENCE.sub(held, text)


# ---- What the commands of a job script start on its nodes: launchers, ranks, or something else


LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
"""Programs that a node needs once, because each starts the ranks of its node."""

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_BEFORE_COMMANDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "nohup", "eval", "env"}
)
_WRAPPERS = frozenset(
    {
        "apptainer",
        "singularity",
        "docker",
        "podman",
        "enroot",
        "shifter",
        "numactl",
        "taskset",
        "nice",
        "ionice",
    }
    | {"timeout", "stdbuf", "setsid", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "nsys", "ncu"}
    | {"mpirun", "mpiexec"}
)
_SHELLS = frozenset({"bash", "sh", "zsh"})
_PYTHON = re.compile(r"python[0-9.]*")
_SRUN_FLAGS = frozenset(  # they take no value, so the next word may be the command
    {
        "-l",
        "-u",
        "-K",
        "-k",
        "-O",
        "-s",
        "-E",
        "-v",
        "-Q",
        "-X",
        "--label",
        "--unbuffered",
        "--kill-on-bad-exit",
    }
    | {
        "--no-kill",
        "--overcommit",
        "--oversubscribe",
        "--exclusive",
        "--exact",
        "--overlap",
        "--pty",
        "--whole",
    }
    | {"--preserve-env", "--verbose", "--quiet", "--disable-status", "--contiguous", "--container-mount-home"}
    | {"--no-container-mount-home", "--container-writable", "--no-container-entrypoint"}
)
_HARMLESS = frozenset(
    {
        "hostname",
        "nvidia-smi",
        "rocm-smi",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "ls",
        "cat",
        "tar",
        "rsync",
        "unzip",
        "date",
    }
    | {"env", "printenv", "sleep", "true", "ip", "df", "free", "lscpu", "sbcast", "test", "id"}
)


@dataclass(frozen=True, slots=True)
class Started:
    """The program that a command comes down to, past srun, containers and shells."""

    program: str
    arguments: str
    step: str | None = None
    """srun's own options; None without srun."""

    @property
    def is_launcher(self) -> bool:
        return self.program in LAUNCHERS

    @property
    def may_be_ranks(self) -> bool:
        return self.program not in _HARMLESS and not self._is_tool

    @property
    def _is_tool(self) -> bool:
        """Python that is not training: a module like pip or venv, or a line of code."""
        if re.match(r"-m (?:pip|venv|ensurepip|json|http|zipfile|tarfile)\b", self.program):
            return True
        is_line = re.match(r"(?:-\w+\s+)*(?:-c|-V|--version)\b", self.arguments)
        return self.program.startswith("python") and bool(is_line)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A started program in its place in the script."""

    number: int
    line: ScriptLine
    command: ShellCommand
    started: Started


def launches(script: JobScript, known: dict[str, str]) -> Iterator[LaunchCommand]:
    """Everything that may be ranks, in the order of the script."""
    for line in script.lines:
        for command in commands(line.text):
            if started := _first_launcher(expanded(command.text, known), None):
                yield LaunchCommand(line.number_at(command.offset), line, command, started)


def _first_launcher(text: str, step: str | None) -> Started | None:
    programs = [program for command in commands(text) if (program := _started(command.words, step))]
    return max(programs, key=lambda program: (program.is_launcher, program.may_be_ranks), default=None)


def _started(words: Sequence[str], step: str | None) -> Started | None:
    """Look past what only stands before a command; a name among the arguments of others means nothing."""
    within_wrapper = False
    for index, word in enumerate(words):
        name = unquoted(word).rsplit("/", 1)[-1]
        if _names_a_program(name) and (known := _known(name, words[index + 1 :], step)):
            return known
        if name == "srun" and step is None:
            return _started_by_srun(words[index + 1 :])
        if name in _SHELLS:
            return _started_by_shell(words[index + 1 :], step)
        if name in _WRAPPERS or word.startswith(("$", '"$')):
            within_wrapper = True
        elif not within_wrapper and name not in _BEFORE_COMMANDS and not re.match(r"\w+\+?=", word):
            return None if step is None else Started(name, " ".join(words[index + 1 :]), step)
    return None


def _known(name: str, rest: Sequence[str], step: str | None) -> Started | None:
    if name not in LAUNCHERS and not _PYTHON.fullmatch(name):
        return None
    arguments = " ".join(rest)
    if name in {"torchrun", "deepspeed"} or (name == "accelerate" and rest[:1] == ("launch",)):
        return Started(name, arguments, step)
    if name == "accelerate":
        return None
    module = re.match(r"(?:-\S+\s+)*?-m\s+([\w.]+)", arguments)
    return Started(_MODULES.get(module[1], f"-m {module[1]}") if module else name, arguments, step)


def _started_by_srun(words: Sequence[str]) -> Started | None:
    index = 0
    while index < len(words) and words[index].startswith(("-", "$", '"$')):
        word = words[index]
        index += 1
        takes_next = re.fullmatch(r"-[A-Za-z]|--[a-z-]+", word) and word not in _SRUN_FLAGS
        if takes_next and index < len(words) and not words[index].startswith("-"):
            index += not _names_a_program(words[index])
    return _started(words[index:], " ".join(words[:index])) or Started("", "", " ".join(words[:index]))


def _names_a_program(word: str) -> bool:
    name = unquoted(word).rsplit("/", 1)[-1]
    return name in LAUNCHERS | _WRAPPERS | _SHELLS or bool(_PYTHON.fullmatch(name))


def _started_by_shell(words: Sequence[str], step: str | None) -> Started | None:
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            code = unquoted(words[index + 1]).replace("\\\n", " ").replace("\n", " ; ")
            return _first_launcher(code, step)
    return Started("bash", " ".join(words), step)


# ---- What the rules read, and the mistakes they find


@dataclass(frozen=True, slots=True)
class Mistake:
    """One finding in a job script."""

    line: int
    what: str
    fix: str
    may_be_intended: bool = False
    """Then it is a warning, which does not change the exit code."""


@dataclass(frozen=True, slots=True)
class LintedJob:
    """What the rules read."""

    script: JobScript
    launches: tuple[LaunchCommand, ...]
    options: dict[str, str]
    """Of all directives, also those that sbatch does not read: those are reported once, by another rule."""
    variables: dict[str, str]
    folders: tuple[Path, ...] = ()
    """Where the script may be submitted, if that is known."""

    @property
    def launchers(self) -> list[LaunchCommand]:
        return [launch for launch in self.launches if launch.started.is_launcher]

    @property
    def ranks(self) -> list[LaunchCommand]:
        """Launchers, and what may be a rank without one."""
        return [launch for launch in self.launches if launch.started.may_be_ranks]

    @property
    def nodes(self) -> int:
        return number_in(self.options.get("nodes")) or 1

    @property
    def has_whole_nodes(self) -> bool:
        return self.options.get("exclusive") == ""


def job_of(script: JobScript, folders: tuple[Path, ...]) -> LintedJob:
    """Gather what the rules read."""
    directives = sorted(
        script.directives, key=lambda directive: not directive.is_comment
    )  # only what is not a comment counts
    options = {name: text for directive in directives for name, text in slurm_options(directive.text).items()}
    known = variables(script.lines)
    return LintedJob(script, tuple(launches(script, known)), options, known, folders)


def number_in(text: str | None) -> int | None:
    match = re.match(r"[0-9]+", text or "")
    return int(match[0]) if match else None


_SHORT = {
    "n": "ntasks",
    "N": "nodes",
    "c": "cpus-per-task",
    "G": "gpus",
    "o": "output",
    "e": "error",
    "D": "chdir",
}
_ALIAS = {"tasks-per-node": "ntasks-per-node"}
_OPTION = re.compile(r"(?:^|\s)(?:--([a-z][a-z-]*)(?:[=\s]\s*([^\s-]\S*))?|-([A-Za-z])\s*=?\s*([^\s-]\S*)?)")


def slurm_options(text: str) -> dict[str, str]:
    """SLURM's options in a line, under their long names."""
    options: dict[str, str] = {}
    for match in _OPTION.finditer(text):
        name = match[1] or _SHORT.get(match[3], match[3])
        options[_ALIAS.get(name, name)] = (match[2] or match[4] or "").strip("\"'")
    return options


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks a step has on a node, and which option of the job or the step sets it."""

    per_node: int | None
    """None where only the shell knows."""
    option: str | None
    is_of_step: bool


def tasks_of(step: dict[str, str], job: LintedJob) -> Tasks:
    """As srun counts: its own --ntasks, else the tasks of the job, else its own --ntasks-per-node.

    sbatch puts the job's tasks into SLURM_NTASKS, against which srun does not honour --ntasks-per-node.
    """
    nodes = number_in(step.get("nodes")) or job.nodes
    if "ntasks" in step:
        return Tasks(_divided(number_in(step["ntasks"]), nodes), "ntasks", is_of_step=True)
    are_nodes_given = "nodes" in job.options
    if "ntasks" in job.options and (are_nodes_given or "ntasks-per-node" not in job.options):
        return Tasks(_divided(number_in(job.options["ntasks"]), nodes), "ntasks", is_of_step=False)
    if "ntasks-per-node" in job.options:
        per_node = number_in(job.options["ntasks-per-node"])
        of_job = None if per_node is None else per_node * max(nodes, job.nodes)
        return Tasks(_divided(of_job, nodes), "ntasks-per-node", is_of_step=False)
    if "ntasks-per-node" in step:
        return Tasks(number_in(step["ntasks-per-node"]), "ntasks-per-node", is_of_step=True)
    return Tasks(1, None, is_of_step=False)


def _divided(tasks: int | None, nodes: int) -> int | None:
    return None if tasks is None else math.ceil(tasks / nodes)


def all_lines(job: LintedJob) -> list[Directive | ScriptLine]:
    return [*job.script.directives, *job.script.lines]


def line_of(option: str | None, job: LintedJob) -> int:
    """The last one counts, as for sbatch; a comment only where there is no other."""
    having = [directive for directive in job.script.directives if option in slurm_options(directive.text)]
    return max(having, key=lambda directive: (not directive.is_comment, directive.number)).number
