"""Hashes and the bill of materials name the same versions as constraints.txt; nothing core is missing."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_RENEW = "run `make pins`"
_BLOCK = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def pinned() -> Iterator[Any]:
    """tools/pinned.py, which is a script's module and not a package's."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import pinned

        yield pinned
    finally:
        sys.path.remove(str(ROOT / "tools"))


def _hashed() -> dict[str, str]:
    text = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert len(blocks) == sum("==" in line for line in text.splitlines() if not line.startswith("#"))
    return {name: version for name, version, _ in blocks}


def _bill() -> dict[str, Any]:
    bill: dict[str, Any] = json.loads((ROOT / "docs" / "sbom.cdx.json").read_text(encoding="utf-8"))
    return bill


def test_every_core_package_has_hashes_of_its_pinned_version(pinned: Any) -> None:
    versions = pinned.pinned_versions()
    assert _hashed() == {name: versions[name] for name in pinned.core_names()}, _RENEW


def test_torch_and_extras_are_not_core(pinned: Any) -> None:
    names = pinned.core_names()
    assert {"click", "pydantic", "PyYAML", "rich"} <= set(names)
    assert not {"torch", "matplotlib", "pytest"} & set(names)


def test_the_bill_of_materials_names_every_pinned_version(pinned: Any) -> None:
    components = _bill()["components"]
    assert {each["name"]: each["version"] for each in components} == pinned.pinned_versions(), _RENEW
    required = {each["name"] for each in components if each["scope"] == "required"}
    assert required == set(pinned.core_names())


def test_the_bill_of_materials_is_cyclonedx() -> None:
    bill = _bill()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references)
    known = {*references, bill["metadata"]["component"]["bom-ref"]}
    for entry in bill["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= known
    assert all(each.get("licenses") for each in bill["components"])
