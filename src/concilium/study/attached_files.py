"""Files that a study names and its house reads: a dictionary, public stays that teach a student. Across machines they
travel with the study's text.

Who is protected: the house, from whoever submits a study. A study that comes from elsewhere names files of its own
folder only, so that it can neither have other files of the house read nor write any; of them come so many bytes at
most, packed and unpacked.
"""

from __future__ import annotations

import base64
import binascii
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from concilium.errors import StudyError

# Where a study names files that its house reads.
PLACES = (("dictionary", "file"), ("experts", "public"))
MOST_BYTES = 1 << 26


def find_attached(path: Path, document: Mapping[str, Any]) -> list[str]:
    """The names of these files; StudyError where one is not in the study's own folder."""
    names = []
    for section, key in PLACES:
        inside = document.get(section)
        name = inside.get(key) if isinstance(inside, dict) else None
        if not isinstance(name, str):
            continue
        if not is_plain(name):
            raise StudyError(
                f"{path}: across machines, [{section}] {key} must be the name of a file beside the study, which is "
                f"sent with it; got {name!r}"
            )
        names.append(name)
    return names


def pack_attached(path: Path) -> dict[str, str]:
    """The files that a study names, ready to be sent."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    packed, left = {}, MOST_BYTES
    for name in find_attached(path, document):
        try:
            content = (path.parent / name).read_bytes()
        except OSError as error:
            raise StudyError(f"{path.parent / name}: cannot be read ({error.strerror})") from None
        left -= len(content)
        if left < 0:
            raise StudyError(
                f"{path.parent / name}: the files of a study may have {MOST_BYTES >> 20} MiB together, which is less"
            )
        packed[name] = base64.b64encode(zlib.compress(content)).decode("ascii")
    return packed


def unpack_attached(packed: Mapping[str, str], folder: Path) -> None:
    """Put the files of a study into a folder of its own; StudyError where they are none."""
    left = MOST_BYTES
    for name, text in packed.items():
        if not isinstance(name, str) or not isinstance(text, str) or not is_plain(name):
            raise StudyError("a file that came with the study has a name that leads elsewhere")
        try:
            inflate = zlib.decompressobj()
            content = inflate.decompress(base64.b64decode(text, validate=True), left + 1)
        except (binascii.Error, zlib.error):
            raise StudyError(f"the file {name!r} that came with the study cannot be unpacked") from None
        left -= len(content)
        if left < 0 or not inflate.eof:
            raise StudyError(f"the file {name!r} that came with the study is cut short, or too large")
        (folder / name).write_bytes(content)


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in the folder itself."""
    return name not in ("", ".", "..", "study.toml") and PurePath(name).name == name and name.isprintable()
