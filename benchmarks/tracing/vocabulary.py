"""A small language model with GPT-2's vocabulary, whose head is slow in bf16 because 50,257 is odd:

scalescope train --workload benchmarks/tracing/vocabulary.py:odd --amp --batch-size 16
"""

import torch
from torch import Tensor, nn

_WIDTH, _LENGTH = 768, 512


class Model(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 12, 4 * _WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.words(tokens)))
        return logits.flatten(0, 1)


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, tokens.flatten())


def _job(words: int) -> tuple[object, ...]:
    tokens = torch.randint(0, 50_257, (2048, _LENGTH))
    return Model(words), torch.utils.data.TensorDataset(tokens, tokens), _loss


def odd() -> tuple[object, ...]:
    """GPT-2's 50,257 words."""
    return _job(50_257)


def padded() -> tuple[object, ...]:
    """The same with 50,304."""
    return _job(50_304)
