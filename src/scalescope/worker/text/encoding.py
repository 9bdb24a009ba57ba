"""Texts as rows of word ids of equal length, and as data sets that return whole batches."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalescope.worker.text.vocabulary import PADDING, UNKNOWN, Vocabulary, words_of
from scalescope.worker.training.evaluation import IGNORED

Pair = tuple[Tensor, Tensor]


def encode(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> Tensor:
    """Word ids, int32, texts × `length`: cut or padded at the end; an empty text is one unknown word."""
    ids = array("i")
    for text in texts:
        row = [vocabulary.get(word, UNKNOWN) for word in words_of(text)[:length]] or [UNKNOWN]
        ids.extend(row)
        ids.extend([PADDING] * (length - len(row)))
    return torch.frombuffer(ids, dtype=torch.int32).view(len(texts), length)


def continued(tokens: Tensor) -> Pair:
    """Inputs and the next token for each; padding is not a target."""
    targets = tokens[:, 1:].long()
    return tokens[:, :-1], targets.masked_fill(targets == PADDING, IGNORED)


class ClassifiedTexts(Dataset[Pair]):
    """Tokens and class by number; a list of numbers gives a batch at once."""

    def __init__(self, tokens: Tensor, labels: Tensor) -> None:
        self._tokens = tokens
        self._labels = labels

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> Pair:
        return self._tokens[number], self._labels[number]

    def __getitems__(self, numbers: list[int]) -> Pair:
        return self._tokens[numbers], self._labels[numbers]


class ContinuedTexts(Dataset[Pair]):
    """Tokens and the tokens that follow them by number; a list of numbers gives a batch at once."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> Pair:
        inputs, targets = self.__getitems__([number])
        return inputs[0], targets[0]

    def __getitems__(self, numbers: list[int]) -> Pair:
        return continued(self._tokens[numbers])
