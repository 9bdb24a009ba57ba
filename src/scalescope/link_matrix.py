"""The matrix of `nvidia-smi topo -m`: paths between GPUs, to network cards, and the cores near each GPU."""

import re

_PATH = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND = re.compile(r"\s*(NIC\d+): (\S+)")


def links_of(text: str) -> dict[tuple[int, int], str]:
    """(GPU, GPU) → NV18, PIX, PXB, PHB, NODE or SYS."""
    links = {}
    for gpu, name, path in _cells(text):
        other = re.fullmatch(r"GPU(\d+)", name)
        if other:
            links[gpu, int(other[1])] = path
    return links


def nic_links_of(text: str) -> dict[tuple[int, str], str]:
    """(GPU, network card) → PIX, PXB, PHB, NODE or SYS; cards by the names of their devices."""
    legend = [match for line in text.splitlines() if (match := _LEGEND.fullmatch(line.rstrip()))]
    devices = {match[1]: match[2] for match in legend}
    return {
        (gpu, devices.get(name, name)): path
        for gpu, name, path in _cells(text)
        if not re.fullmatch(r"GPU\d+", name)
    }


def _cells(text: str) -> list[tuple[int, str, str]]:
    """(GPU of the row, name of the column, path); NICs and affinities stand to the right of the GPUs."""
    cells_of_gpus = []
    columns: list[str] = []
    for line in _COLOR.sub("", text).splitlines():
        cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
        if not columns and "GPU0" in cells:
            columns = [cell for cell in cells if cell]
            continue
        row = re.fullmatch(r"GPU(\d+)", cells[0]) if cells else None
        if row:
            cells_of_gpus += [
                (int(row[1]), name, cell)
                for name, cell in zip(columns, cells[1:], strict=False)
                if _PATH.fullmatch(cell)
            ]
    return cells_of_gpus


def matrix_of(text: str) -> list[str]:
    """The link matrix as nvidia-smi draws it, without its legend; empty for a single GPU."""
    if not links_of(text):
        return []
    plain = _COLOR.sub("", text)
    return [line.rstrip().expandtabs(8) for line in plain.splitlines() if re.match(r"\s*(GPU|NIC)\d", line)]


def affinities_of(text: str) -> dict[int, tuple[str, str]]:
    """GPU → (CPUs, NUMA node) from the last columns."""
    lines = _COLOR.sub("", text).splitlines()
    header = next((line.split("\t") for line in lines if "CPU Affinity" in line), None)
    if header is None:
        return {}
    places = [n for n, cell in enumerate(header) if cell.strip() in ("CPU Affinity", "NUMA Affinity")]
    affinities = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        match = re.fullmatch(r"GPU(\d+)", cells[0])
        if match and len(places) == 2 and len(cells) > places[1]:
            affinities[int(match[1])] = (cells[places[0]] or "unknown", cells[places[1]] or "unknown")
    return affinities
