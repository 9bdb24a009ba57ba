"""The `transformer` workload: its operations, its padding and how it learns to go on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scalescope.catalog.workloads.transformer import Transformer
from scalescope.worker.text import Corpus, corpus_of
from scalescope.worker.training.step import BuildContext, Workload
from scalescope.worker.workloads.transformer import build

CPU = torch.device("cpu")
TASKS = ["classification", "next_token"]


def card(**changes: Any) -> Transformer:
    small = {
        "d_model": 32,
        "n_heads": 4,
        "num_layers": 2,
        "dim_feedforward": 48,
        "max_seq_len": 16,
        "vocab_size": 50,
        "dropout": 0.0,
        "task": "classification",
        "num_classes": None,
    }
    return Transformer(**{**small, **changes})


def made(corpus: Corpus | None = None, seed: int = 0, **changes: Any) -> Workload:
    torch.manual_seed(seed)
    context = BuildContext(reference="transformer", rank=0, world_size=1, batch_size=4, corpus=corpus)
    return build(card(**changes), CPU, context)


def batch_of(workload: Workload, count: int = 4) -> tuple[Tensor, Tensor]:
    assert workload.data.synthesize is not None
    tokens, targets = workload.data.synthesize(count, torch.Generator().manual_seed(1))
    return tokens, targets


@pytest.fixture
def corpus(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [("good film", 1), ("bad film that is very long indeed and goes on", 0), ("", 1), ("bad", 0)]
    return corpus_of("made", rows, rows[:2], 2)


@pytest.mark.parametrize("task", TASKS)
def test_the_cards_formula_is_what_torch_counts(task: str) -> None:
    """Counted with plain products: the counter knows nothing of the CPU's fused attention."""
    workload = made(task=task)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        workload.loss_of(workload.model, batch_of(workload)).backward()
    assert counter.get_total_flops() / 4 == pytest.approx(card(task=task).flops_per_sample(), rel=0.02)


@pytest.mark.parametrize("task", TASKS)
def test_every_part_takes_and_returns_one_tensor(task: str) -> None:
    workload = made(task=task)
    assert isinstance(workload.model, nn.Sequential)
    assert len(workload.model) == 4
    stream, _ = batch_of(workload)
    for part in workload.model:
        stream = part(stream)
        assert isinstance(stream, Tensor)
    assert stream.shape == ((4, 4) if task == "classification" else (4, 16, 50))


def test_the_same_seed_gives_the_same_parameters() -> None:
    first, again, other = made(), made(), made(seed=1)
    pairs = zip(first.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(first, two) for first, two in pairs)
    assert all(parameter.dtype == torch.float32 for parameter in first.model.parameters())
    assert not torch.equal(next(first.model.parameters()), next(other.model.parameters()))


@pytest.mark.parametrize("task", TASKS)
def test_a_step_can_be_made_without_any_memory(task: str) -> None:
    with FakeTensorMode():
        workload = made(task=task, dropout=0.1)
        workload.loss_of(workload.model, batch_of(workload)).backward()
        shapes = [
            parameter.grad.shape for parameter in workload.model.parameters() if parameter.grad is not None
        ]
    assert shapes == [parameter.shape for parameter in workload.model.parameters()]


def test_synthetic_samples_are_attended_to_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*arguments: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        masks.append(attn_mask)
        return attention(*arguments, attn_mask=attn_mask, is_causal=is_causal)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for task in TASKS:
        workload = made(task=task)
        workload.model(batch_of(workload)[0])
    assert masks == [None] * 4


def test_padding_changes_no_answer(corpus: Corpus) -> None:
    """A text padded to 16 tokens and the same text alone are answered alike."""
    model = made(corpus, dropout=0.1).model.eval()
    text = torch.tensor([[5, 3, 7, 2]])
    padded = nn.functional.pad(text, (0, 12))
    torch.testing.assert_close(model(padded), model(text))


def test_padded_positions_stay_zero_through_every_block(corpus: Corpus) -> None:
    workload = made(corpus, dropout=0.5)
    tokens, _ = workload.data.samples.__getitems__([0, 1, 2, 3])
    stream = tokens
    for part in list(workload.model)[:-1]:
        stream = part(stream)
        assert torch.equal(stream.ne(0).any(dim=-1), tokens != 0)


def test_a_next_token_model_predicts_what_follows_and_sees_nothing_of_it() -> None:
    workload = made(task="next_token")
    tokens, targets = batch_of(workload)
    assert torch.equal(tokens[:, 1:].long(), targets[:, :-1])
    assert (tokens >= 2).all()
    assert tokens.shape == targets.shape == (4, 16)
    changed = tokens.clone()
    changed[:, 10:] = 2
    torch.testing.assert_close(workload.model(tokens)[:, :10], workload.model(changed)[:, :10])


def test_texts_without_a_second_word_cost_nothing_and_no_nan(corpus: Corpus) -> None:
    workload = made(corpus, task="next_token")
    inputs, targets = workload.data.samples.__getitems__([2, 3])
    assert (targets == -100).all()
    assert workload.loss_of(workload.model, (inputs, targets)) == 0.0


def test_a_corpus_brings_its_own_classes(corpus: Corpus) -> None:
    workload = made(corpus)
    assert workload.model[-1].output.out_features == 2  # type: ignore[index]
    assert (len(workload.data.samples), len(workload.data.validation)) == (4, 2)


def test_it_learns_what_is_in_the_texts(corpus: Corpus) -> None:
    workload = made(corpus)
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=0.01)
    batch = workload.data.samples.__getitems__([0, 1, 3])
    for _ in range(30):
        optimizer.zero_grad()
        loss = workload.loss_of(workload.model, batch)
        loss.backward()
        optimizer.step()
    assert loss < 0.05
