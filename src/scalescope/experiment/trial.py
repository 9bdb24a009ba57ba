"""Trial: one configuration with every setting resolved, and its identity."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scalescope.catalog.cards import all_settings, card
from scalescope.catalog.setting import SCRIPT, Setting, settings_of
from scalescope.catalog.traits import MemoryLayout

Card = TypeVar("Card")
Value = Any  # a Scalar, or for `env` a mapping of names to values
# Settings that remove one thing from a job, and how labels name them.
ABLATIONS = {
    "without_communication": "no communication",
    "with_preloaded_input": "preloaded input",
    "without_optimizer": "no optimizer",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one launch measures; `settings` is flat, sorted and holds scalars only."""

    settings: Mapping[str, Value]

    @functools.cached_property
    def trial_id(self) -> str:
        """Hash of the settings that tell trials apart."""
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @functools.cached_property
    def identity(self) -> Mapping[str, Value]:
        """The settings that tell trials apart: all but those whose card says that they do not."""
        known = all_settings(self.benchmark)
        return {
            name: value
            for name, value in self.settings.items()
            if name not in known or known[name][0].identity
        }

    def options(self, owner: type[Card]) -> Card:
        """This trial's values of a card's settings, as an instance of the card."""
        return owner(**{setting.name: self.value(setting) for setting in settings_of(owner)})

    def value(self, setting: Setting) -> Value:
        """A setting's value; of one that the trial's cards do not have, or that a command decides,
        the default."""
        if setting.name in self.settings:
            return self.settings[setting.name]
        return setting.default_for(self.device)

    # The settings that other layers ask for, typed; of one that the trial's cards do not have, the default.

    @property
    def benchmark(self) -> str:
        """What a launch measures: train, comm, memory or profile."""
        return str(self.settings["benchmark"])

    @property
    def is_training(self) -> bool:
        """Whether a launch times training steps."""
        return self.benchmark == "train"

    @property
    def device(self) -> str:
        return str(self.settings["device"])

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def backend(self) -> str:
        return str(self.settings["backend"])

    @property
    def world_size(self) -> int:
        return int(self.settings["world_size"])

    @property
    def threads_per_rank(self) -> int:
        return int(self.settings["threads_per_rank"])

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that every rank gets."""
        return dict(self.settings.get("env") or {})

    @property
    def link(self) -> str | None:
        """The network link that is emulated between ranks; None where there is none."""
        return self._text("link")

    @property
    def split_gpu(self) -> int | None:
        """Into how many parts one GPU is split for the ranks; None where each has its own."""
        return self._whole("split_gpu")

    @property
    def oversubscribe(self) -> bool:
        """Whether ranks share a GPU; this is then not a scaling measurement."""
        return bool(self.settings.get("oversubscribe", False))

    @property
    def stand_in(self) -> bool:
        """Whether ranks sleep for measured compute times instead of computing."""
        return bool(self.settings.get("stand_in", False))

    @property
    def pin_cores(self) -> str:
        return str(self.settings.get("pin_cores", "auto"))

    @property
    def gloo_shares_core(self) -> bool:
        """Whether a rank is pinned to one core, which gloo's thread then shares with it."""
        pinned = self.device == "cpu" and self.pin_cores != "no"
        return pinned and self.settings.get("threads_per_rank") == 1

    @property
    def ranks_among(self) -> str:
        """Which ranks of a launch take part in a collective: all, those of one node, or one per node."""
        return str(self.settings.get("among", "all"))

    @property
    def measures_pairs(self) -> bool:
        """Whether each pair of ranks is measured separately."""
        return bool(self.settings.get("pairs", False))

    @property
    def purpose(self) -> str | None:
        """Why a launch is made, where its benchmark knows several reasons."""
        return self._text("purpose")

    @property
    def dtype(self) -> str:
        """The number format of a collective."""
        return str(self.settings["dtype"])

    @property
    def strategy(self) -> str:
        return str(self.settings["strategy"])

    @property
    def strategy_card(self) -> Any:
        return card("strategies", self.strategy)

    @property
    def memory_layout(self) -> MemoryLayout | None:
        """How the strategy changes a rank's memory; None where no formula is known."""
        layout: MemoryLayout | None = self.strategy_card.memory_layout(self.settings)
        return layout

    @property
    def is_wrapped(self) -> bool:
        """Whether a strategy wraps the model; plain training on one rank does not."""
        is_plain = self.strategy_card.plain_on_one_rank and self.world_size == 1
        return bool(self.strategy_card.wraps) and not is_plain

    @property
    def is_command(self) -> bool:
        """Whether a training command is launched."""
        return self.settings.get("workload") == "command"

    @property
    def command(self) -> str:
        """The training command, with placeholders."""
        return str(self.settings["command"])

    @property
    def varied(self) -> dict[str, str]:
        """The values of a command's own placeholders."""
        return dict(self.settings.get("vary") or {})

    @property
    def keeps_running(self) -> bool:
        """Whether the command goes on after it was measured, and nothing in it is changed."""
        return self.is_on("keep_running")

    @property
    def has_private_view(self) -> bool:
        """Whether what the command writes is kept apart from the user's files."""
        return not self.keeps_running and not self.is_on("allow_writes")

    @property
    def workload(self) -> str:
        return str(self.settings["workload"])

    @property
    def workload_card(self) -> Any:
        return card("workloads", self.workload)

    @property
    def data(self) -> str:
        return str(self.settings.get("data", "synthetic"))

    @property
    def precision(self) -> str:
        """The number format of matrix products; `script` where a command decides."""
        return str(self.settings["precision"] or SCRIPT)

    @property
    def optimizer(self) -> str:
        """The optimizer; `script` where a command decides."""
        return str(self.settings["optimizer"]) if not self.is_command else SCRIPT

    @property
    def num_workers(self) -> int | None:
        """Processes that load data; None where the model's batches are made on the device."""
        return self._whole("num_workers")

    @property
    def batch_size(self) -> int | None:
        """The batch per rank that was asked for, or that a command was observed to use; None where the global
        batch was."""
        asked = self._whole("batch_size")
        return self._whole("observed_batch_size") if asked is None else asked

    @property
    def global_batch_size(self) -> int | None:
        """The batch of all ranks that was asked for, or observed; None where the batch per rank was."""
        asked = self._whole("global_batch_size")
        return self._whole("observed_global_batch_size") if asked is None else asked

    @property
    def has_known_batch(self) -> bool:
        """Whether the batch is known; that of a command is not before it has run."""
        return self.batch_size is not None or self.global_batch_size is not None

    @property
    def warmup_steps(self) -> int:
        return int(self.settings["warmup_steps"])

    @property
    def window_s(self) -> float | None:
        """How long a launch measures; None where it counts steps."""
        window = self.settings.get("window")
        return None if window is None else float(window)

    @property
    def soak_s(self) -> float:
        """How long a launch may train before it measures, to let clocks become steady."""
        return float(self.settings.get("soak") or 0.0)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a rank may take; None without a limit."""
        return self._whole("memory_limit")

    @property
    def searches_batch(self) -> bool:
        """Whether the largest batch that fits is looked for."""
        return bool(self.settings.get("search", True))

    @property
    def comm_hook(self) -> str:
        return str(self.settings.get("comm_hook", "none"))

    @property
    def bucket_cap_mb(self) -> float | None:
        cap = self.settings.get("bucket_cap_mb")
        return None if cap is None else float(cap)

    @property
    def is_compiled(self) -> bool:
        return str(self.settings.get("compile", "none")) != "none"

    @property
    def is_channels_last(self) -> bool:
        """Whether images are stored with interleaved channels."""
        return str(self.settings.get("memory_format", "contiguous")) == "channels_last"

    def has_setting(self, name: str) -> bool:
        """Whether one of the trial's cards has a setting of this name."""
        return name in self.settings

    @property
    def has_strategy(self) -> bool:
        """Whether a launch makes training steps, timed or not, and thus has a strategy and a batch."""
        return "strategy" in self.settings

    @property
    def benchmark_card(self) -> Any:
        return card("benchmarks", self.benchmark)

    def is_on(self, name: str) -> bool:
        """Whether a switch of the trial's cards is on; one that its cards do not have is off."""
        return bool(self.settings.get(name, False))

    def _text(self, name: str) -> str | None:
        value = self.settings.get(name)
        return None if value is None else str(value)

    def _whole(self, name: str) -> int | None:
        value = self.settings.get(name)
        return None if value is None else int(value)

    # What follows from the settings.

    @property
    def replicas(self) -> int:
        """How many parts of the world work on samples of their own; a pipeline is one."""
        observed = self._whole("observed_replicas")
        return observed if observed is not None else int(self.strategy_card.replicas(self.world_size))

    @property
    def accumulation_steps(self) -> int:
        return int(self.settings.get("accumulation_steps", 1))

    @property
    def given_batch_size(self) -> int:
        """The batch as it was given: per rank when weak, over all ranks when strong; 0 is unknown."""
        given = self.batch_size if self.global_batch_size is None else self.global_batch_size
        return given or 0

    @property
    def rank_batch_size(self) -> int:
        """Samples one replica works on in an optimizer step, whichever way the batch was given.

        What a command was observed to do counts more than what it was given: it may accumulate, for
        instance. 0 is unknown, as the batch of a command is before it has run (`has_known_batch`).
        """
        observed = self._whole("observed_batch_size")
        if observed is not None:
            return observed
        if self.global_batch_size is not None:
            return self.global_batch_size // self.replicas
        return (self.batch_size or 0) * self.accumulation_steps

    @property
    def micro_batch_size(self) -> int:
        """Samples of one forward pass; of a command, of one step."""
        return self.rank_batch_size // self.accumulation_steps

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks; 0 where the batch is unknown."""
        return self.rank_batch_size * self.replicas

    @property
    def mode(self) -> str:
        """`strong` when more ranks share the same work, `weak` when each brings its own, or nobody knows."""
        fixed = self.global_batch_size is not None
        return "strong" if fixed or self.replicas == 1 < self.world_size else "weak"

    @property
    def steps(self) -> int:
        """How many steps a launch makes, for progress; 0 where only its ranks know."""
        return int(self.options(card("benchmarks", self.benchmark)).steps())

    @property
    def ablations(self) -> frozenset[str]:
        """What is taken away from the job, to measure what it costs."""
        return frozenset(name for name in ABLATIONS if self.is_on(name))

    @property
    def is_ablation(self) -> bool:
        return bool(self.ablations)

    @property
    def label(self) -> str:
        """A few words that distinguish this trial from others of a run."""
        return self.job_label if self.is_training else f"{self.benchmark}, {self.job_label}"

    @property
    def job_label(self) -> str:
        """The label without what is measured."""
        if not self.has_strategy:
            where = "" if self.ranks_among == "all" else f" ({self.ranks_among})"
            return f"{self._ranks_label}{where}, {self.dtype}"
        parts = [self.job_label_without_batch, *self._batch_label]
        return ", ".join((*parts, *(text for name, text in ABLATIONS.items() if name in self.ablations)))

    @property
    def _batch_label(self) -> tuple[str, ...]:
        """The batch in words, where it is known, and the values of a command's own placeholders."""
        varied = tuple(f"{name} {value}" for name, value in self.varied.items())
        if not self.has_known_batch:
            return varied
        unit = " tokens" if self.settings.get("observed_unit") == "tokens" else ""
        if self.replicas < self.world_size:
            return (*varied, f"batch {self.samples_per_step}{unit} in total")
        return (*varied, f"batch {self.rank_batch_size}{unit}")

    @property
    def job_label_without_batch(self) -> str:
        """The label without what is measured and without the batch, where several batches are shown."""
        return f"{self.strategy}, {self._ranks_label}"

    @property
    def _ranks_label(self) -> str:
        return "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"

    def on_one_rank(self) -> "Trial":
        """The same trial on one rank, which then shares its device with no other."""
        alone = {"oversubscribe": False, "stand_in": False}
        return self.replace(world_size=1, **{n: v for n, v in alone.items() if n in self.settings})

    def replace(self, **changes: Value) -> "Trial":
        """The same trial with some settings changed."""
        return Trial(settings=dict(sorted({**self.settings, **changes}.items())))
