"""Workloads of one's own for tune_lines.py; TUNE_LAYERS, TUNE_WIDTH, TUNE_TOKENS and TUNE_IMAGE set sizes."""

import os

import torch
from torch import nn
from torch.utils.data import Dataset

_WORDS = 1000
_SAMPLES = 4096


def _size(name: str, default: int) -> int:
    return int(os.environ.get(f"TUNE_{name}", default))


class Texts(Dataset):
    """Random words, with the word after each as its target."""

    def __init__(self, tokens: int) -> None:
        self._words = torch.randint(
            _WORDS, (_SAMPLES, tokens + 1), generator=torch.Generator().manual_seed(0)
        )

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = self._words[index]
        return words[:-1], words[1:]


class Images(Dataset):
    """Random images, normalized when they are read."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.rand(3, self._size, self._size, generator=torch.Generator().manual_seed(index))
        return (image - image.mean()) / image.std(), index % 10


class Language(nn.Module):
    """A small transformer that predicts the next word."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        block = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(width, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(words)))


def _loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def transformer():
    """Text; the size of the model decides what limits it."""
    return Language(_size("LAYERS", 2), _size("WIDTH", 128)), Texts(_size("TOKENS", 32)), _loss


def convolutions():
    """Images through a few convolutions; making the images takes time."""
    width, layers = _size("WIDTH", 32), _size("LAYERS", 2)
    blocks = [nn.Conv2d(3 if layer == 0 else width, width, 3, padding=1) for layer in range(layers)]
    body = [part for block in blocks for part in (block, nn.BatchNorm2d(width), nn.ReLU())]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return model, Images(_size("IMAGE", 32)), nn.functional.cross_entropy
