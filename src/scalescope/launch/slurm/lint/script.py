"""A job script as its two readers see it: sbatch the comments at its top, the shell the rest."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


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
