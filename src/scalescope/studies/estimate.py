"""The estimate of --dry-run, under the name that `tune` imports."""

from scalescope.studies.durations import estimate_s

__all__ = ["estimate_s"]
