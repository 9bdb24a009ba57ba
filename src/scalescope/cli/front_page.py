"""What `scalescope` prints without a verb: help and version, made without click.

Loading click and the options of every verb takes several times longer than making this page. The page is the
text that click would print (a test compares them). A verb's line is read from the source of its module, where
the docstring of the function `command` is its help; nothing is imported and nothing is registered.
"""

import ast
import os
import sys
import textwrap

from scalescope.cli import verbs
from scalescope.version import __version__

PROGRAM = "scalescope"
COMPLETION_VARIABLE = "_SCALESCOPE_COMPLETE"  # set by the completion script of a shell, which click answers
HELP_FLAGS = ("-h", "--help")
VERSION_FLAG = "--version"
PURPOSE = """\
Measure how PyTorch training scales, explain what is lost, and prove what fixes it.

Start with `scalescope run`: it inspects this machine and shows how training scales on it.
"""
EXIT_CODES = (
    "Exit codes: 0 ok, 2 bad input, 3 environment, 4 a worker failed, 5 hang, "
    "6 invalid or (--strict) unstable, 7 I/O, 8 a gate was missed, 129/130/138/143 signals."
)
_OPTIONS = (
    (VERSION_FLAG, "Show the version and exit."),
    (", ".join(HELP_FLAGS), "Show this message and exit."),
)
_FIRST = ("run", "train", "scale", "comm")  # what most people use; the rest follows by name
_WIDEST_PAGE, _NARROWEST_PAGE = 100, 50
_USUAL_COLUMNS = 80
_INDENT = "  "


def answer(arguments: list[str]) -> str | None:
    """The text for a command line without a verb; None for every other."""
    if not arguments or (len(arguments) == 1 and arguments[0] in HELP_FLAGS):
        return help_text(terminal_columns())
    if arguments == [VERSION_FLAG]:
        return f"{PROGRAM}, version {__version__}"
    return None


def verb_names() -> list[str]:
    """All verbs, in the order in which help lists them: one module each."""
    names = _verb_files().keys()
    first = [name for name in _FIRST if name in names]
    return first + sorted(names - set(first))


def _verb_files() -> dict[str, str]:
    """The source file of every verb, by its name, in every folder of the package `cli.verbs`."""
    files: dict[str, str] = {}
    for folder in verbs.__path__:
        for file in os.listdir(folder):
            stem, ending = os.path.splitext(file)
            if ending == ".py" and not stem.startswith("_"):
                files.setdefault(stem, os.path.join(folder, file))
    return files


def help_text(columns: int) -> str:
    """The page for a terminal of that many columns."""
    width = page_width(columns)
    names = verb_names()
    longest = max(len(name) for name in names)
    summaries = [(name, _summary(_help_of(name), width - 6 - longest)) for name in names]
    return "\n".join(
        (
            f"Usage: {PROGRAM} [OPTIONS] COMMAND [ARGS]...",
            "",
            _wrapped(PURPOSE, width),
            "",
            "Options:",
            *_two_columns(_OPTIONS),
            "",
            "Commands:",
            *_two_columns(summaries),
            "",
            _wrapped(EXIT_CODES, width),
        )
    )


def page_width(columns: int) -> int:
    """How wide lines of help may be, as click has it."""
    return max(min(columns, _WIDEST_PAGE) - 2, _NARROWEST_PAGE)


def terminal_columns() -> int:
    """The terminal's width as `shutil.get_terminal_size` gives it, without loading shutil."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        assert sys.__stdout__ is not None
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _USUAL_COLUMNS
    except (AssertionError, ValueError, OSError):  # closed, replaced, or not a terminal
        return _USUAL_COLUMNS


def _help_of(verb: str) -> str:
    """The docstring of the function `command` in a verb's module."""
    path = _verb_files()[verb]
    with open(path, encoding="utf-8") as file:
        module = ast.parse(file.read(), path)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "command"]
    assert len(functions) == 1, f"{path} defines a function named command"
    return ast.get_docstring(functions[0], clean=False) or ""


def _summary(text: str, limit: int) -> str:
    """The first sentence, or as much of it as fits; a period before a lower-case word ends none."""
    words = text.partition("\n\n")[0].split()
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if word.endswith(".") and not following[:1].islower():
            words = words[: number + 1]
            break
    return textwrap.shorten(" ".join(words), limit, placeholder="...", break_on_hyphens=False)


def _wrapped(text: str, width: int) -> str:
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(
        textwrap.fill(paragraph, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
        for paragraph in paragraphs
    )


def _two_columns(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> list[str]:
    width = max(len(first) for first, _ in rows)
    return [f"{_INDENT}{first:<{width}}{_INDENT}{second}" for first, second in rows]
