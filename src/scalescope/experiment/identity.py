"""Identity: which settings tell trials apart, under the names and values by which they were first hashed.

A `trial_id` is a hash, so it must not change when a setting gets a better name. What is hashed is therefore
what the first version would have hashed; nothing here is ever read back.
"""

from collections.abc import Mapping
from typing import Any

from scalescope.catalog.cards import all_settings
from scalescope.catalog.setting import Setting

_ABLATIONS = {"without_communication": "noop_comm", "with_preloaded_input": "preloaded"}
_VALUES = {
    ("purpose", "nccl_log"): "listen",
    ("among", "one_node"): "one node",
    ("among", "one_per_node"): "one a node",
}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that tell trials apart.

    A setting added later is at its neutral value in every older run, so leaving neutral values out
    keeps old identities as they were.
    """
    known = all_settings(str(settings["benchmark"]))
    telling = {
        name: value for name, value in settings.items() if name not in known or _tells(known[name], value)
    }
    return _as_first_hashed(telling)


def _tells(versions: tuple[Setting, ...], value: Any) -> bool:
    return versions[0].identity and versions[0].neutral != value


def _as_first_hashed(settings: Mapping[str, Any]) -> dict[str, Any]:
    hashed = {
        name: _VALUES.get((name, value), value) if isinstance(value, str) else value
        for name, value in settings.items()
        if name not in _ABLATIONS
    }
    removed = [first for name, first in _ABLATIONS.items() if settings.get(name)]
    return {**hashed, "ablation": "+".join(removed)} if removed else hashed
