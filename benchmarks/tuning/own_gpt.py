"""A GPT of 124 million parameters as somebody's own workload: 16 x 1,024 tokens, plain fp32, AdamW.

The sizes can be made small for a try on the CPU: OWN_GPT=tiny.
"""

import os

import torch
from torch import Tensor, nn
from torch.nn import functional

TINY = os.environ.get("OWN_GPT") == "tiny"
LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = (2, 2, 64, 512, 32) if TINY else (12, 12, 768, 50_304, 1024)
BATCH = 4 if TINY else 16


class Block(nn.Module):
    """Causal attention and a feed-forward part, each after a norm, with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, _ = stream.shape
        parts = self.qkv(self.norms[0](stream)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        hidden = functional.gelu(self.widen(self.norms[1](stream)))
        added: Tensor = stream + self.narrow(hidden)
        return added


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            stream = block(stream)
        return functional.linear(self.norm(stream), self.tokens.weight)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build() -> tuple[nn.Module, torch.utils.data.TensorDataset, object, torch.optim.Optimizer]:
    """The model, random tokens, the loss and the optimizer."""
    model = Gpt()
    ids = torch.randint(0, VOCABULARY, (BATCH * 8, LENGTH + 1))
    data = torch.utils.data.TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return model, data, next_token_loss, torch.optim.AdamW(model.parameters(), lr=3e-4)
