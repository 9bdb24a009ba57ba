"""Which blocks of a model are gathered one at a time."""

from torch import nn

from scalescope.worker.strategies.fsdp import units_of


def test_the_blocks_of_a_sequential_model_are_units() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert units_of(model) == [model[0], model[2]]


def test_a_block_is_not_taken_apart() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), block, nn.Linear(4, 4), nn.Linear(4, 4))
    assert units_of(model) == list(model)


def test_a_container_of_most_parameters_is_taken_apart() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), layers, nn.Linear(4, 4))
    assert units_of(model) == [model[0], *layers, model[2]]


def test_containers_are_found_inside_other_modules() -> None:
    class Model(nn.Module):
        """A list of layers between a beginning and an end."""

        def __init__(self) -> None:
            super().__init__()
            self.begin = nn.Linear(4, 4)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    model = Model()
    assert units_of(model) == list(model.layers)  # what is left over belongs to the root
