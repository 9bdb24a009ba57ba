"""scalescope: measures how PyTorch training scales, explains what is lost, and proves what fixes it.

Names are loaded on first use: every rank imports this package and must not load the controller.
"""

import importlib

TYPE_CHECKING = False  # as in typing, without importing it
if TYPE_CHECKING:
    from typing import Any

_MODULES = {
    "__version__": "scalescope.version",
    "Estimate": "scalescope.analysis.statistics",
    "Job": "scalescope.job",
    "Result": "scalescope.results.result",
    "Run": "scalescope.results.run",
    "ScalescopeError": "scalescope.errors",
    "Trial": "scalescope.experiment.trial",
    "Collectives": "scalescope.api.results",
    "Scaling": "scalescope.api.results",
    "StoredRun": "scalescope.api.results",
    "Trained": "scalescope.api.results",
    "Tuned": "scalescope.api.results",
    "comm": "scalescope.api.measuring",
    "configurations": "scalescope.analysis.configurations",
    "load": "scalescope.api.results",
    "load_run": "scalescope.results.run",
    "scale": "scalescope.api.measuring",
    "scaling_rows": "scalescope.analysis.scaling.rows",
    "step": "scalescope.steps",
    "train": "scalescope.api.measuring",
    "tune": "scalescope.api.measuring",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module 'scalescope' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
