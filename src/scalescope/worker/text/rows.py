"""Reads texts from CSV files and folders; errors name the file and line."""

import csv
from collections.abc import Iterator
from pathlib import Path

from scalescope.errors import BadInput

_LONGEST_FIELD = 1 << 24  # the csv module's default is below the longest reviews


def csv_rows(path: Path, fields: int) -> Iterator[tuple[str, list[str]]]:
    """Every row with the `file:line` where it begins; blank lines are skipped."""
    csv.field_size_limit(_LONGEST_FIELD)
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            for row in reader:
                where = f"{path}:{line}"
                if row and len(row) != fields:
                    raise BadInput(f"{where}: {len(row)} field{'s' * (len(row) > 1)}; expected {fields}")
                if row:
                    yield where, row
                line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{path}:{line}: {error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def text_files(folder: Path) -> Iterator[str]:
    """The text of every .txt file of a folder, ordered by name."""
    for path in sorted(folder.glob("*.txt")):
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: not UTF-8 text ({error.reason})") from None
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
