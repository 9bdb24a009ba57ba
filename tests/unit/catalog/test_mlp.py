"""The arithmetic of the `mlp` card."""

from scalescope.catalog.workloads.mlp import Mlp


def test_layers_reach_from_the_input_to_the_output() -> None:
    card = Mlp(input_dim=2, hidden_dim=3, num_layers=2, output_dim=5)
    assert card.layer_widths == ((2, 3), (3, 3), (3, 5))


def test_flops_count_no_input_gradient_for_the_first_layer() -> None:
    """Weights 6, 9 and 15: two operations forward and four backward each, less two for the first."""
    card = Mlp(input_dim=2, hidden_dim=3, num_layers=2, output_dim=5)
    assert card.flops_per_sample() == 6 * (6 + 9 + 15) - 2 * 6
