"""Secrets of a request, which are never written: requests and results have a mark in their place.

A secret is known by its name (of a variable, an option or a key) or by its value: a known prefix, a password
in a URL, a long random token. Values stay in this process and go to what it starts. A run that is continued
or repeated takes them from the user's environment: a variable under its own name, a part of a command under
the name of its mark. Trials are told apart by the marks alone.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from scalescope.errors import BadInput, CannotRun

REDACTED = "<redacted>"
_PREFIX = "SCALESCOPE_SECRET_"  # of the variable that supplies a word of a command
_MARK = re.compile(rf"\{{({_PREFIX}[A-Z0-9_]+)\}}")
_values: dict[str, str] = {}  # by the name of the variable
_seen: set[str] = set()  # all secret values of this process
_LEAST_HIDDEN = 6  # shorter values occur in ordinary text

# Words of a name, and what may also be part of a word. TOKENIZERS_PARALLELISM is not about a token.
_WORD = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|AUTH|AUTHORIZATION|PASS|PASSPHRASE|PAT|PWD|BEARER|COOKIE|DSN|SIGNATURE)(?:_|\d*$)",
    re.IGNORECASE,
)
_PART = re.compile(r"API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE_?KEY", re.IGNORECASE)
# Scripts have options such as --image-key, --eos-token and --token-dropout too: fewer names suffice.
_OPTION_WORD = re.compile(
    r"(?:^|_)(?:TOKEN|AUTH|AUTHORIZATION|PASSPHRASE|PWD|BEARER|COOKIE|DSN)\d*$", re.IGNORECASE
)
_NOT_OPTION = re.compile(
    r"(?:PAD|EOS|BOS|UNK|MASK|CLS|SEP|STOP|START|END|IMAGE)_TOKEN$|_(?:FILE|PATH|DIR|ENV|NAME|VAR)$",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(  # numbers, switches, placeholders, variables of a shell, <pad> and [MASK]
    r"[-+]?[\d.]+(?:e[-+]?\d+)?|true|false|none|null|auto|default|yes|no|on|off|"
    r"\{\w+\}|\$\{?\w+\}?|\$\(.*|<.*>|\[.*\]|",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]{16,}")  # what a --key of any kind has as its value
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# NAME=VALUE, "NAME": "VALUE", NAME: Bearer VALUE; the value may itself be read as such.
_ASSIGNED = re.compile(
    r"(?<![\w.$-])([A-Za-z_][\w.-]*)[\"']?\s*[=:]\s*[\"']?(?:(?i:bearer|basic|token)\s+)?(?=([^\s\"'&;,]+))"
)
_NESTED_OPTION = re.compile(r"(?<!\S)--([A-Za-z][\w.-]*)\s+[\"']?(?=([^\s\"'-][^\s\"']*))")  # of `sh -c TEXT`
_OPTION = re.compile(r"(?:--?|\+{1,2})([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|"
    r"sk-(?!learn)(?=[\w-]*\d)[\w-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|xox[abeoprs]-[\w-]{10,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[\w-]{30,}|ya29\.[\w-]{20,}|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|"
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{50,}|dckr_pat_[\w-]{16,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|"  # a JSON web token
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?)"
)
_PASSWORD_IN_URL = re.compile(r"://[^\s/?#:@]*:([^\s/?#]+)@|^[^\s/:@]+:([^\s/@]+)@[\w.-]+:\d+$")
_TOKEN = re.compile(r"(?<![\w.~/-])[A-Za-z0-9+][A-Za-z0-9+/]{31,}={0,2}(?![\w./-])")
_LEAST_CHANGES = 0.4  # of class per character: random text has 0.6, words in CamelCase below 0.3
_AWS_SECRET_LENGTH = 40  # the one kind with slashes; other texts with slashes are paths


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable of this name, or with this value, may hold a secret."""
    return bool(_WORD.search(name) or _PART.search(name)) or any(_secrets_in(value))


def redacted(name: str, values: tuple[str, ...], origin: str) -> tuple[str, ...]:
    """The values of a variable as they may be written: a secret is kept here and marked."""
    if not any(looks_secret(name, value) for value in values):
        return values
    _refuse_several(name, values, origin)
    if values[0] != REDACTED:
        _keep(name, values[0])
    return (REDACTED,)


def redacted_varied(name: str, values: tuple[str, ...], origin: str) -> tuple[str, ...]:
    """The values of a command's placeholder as they may be written."""
    if not any(_is_secret_option(name, value) or any(_secrets_in(value)) for value in values):
        return values
    _refuse_several(name, values, origin)
    variable = f"{_PREFIX}VARY_{_snake(name)}"
    _keep(variable, values[0])
    return (f"{{{variable}}}",)


def redacted_words(words: Iterable[str]) -> list[str]:
    """The words of a command with a mark, such as {SCALESCOPE_SECRET_TOKEN}, in place of each secret."""
    words = list(words)
    kept: dict[str, str | None] = dict.fromkeys(_MARK.findall(" ".join(words)))
    option, shown = "", []
    for word in words:
        pieces, last = [], 0
        for start, end, name in _secrets_of_word(word, option):
            pieces += [word[last:start], f"{{{_variable(name, word[start:end], kept)}}}"]
            last = end
        shown.append("".join((*pieces, word[last:])))
        match = _OPTION.fullmatch(word)
        option = match[1] if match and match[2] is None else ""
    return shown


