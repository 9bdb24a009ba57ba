"""Trial: one configuration with every setting resolved, and its identity."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scalescope.catalog.cards import all_settings, card
from scalescope.catalog.setting import Setting, Unset, settings_of

Card = TypeVar("Card")
Value = Any  # a Scalar, or for `env` a mapping of names to values
_ABLATIONS = {"noop_comm": "no communication", "preloaded": "preloaded input"}  # as labels name them


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one launch measures; `settings` is flat, sorted and holds scalars only."""

    settings: Mapping[str, Value]

    @functools.cached_property
    def trial_id(self) -> str:
        """Hash of the settings, leaving out those at their card's neutral value."""
        text = json.dumps(identity(self.settings), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def options(self, owner: type[Card]) -> Card:
        """This trial's values of a card's settings, as an instance of the card."""
        return owner(**{setting.name: self.value(setting) for setting in settings_of(owner)})

    def value(self, setting: Setting) -> Value:
        """A setting's value; what a run from before the setting existed did is its neutral value."""
        if setting.name in self.settings or isinstance(setting.neutral, Unset):
            return self.settings[setting.name]
        return setting.neutral

    @property
    def world_size(self) -> int:
        return int(self.settings["world_size"])

    @property
    def replicas(self) -> int:
        """How many parts of the world work on samples of their own; a pipeline is one."""
        return int(card("strategies", str(self.settings["strategy"])).replicas(self.world_size))

    @property
    def accumulation_steps(self) -> int:
        return int(self.settings.get("accumulation_steps", 1))

    @property
    def rank_batch_size(self) -> int:
        """Samples one replica works on in an optimizer step, whichever way the batch was given."""
        total = self.settings.get("global_batch_size")
        if total is not None:
            return int(total) // self.replicas
        return int(self.settings["batch_size"]) * self.accumulation_steps

    @property
    def micro_batch_size(self) -> int:
        """Samples of one forward pass."""
        return self.rank_batch_size // self.accumulation_steps

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.rank_batch_size * self.replicas

    @property
    def mode(self) -> str:
        """`strong` when more ranks share the same work, `weak` when each brings its own."""
        fixed = self.settings.get("global_batch_size") is not None
        return "strong" if fixed or self.replicas < self.world_size else "weak"

    @property
    def steps(self) -> int:
        """How many steps a launch makes, for progress; 0 where only its ranks can tell."""
        return int(self.options(card("benchmarks", str(self.settings["benchmark"]))).steps())

    @property
    def ablations(self) -> frozenset[str]:
        """What is taken away from the job, to measure what it costs."""
        return frozenset(str(self.settings.get("ablation", "none")).split("+")) - {"none"}

    @property
    def label(self) -> str:
        """What tells this trial from its neighbours, in a few words."""
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        if "strategy" in self.settings:
            benchmark = self.settings["benchmark"]
            what = "" if benchmark == "train" else f"{benchmark}, "
            shared = " in all" if self.replicas < self.world_size else ""
            job = f"{what}{self.settings['strategy']}, {ranks}, batch {self.rank_batch_size}{shared}"
            return ", ".join((job, *(text for name, text in _ABLATIONS.items() if name in self.ablations)))
        among = self.settings.get("among", "all")
        where = "" if among == "all" else f" ({among})"
        return f"{self.settings['benchmark']}, {ranks}{where}, {self.settings['dtype']}"

    @property
    def device(self) -> str:
        return str(self.settings["device"])

    def on_one_rank(self) -> "Trial":
        """The same trial on one rank, which shares its device with nobody."""
        alone = {"oversubscribe": False, "stand_in": False}
        return self.replace(world_size=1, **{n: v for n, v in alone.items() if n in self.settings})

    def replace(self, **changes: Value) -> "Trial":
        """The same trial with some settings changed."""
        return Trial(settings=dict(sorted({**self.settings, **changes}.items())))


def identity(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings that tell trials apart.

    A setting added later is at its neutral value in every older run, so leaving neutral values out
    keeps old identities as they were.
    """
    known = all_settings(str(settings["benchmark"]))
    return {
        name: value for name, value in settings.items() if name not in known or _tells(known[name], value)
    }


def _tells(versions: tuple[Setting, ...], value: Value) -> bool:
    return versions[0].identity and versions[0].neutral != value
