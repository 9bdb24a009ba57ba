"""Chapters of a report, one file each: `chapter(report_input)` makes one, or None without anything to say."""
