"""Values of --env that are never written: requests and results have a mark in their place.

The names decide: those that look like names of keys and passwords. The values stay in this process and go
into the environment of what it starts. A run that is continued or repeated takes them from the user's
environment. Trials are told apart by the names alone.
"""

import os
import re
from collections.abc import Mapping

from scalescope.errors import BadInput, CannotRun

REDACTED = "<redacted>"
_values: dict[str, str] = {}  # by the name of the variable
# Words of a name, and what may also be part of a word. TOKENIZERS_PARALLELISM is not about a token.
_WORD = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|AUTH|PASS|PASSPHRASE|PAT|PWD|BEARER|COOKIE|DSN)(?:_|\d*$)", re.IGNORECASE
)
_PART = re.compile(r"API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE_?KEY", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(_WORD.search(name) or _PART.search(name))


def redacted(name: str, values: tuple[str, ...], origin: str) -> tuple[str, ...]:
    """The values as they may be written: kept here and marked, where the name looks like that of a key."""
    if not looks_secret(name):
        return values
    given = [value for value in values if value != REDACTED]
    if len(values) > 1:
        raise BadInput(
            f"{origin}: {name} looks like a key, so its value is not stored and cannot be swept; "
            "add --no-redact-env to store all values"
        )
    for value in given:
        _values[name] = value
    return (REDACTED,)


def with_values(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with the values that were not written: as given, or from the user's environment."""
    filled = dict(variables)
    for name, value in variables.items():
        if value == REDACTED:
            known = _values.get(name, os.environ.get(name))
            if known is None:
                raise CannotRun(
                    f"the value of {name} was not stored with the request; set the variable, or add "
                    f"--env {name}=VALUE"
                )
            filled[name] = known
    return filled


def given_values() -> dict[str, str]:
    """The values that this command was given, for the environment of jobs."""
    return dict(_values)
