"""The matrix of nvidia-smi: paths to network cards, by the names of their devices."""

from scalescope.link_matrix import links_of, nic_links_of

# Two GPUs and two cards of a machine with NVLink, as nvidia-smi 550 draws it.
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n\n"
)


def test_paths_to_cards_have_the_names_of_the_devices() -> None:
    assert nic_links_of(MATRIX) == {
        (0, "mlx5_0"): "PIX",
        (0, "mlx5_bond_0"): "SYS",
        (1, "mlx5_0"): "SYS",
        (1, "mlx5_bond_0"): "PXB",
    }
    assert links_of(MATRIX) == {(0, 1): "NV18", (1, 0): "NV18"}


def test_older_drivers_name_the_devices_in_the_heading() -> None:
    old = "\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nmlx5_0\tPHB\t X \t\n"
    assert nic_links_of(old) == {(0, "mlx5_0"): "PHB"}


def test_without_a_matrix_there_are_no_paths() -> None:
    assert nic_links_of("") == {}
