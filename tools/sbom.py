"""Writes docs/sbom.cdx.json: every pinned package as a CycloneDX 1.6 bill of materials.

    python tools/sbom.py

Versions are those of constraints.txt; licences and what needs what come from the metadata of the packages
that are installed. The same input gives the same file: it holds no time and no random number.
"""

import importlib.metadata
import json
import uuid
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pinned import ROOT, core_names, pinned_versions

FILE = ROOT / "docs" / "sbom.cdx.json"
_HASHED = ROOT / "constraints-hashed.txt"
_CLASSIFIER = "License :: OSI Approved :: "
# Licences that older metadata writes in words, as SPDX names them.
_IN_WORDS = {
    "MIT": "MIT",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(bill_of_materials(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(pinned_versions())} packages")


def bill_of_materials() -> dict[str, Any]:
    """The project, its pinned packages, and what each of them needs."""
    versions = pinned_versions()
    core = set(core_names())
    hashes = _hashes()
    components = [_component(name, version, name in core, hashes) for name, version in versions.items()]
    needs = [{"ref": "scalescope", "dependsOn": sorted(_reference(name, versions[name]) for name in core)}]
    needs += [_needs(name, versions) for name in versions]
    content = json.dumps([components, needs], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": _project()},
        "components": components,
        "dependencies": needs,
    }


def _project() -> dict[str, Any]:
    return {
        "type": "application",
        "bom-ref": "scalescope",
        "name": "scalescope",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }


def _component(name: str, version: str, in_core: bool, hashes: dict[str, list[str]]) -> dict[str, Any]:
    """A package: `required` is installed with scalescope, `optional` is of an extra or for development."""
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(name, version),
        "name": name,
        "version": version,
        "purl": _reference(name, version),
        "scope": "required" if in_core else "optional",
    }
    if (licence := _licence(name)) is not None:
        component["licenses"] = [licence]
    if digests := hashes.get(name):
        component["properties"] = [{"name": "scalescope:wheel:sha256", "value": digest} for digest in digests]
    return component


def _reference(name: str, version: str) -> str:
    return f"pkg:pypi/{canonicalize_name(name)}@{version}"


def _needs(name: str, versions: dict[str, str]) -> dict[str, Any]:
    spelled = {canonicalize_name(each): each for each in versions}
    required = {canonicalize_name(text.name) for text in _requirements_of(name)} & spelled.keys()
    refs = sorted(_reference(each, versions[spelled[each]]) for each in required)
    return {"ref": _reference(name, versions[name]), "dependsOn": refs}


def _requirements_of(name: str) -> list[Requirement]:
    requirements = [Requirement(text) for text in _metadata(name).get_all("Requires-Dist") or ()]
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


def _metadata(name: str) -> Any:
    return importlib.metadata.metadata(name)


def _licence(name: str) -> dict[str, Any] | None:
    """The licence as SPDX names it where the metadata is clear, otherwise in the package's words."""
    metadata = _metadata(name)
    if metadata.get("License-Expression"):
        return {"expression": metadata["License-Expression"]}
    classifiers = metadata.get_all("Classifier") or ()
    words = [text.removeprefix(_CLASSIFIER) for text in classifiers if text.startswith(_CLASSIFIER)]
    words = words or (metadata.get("License") or "").strip().splitlines()[:1]
    if not words:
        return None
    if all(word in _IN_WORDS for word in words):
        return {"expression": " AND ".join(dict.fromkeys(_IN_WORDS[word] for word in words))}
    return {"license": {"name": "; ".join(words)}}


def _hashes() -> dict[str, list[str]]:
    """By package, what constraints-hashed.txt has."""
    hashes: dict[str, list[str]] = {}
    name = ""
    for line in _HASHED.read_text(encoding="utf-8").splitlines():
        if "==" in line:
            name = line.partition("==")[0]
        elif "--hash=sha256:" in line:
            hashes.setdefault(name, []).append(line.partition("sha256:")[2].rstrip(" \\"))
    return hashes


if __name__ == "__main__":
    main()
