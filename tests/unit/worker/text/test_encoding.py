"""Texts as rows of ids, and the data sets made of them."""

import torch
from torch.utils.data import DataLoader

from scalescope.worker.text.encoding import ClassifiedTexts, ContinuedTexts, encode

WORDS = {"a": 2, "b": 3}


def test_texts_are_cut_padded_and_never_empty() -> None:
    tokens = encode(["A b", "a b a b", "zebra", "", "..."], WORDS, 3)
    assert tokens.dtype == torch.int32
    assert tokens.tolist() == [[2, 3, 0], [2, 3, 2], [1, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_a_batch_at_once_is_what_single_samples_are() -> None:
    tokens = encode(["a b a", "b a", "b"], WORDS, 4)
    for data in (ClassifiedTexts(tokens, torch.tensor([0, 1, 0])), ContinuedTexts(tokens)):
        together = data.__getitems__([2, 0])
        alone = [data[2], data[0]]
        for part in (0, 1):
            assert torch.equal(together[part], torch.stack([sample[part] for sample in alone]))
        assert len(data) == 3


def test_next_tokens_are_no_padding() -> None:
    inputs, targets = ContinuedTexts(encode(["a b a", "b"], WORDS, 4)).__getitems__([0, 1])
    assert inputs.tolist() == [[2, 3, 2], [3, 0, 0]]
    assert targets.tolist() == [[3, 2, -100], [-100, -100, -100]]


def test_a_loader_hands_out_whole_batches() -> None:
    data = ClassifiedTexts(encode(["a", "b", "a"], WORDS, 2), torch.tensor([0, 1, 0]))
    batches = list(DataLoader(data, batch_size=2, collate_fn=lambda batch: batch))
    assert [tokens.shape for tokens, _ in batches] == [(2, 2), (1, 2)]
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [0]]
