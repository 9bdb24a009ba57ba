"""Chapters of a report, one file each: `chapter(report_input)` makes one, or None if it would be empty."""
