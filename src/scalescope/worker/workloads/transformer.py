"""The `transformer` workload: pre-norm encoder blocks over token ids, as a plain sequence of modules.

Every module takes and returns one tensor: a pipeline can split between any two. The padding mask is
therefore part of the stream: the embedding sets padded positions to exactly zero, each block keeps them zero,
and modules that need the mask compute it from that. Nothing else in the stream is zero, since dropout is
never applied to the stream itself. Synthetic samples have no padding, and a causal model does not attend to
later positions: both run without a mask, which flash attention requires.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalescope.catalog.workloads.transformer import SYNTHETIC_CLASSES, Transformer
from scalescope.worker.text import (
    FIRST_WORD,
    PADDING,
    ClassifiedTexts,
    ContinuedTexts,
    Corpus,
    Split,
    continued,
    encode,
    vocabulary_of,
)
from scalescope.worker.training.evaluation import IGNORED
from scalescope.worker.training.step import Batch, BuildContext, Data, Workload

_SPREAD = 0.02  # GPT-2's standard deviation of fresh embeddings


def build(options: Transformer, device: torch.device, context: BuildContext) -> Workload:
    """The model with freshly initialised parameters on `device`, and texts or random tokens as data."""
    corpus: Corpus | None = context.corpus
    classes = options.num_classes or (SYNTHETIC_CLASSES if corpus is None else corpus.classes)
    causal = options.task == "next_token"
    padded = corpus is not None and not causal
    model = nn.Sequential(
        Embedding(options, device, padded=padded),
        *(EncoderBlock(options, device, causal=causal, padded=padded) for _ in range(options.num_layers)),
        NextTokenHead(options, device) if causal else ClassHead(options, classes, device, padded=padded),
    )
    return Workload(
        model=model,
        data=_random_tokens(options, classes) if corpus is None else _texts(options, corpus),
        loss=_next_token_loss if causal else functional.cross_entropy,
    )


class Embedding(nn.Module):
    """Token ids to vectors, with a learned vector for each position."""

    def __init__(self, options: Transformer, device: torch.device, *, padded: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.d_model, device=device)
        self.positions = nn.Parameter(torch.empty(options.max_seq_len, options.d_model, device=device))
        nn.init.normal_(self.tokens.weight, std=_SPREAD)
        nn.init.normal_(self.positions, std=_SPREAD)
        self._padded = padded

    def forward(self, tokens: Tensor) -> Tensor:
        stream: Tensor = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return stream * (tokens != PADDING).unsqueeze(-1) if self._padded else stream


class EncoderBlock(nn.Module):
    """Attention and a feed-forward part, each with a norm before it and a residual connection."""

    def __init__(self, options: Transformer, device: torch.device, *, causal: bool, padded: bool) -> None:
        super().__init__()
        width, inner = options.d_model, options.dim_feedforward
        self.attention_norm = nn.LayerNorm(width, device=device)
        self.queries_keys_values = nn.Linear(width, 3 * width, device=device)
        self.attention_out = nn.Linear(width, width, device=device)
        self.feedforward_norm = nn.LayerNorm(width, device=device)
        self.feedforward = nn.Sequential(
            nn.Linear(width, inner, device=device), nn.GELU(), nn.Linear(inner, width, device=device)
        )
        self.dropout = nn.Dropout(options.dropout)
        self._heads = options.n_heads
        self._causal = causal
        self._padded = padded

    def forward(self, stream: Tensor) -> Tensor:
        real = _real_positions(stream) if self._padded else None
        stream = stream + self.dropout(self._attend(self.attention_norm(stream), real))
        stream = stream + self.dropout(self.feedforward(self.feedforward_norm(stream)))
        return stream if real is None else stream * real.unsqueeze(-1)

    def _attend(self, vectors: Tensor, real: Tensor | None) -> Tensor:
        batch, length, width = vectors.shape
        split = self.queries_keys_values(vectors).view(batch, length, 3, self._heads, width // self._heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each batch × heads × length × head width
        mask = None if real is None else real[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=self._causal
        )
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return attended


class ClassHead(nn.Module):
    """One prediction per sample, from the mean over its positions without padding."""

    def __init__(self, options: Transformer, classes: int, device: torch.device, *, padded: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.d_model, device=device)
        self.output = nn.Linear(options.d_model, classes, device=device)
        self._padded = padded

    def forward(self, stream: Tensor) -> Tensor:
        vectors = self.norm(stream)
        if self._padded:
            real = _real_positions(stream).unsqueeze(-1)
            pooled = (vectors * real).sum(dim=1) / real.sum(dim=1)
        else:
            pooled = vectors.mean(dim=1)
        logits: Tensor = self.output(pooled)
        return logits


class NextTokenHead(nn.Module):
    """One prediction per position, over the whole vocabulary."""

    def __init__(self, options: Transformer, device: torch.device) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.d_model, device=device)
        self.output = nn.Linear(options.d_model, options.vocab_size, bias=False, device=device)

    def forward(self, stream: Tensor) -> Tensor:
        logits: Tensor = self.output(self.norm(stream))
        return logits


def _real_positions(stream: Tensor) -> Tensor:
    """True where a position is text and not padding."""
    return stream.ne(0).any(dim=-1)


def _next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over positions with a target; 0 instead of NaN if there are none, as in texts of one word."""
    total = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (targets != IGNORED).sum().clamp(min=1)


def _random_tokens(options: Transformer, classes: int) -> Data:
    causal = options.task == "next_token"

    def synthesize(count: int, generator: torch.Generator) -> Batch:
        shape = (count, options.max_seq_len + causal)
        tokens = torch.randint(FIRST_WORD, options.vocab_size, shape, generator=generator, dtype=torch.int32)
        if causal:
            return continued(tokens)
        return tokens, torch.randint(classes, (count,), generator=generator)

    return Data(synthesize=synthesize)


def _texts(options: Transformer, corpus: Corpus) -> Data:
    vocabulary = vocabulary_of(corpus, options.vocab_size)

    def encoded(split: Split) -> ClassifiedTexts | ContinuedTexts:
        if options.task == "next_token":
            return ContinuedTexts(encode(split.texts, vocabulary, options.max_seq_len + 1))
        tokens = encode(split.texts, vocabulary, options.max_seq_len)
        return ClassifiedTexts(tokens, torch.tensor(split.labels))

    return Data(
        samples=encoded(corpus.train), validation=encoded(corpus.validation), collate=lambda batch: batch
    )
