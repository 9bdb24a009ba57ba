"""The sharded optimizer without its broadcasts."""

import pytest
import torch

from scalescope.errors import BadInput


# torch warns of itself when this part of it is imported
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_an_optimizer_that_broadcasts_in_another_way_is_refused() -> None:
    from scalescope.worker.ablations.local_update import keep_update_local

    with pytest.raises(BadInput, match="cannot update without communication"):
        keep_update_local(torch.optim.SGD([torch.zeros(1)], lr=1.0))  # type: ignore[arg-type]
