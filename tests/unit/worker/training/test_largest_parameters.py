"""The parameters that most bytes of gradients belong to."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from scalescope.worker.training.ddp_logging import largest_parameters  # noqa: E402


class Words(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 16, sparse=sparse)
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x))


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_that_a_batch_changes_are_counted(sparse: bool) -> None:
    model = nn.ModuleDict({"module": Words(sparse=sparse)})
    model["module"](torch.arange(10)).sum().backward()
    (row,) = largest_parameters([model], model.parameters())  # all others are a thousandth of it
    assert row == {
        "name": "words.weight",
        "bytes": 64_000,
        "rows": 1000,
        "changed_share": pytest.approx(0.01),
    }


def test_before_a_backward_pass_nothing_is_known_of_rows() -> None:
    model = Words()
    (row,) = largest_parameters([model], model.parameters())
    assert row["changed_share"] is None
    model.words.weight.requires_grad = False
    names = [row["name"] for row in largest_parameters([model], model.parameters())]
    assert names == ["out.weight", "out.bias"]
