"""Whether a file begins with all of a file that was read before, so that only what came after needs to be read.

Claim. Where `begins_with` says so, the rows of the earlier file are the first rows of this one, cell by cell: all its
bytes up to the end of its last row are the same (SHA-256), a text file was and is split at the same sign under the same
header and ended with a line, and of a Parquet file schema and footer say the same of all row groups that there were. A
file that cannot be told so (gzip, databases, one that was written anew in another way) is read again as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXTS = (".csv", ".tsv")
AT_ONCE = 1 << 22


def describe_contents(path: Path) -> dict[str, Any] | None:
    """What a later version of this file is compared with; None where it cannot be."""
    name = path.name.lower()
    if name.endswith(TEXTS):
        layout, size = _describe_text(path), path.stat().st_size
        with path.open("rb") as file:
            file.seek(size - 1)
            if file.read() != b"\n":  # the last line may go on
                return None
    elif name.endswith(".parquet"):
        layout, size = _describe_parquet(path)
    else:
        return None
    return {**layout, "bytes": size, "sha256": _hash_begin(path, size)}


def begins_with(path: Path, before: Mapping[str, Any]) -> bool:
    """Whether this file is the one that was described, and more."""
    if path.stat().st_size <= before["bytes"]:
        return False
    if "groups" in before:
        layout, size = _describe_parquet(path, before["groups"])
        if size != before["bytes"]:
            return False
    else:
        layout = _describe_text(path)
    same = all(before.get(key) == value for key, value in layout.items())
    return same and _hash_begin(path, before["bytes"]) == before["sha256"]


def _describe_text(path: Path) -> dict[str, Any]:
    from concilium.records.delimited import look

    layout = look(path)
    return {"layout": [layout.delimiter, list(layout.names), layout.line]}


def _describe_parquet(path: Path, groups: int | None = None) -> tuple[dict[str, Any], int]:
    """The first row groups (None: all), and the place in the file where they end."""
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    many = about.num_row_groups if groups is None else min(groups, about.num_row_groups)
    columns = [
        about.row_group(group).column(place) for group in range(many) for place in range(about.num_columns)
    ]
    told, end = [], 0
    for one in columns:  # of their statistics some cannot be read, such as dates before the year 1
        start = min(one.data_page_offset, one.dictionary_page_offset or one.data_page_offset)
        end = max(end, start + one.total_compressed_size)
        told.append((one.path_in_schema, one.physical_type, one.compression, one.num_values, start, end))
    fields = [(field.name, str(field.type)) for field in parquet.read_schema(path)]
    schema = [str(about.schema.column(place)) for place in range(about.num_columns)]
    said = f"{fields}\n{schema}\n{told}"
    return {"groups": many, "layout": hashlib.sha256(said.encode()).hexdigest()}, end


def _hash_begin(path: Path, size: int) -> str:
    """SHA-256 of the first bytes of a file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while size and (content := file.read(min(size, AT_ONCE))):
            hasher.update(content)
            size -= len(content)
    return hasher.hexdigest()
