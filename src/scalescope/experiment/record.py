"""Writes an experiment as the YAML file that repeats it."""

import dataclasses
import math
from typing import Any

import yaml

from scalescope.catalog import cards
from scalescope.experiment.command_line import VARY
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Value

# The folder of a run is not part of the request: a repeat must get its own folder.
_NOT_REPEATED = ("output_dir",)


def to_yaml(experiment: Experiment, words: tuple[str, ...] = ()) -> str:
    """The experiment file: `scalescope VERB` on it makes the same run again."""
    lines = [f"{name}: {_inline(value)}\n" for name, value in sorted(to_mapping(experiment).items())]
    command = " ".join(("scalescope", experiment.verb, *words, "FILE"))
    return f"# {command} repeats this run.\n" + "".join(lines)


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """The content of an experiment file, by key."""
    body: dict[str, Any] = {}
    for name, values in sorted(experiment.settings.items()):
        if name in ("env", VARY):
            body.update(_section(name, values))
        elif values != (None,) or _must_write_none(experiment, name):
            written = list(values)
            body[name] = written[0] if len(written) == 1 else written
    for name, value in dataclasses.asdict(experiment.measuring).items():
        if name not in _NOT_REPEATED:  # None is said too: a verb may have another default
            body[name] = value
    return body


class _Dumper(yaml.SafeDumper):
    """Escapes line breaks, which YAML would otherwise write as they are."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def _inline(value: Any) -> str:
    """A value on the line of its key: two files can then be compared line by line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _must_write_none(experiment: Experiment, name: str) -> bool:
    """Whether leaving the key out would bring back a default other than None."""
    if name == "batch_size":  # None here means that the global batch was given, or that a command decides
        return False
    known = cards.settings_by_name(experiment.benchmark, of_command=experiment.is_command)
    return known[name].default is not None


def _section(heading: str, combinations: tuple[Value, ...]) -> dict[str, Any]:
    """Names with their values, below a heading; several values are a sweep."""
    collected: dict[str, list[str]] = {}
    for combination in combinations:
        for name, value in (combination or {}).items():
            if value not in collected.setdefault(name, []):
                collected[name].append(value)
    section = {n: v[0] if len(v) == 1 else v for n, v in collected.items()}
    return {heading: section} if section else {}
