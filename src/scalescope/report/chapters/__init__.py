"""Chapters of a report, one file each: `chapter(material)` makes one, or None without anything to say."""
