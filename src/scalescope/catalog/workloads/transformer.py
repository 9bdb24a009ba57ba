"""Card of the `transformer` workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.setting import Lever, PerDevice, setting
from scalescope.catalog.traits import ModelSize, WorkloadTraits
from scalescope.errors import BadInput

SYNTHETIC_CLASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(WorkloadTraits):
    """Attention over token ids: classifies texts, or predicts the next token of each position."""

    takes = ("synthetic", "ag_news", "imdb")
    has_attention = True
    defaults = {"batch_size": 32}  # noqa: RUF012

    d_model: int = setting(
        PerDevice(cpu=128, cuda=768),
        "Width of a token vector.",
        low=1,
        high=2**20,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    n_heads: int = setting(
        PerDevice(cpu=4, cuda=12),
        "Number of attention heads; d_model must be divisible by it.",
        low=1,
        high=2**20,
    )
    num_layers: int = setting(
        PerDevice(cpu=2, cuda=12),
        "Number of encoder blocks, each with attention and a feed-forward part.",
        low=1,
        high=10_000,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    dim_feedforward: int = setting(
        PerDevice(cpu=256, cuda=3072), "Width of the feed-forward part.", low=1, high=2**20
    )
    max_seq_len: int = setting(
        PerDevice(cpu=128, cuda=1024),
        "Tokens per sample: longer texts are cut, shorter ones padded. Attention cost grows with its square.",
        low=1,
        high=2**20,
        lever=Lever(multiples=(2,), changes="the job"),
    )
    vocab_size: int = setting(
        PerDevice(cpu=20_000, cuda=50_304),
        "Rows of the embedding: padding, unknown, and the most frequent words of the training texts.",
        low=3,
        high=2**24,
    )
    dropout: float = setting(0.1, "Dropout rate of each block.", low=0, high=0.99)
    task: str = setting(
        "classification",
        "classification gives one answer per sample; next_token one per position, over the vocabulary.",
        choices=("classification", "next_token"),
    )
    num_classes: int | None = setting(
        None,
        "Number of classes; auto is the data set's number, or 4 for synthetic samples.",
        low=1,
        high=2**20,
        none_word="auto",
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse heads that do not share the width, and fewer classes than the texts have."""
        width, heads = values["d_model"], values["n_heads"]
        if width % heads:
            near = max(heads, width - width % heads)
            raise BadInput(f"d_model must be divisible by n_heads {heads}, got {width}; use {near}")
        wanted = values["num_classes"]
        there = getattr(cards.card("data", values["data"]), "classes", None)
        if wanted is not None and there is not None and wanted < there:
            raise BadInput(f"num_classes must be at least {there} for {values['data']}, got {wanted}")

    def model_size(self) -> ModelSize:
        """Of each block at least queries, keys, values, what attention gives and the wide vector are kept."""
        width, inner, length = self.d_model, self.dim_feedforward, self.max_seq_len
        attention = 3 * width * (width + 1) + width * (width + 1)
        feedforward = inner * (width + 1) + width * (inner + 1)
        norms = 2 * 2 * width
        if self.task == "next_token":
            head, answers = width * self.vocab_size, length * self.vocab_size
        else:
            classes = self.num_classes or SYNTHETIC_CLASSES
            head, answers = (width + 1) * classes, classes
        return ModelSize(
            parameters=(self.vocab_size + length) * width
            + self.num_layers * (attention + feedforward + norms)
            + 2 * width
            + head,
            sample_bytes=4 * length,
            kept_values=self.num_layers * length * (4 * width + inner) + answers,
        )

    def flops_per_sample(self) -> int:
        """Floating-point operations of forward and backward for one sample.

        Matrix products only: two per weight and token forward, four backward. Attention's two products,
        queries × keys and weights × values, cost 2 · length² · width each, and twice that backward. What
        flash attention computes again to save memory is not work of the model and does not count, nor does
        a causal mask lessen it (as in PaLM's appendix B). An embedding looks up and multiplies nothing.
        """
        length, width = self.max_seq_len, self.d_model
        weights = 4 * width**2 + 2 * width * self.dim_feedforward
        block = 6 * length * weights + 12 * length**2 * width
        if self.task == "next_token":
            head = 6 * length * width * self.vocab_size
        else:
            head = 6 * width * (self.num_classes or SYNTHETIC_CLASSES)
        return self.num_layers * block + head

    def tokens_per_sample(self) -> int:
        """Tokens in a sample, padding included: the device computes them all."""
        return self.max_seq_len