def with_values(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with the values that were not written: as given, or from the user's environment."""
    return {
        name: _known(name, f"set the variable, or add --env {name}=VALUE") if value == REDACTED else value
        for name, value in variables.items()
    }


def with_secrets(text: str) -> str:
    """A word or a command with the values of its marks: as given, or from the user's environment."""
    return _MARK.sub(lambda match: _known(match[1], f"set {match[1]}, or give the command again"), text)


def holds_mark(text: str) -> bool:
    """Whether a mark is in a text in place of a secret."""
    return REDACTED in text or _MARK.search(text) is not None


def given_values() -> dict[str, str]:
    """The values that this command was given, for the environment of jobs."""
    return dict(_values)


def hidden(text: str) -> str:
    """Text that a command printed, without the secrets it was given."""
    for value in sorted(_seen, key=len, reverse=True):
        text = text.replace(value, REDACTED).replace(json.dumps(value)[1:-1], REDACTED)
    return text


def hide_in(path: Path) -> None:
    """Remove secrets from a file that a command wrote to."""
    with contextlib.suppress(OSError):
        text = path.read_bytes().decode("utf-8", "surrogateescape") if _seen else ""
        if (clean := hidden(text)) != text:
            path.write_bytes(clean.encode("utf-8", "surrogateescape"))


def _keep(variable: str, value: str) -> None:
    _values[variable] = value
    _remember(value)


def _remember(value: str) -> str:
    if len(value) >= _LEAST_HIDDEN:
        _seen.add(value)
    return value


def _known(variable: str, advice: str) -> str:
    value = _values.get(variable, os.environ.get(variable))
    if value is None:
        raise CannotRun(f"the value of {variable} was not stored with the request; {advice}")
    return _remember(value)


def _refuse_several(name: str, values: tuple[str, ...], origin: str) -> None:
    if len(values) > 1:
        raise BadInput(
            f"{origin}: {name} looks like a key, so its value is not stored and cannot be swept; "
            "add --no-redact-env to store all values"
        )


def _variable(name: str, value: str, kept: dict[str, str | None]) -> str:
    """The variable that stands for a secret of a command: of two under one name, the second has a number."""
    first = variable = f"{_PREFIX}{_snake(name) or 'ARGUMENT'}"
    number = 1
    while kept.get(variable, value) != value:
        number += 1
        variable = f"{first}_{number}"
    kept[variable] = value
    _keep(variable, value)
    return variable


def _snake(name: str) -> str:
    return re.sub(r"\W+", "_", _CAMEL.sub("_", name)).upper().strip("_")


def _is_secret_option(name: str, value: str) -> bool:
    """Whether an option or key of this name, with this value, holds a secret."""
    name = _snake(name)
    if _NOT_SECRET.fullmatch(value) or _NOT_OPTION.search(name):
        return False
    strong = _PART.search(name) or _OPTION_WORD.search(name)
    return bool(strong or (_WORD.search(name) and _CODE.fullmatch(value)))


def _secrets_of_word(word: str, option: str) -> Iterator[tuple[int, int, str]]:
    """Where a word of a command holds secrets, and under which names; `option` is the word before it."""
    if option and not word.startswith("-") and _is_secret_option(option, word):
        yield 0, len(word), option
        return
    match = _OPTION.fullmatch(word)
    if match and match[2] is not None and _is_secret_option(match[1], match[2]):
        yield *match.span(2), match[1]
        return
    outer = option if match is None else match[1]
    last = 0
    for start, end, name in sorted(_secrets_in(word)):
        if start >= last:
            yield start, end, name or outer
            last = end


def _secrets_in(text: str) -> Iterator[tuple[int, int, str]]:
    """Where a text holds secrets, whatever its own name; with the name that the text gives to each."""
    for pattern in (_ASSIGNED, _NESTED_OPTION):
        for match in pattern.finditer(text):
            if _is_secret_option(match[1], match[2]):
                yield *match.span(2), match[1]
    for match in _PASSWORD_IN_URL.finditer(text):
        if not _NOT_SECRET.fullmatch(match[1] or match[2]):
            yield *match.span(1 if match[1] else 2), ""
    for match in _SHAPES.finditer(text):
        yield *match.span(), ""
    for match in _TOKEN.finditer(text):
        if _is_random(match[0].rstrip("=")):
            yield *match.span(), ""


def _is_random(token: str) -> bool:
    """Whether letters of both cases and digits alternate as in no word; hashes have one case."""
    if "/" in token and (len(token) != _AWS_SECRET_LENGTH or token.count("/") > 3):
        return False
    kinds = [(each.isupper(), each.islower(), each.isdigit()) for each in token if each.isalnum()]
    changes = sum(kind != following for kind, following in pairwise(kinds))
    return len(set(kinds)) == 3 and changes >= _LEAST_CHANGES * len(kinds)
