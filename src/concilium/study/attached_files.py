"""Files that a study names and its house reads: a dictionary, public stays that teach a student. Across machines they
travel with the study's text.

Protects: the house and its other files, from whoever submits a study. A file has a plain name, lies beside the study
and is what its name says: a dictionary is TOML, stays are CSV or Parquet. No engine that could reach other files opens
it (records/relation.py). What is wrong with it is said without a word of what it holds. Both ends check this.
Cost: the house reads a copy of a Parquet file that it writes anew (records/confined.py), and at most MOST_BYTES.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from concilium.errors import ConciliumError, StudyError
from concilium.records.confined import GIB, read_confined

# Where a study names files that its house reads, and how their names end.
PLACES = {("dictionary", "file"): (".toml",), ("experts", "public"): (".csv", ".parquet")}
ENDINGS = tuple(ending for endings in PLACES.values() for ending in endings)
MOST_BYTES = 1 << 26
MOST_TOML = 1 << 20
MOST_COLUMNS = 2000
TOML_SECONDS, PARQUET_SECONDS = 5, 60

PLAIN = re.compile(r"\w[\w .-]{0,59}")
MAGIC = b"PAR1"
NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def find_attached(path: Path, document: Mapping[str, Any]) -> list[str]:
    """The names of these files; StudyError where one is not in the study's own folder, or of another kind."""
    names = []
    for (section, key), endings in PLACES.items():
        inside = document.get(section)
        name = inside.get(key) if isinstance(inside, dict) else None
        if not isinstance(name, str):
            continue
        if not is_plain(name, endings):
            raise StudyError(
                f"{path}: across machines, [{section}] {key} must be the name of a file beside the study, which is "
                f"sent with it: letters, digits, '-', '_' and blanks, ending in {' or '.join(endings)}; got {name!r}"
            )
        names.append(name)
    return names


def pack_attached(path: Path) -> dict[str, str]:
    """The files that a study names, checked as its house does, ready to be sent."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    packed, left = {}, MOST_BYTES
    for name in find_attached(path, document):
        content = _read_plain_file(path.parent / name, left)
        left -= len(content)
        with tempfile.TemporaryDirectory(prefix="concilium-") as folder:
            try:
                _put(Path(folder) / name, content)
            except ConciliumError as error:
                raise StudyError(str(error).replace(folder, str(path.parent))) from None
        packed[name] = base64.b64encode(zlib.compress(content)).decode("ascii")
    return packed


def _inflate(name: str, text: str, most: int) -> bytes:
    """A file of at most so many bytes, as it was before it was packed."""
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(base64.b64decode(text, validate=True), most + 1)
    except (binascii.Error, zlib.error, ValueError):
        raise StudyError(f"the file {name!r} that came with the study cannot be unpacked") from None
    if len(content) > most or not inflate.eof:
        raise StudyError(f"the file {name!r} that came with the study is cut short, or too large")
    return content


def unpack_attached(packed: Mapping[str, str], folder: Path) -> None:
    """Put the files of a study beside its text; StudyError where it, or one of them, is not what its name says."""
    if len(packed) > len(PLACES):
        raise StudyError(f"at most {len(PLACES)} files come with a study")
    for name, text in packed.items():
        if not isinstance(name, str) or not isinstance(text, str) or not is_plain(name, ENDINGS):
            raise StudyError(
                "a file that came with the study has a name that leads elsewhere, or of no known kind"
            )
    if (folder / "study.toml").exists():
        try:
            _check_toml(folder / "study.toml")
        except ConciliumError:
            raise StudyError("the study's text is not TOML, or too long; submit it again") from None
    left = MOST_BYTES
    for name, text in packed.items():
        content = _inflate(name, text, left)
        left -= len(content)
        try:
            _put(folder / name, content)
        except ConciliumError:
            # What is wrong in it its owner is told where it lies, by `concilium flare submit`.
            raise StudyError(
                f"the file {name!r} that came with the study is not what its name says, or cannot be read; submit the "
                "study again, which says what is wrong before it is sent"
            ) from None


def is_plain(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a name is that of a file in the folder itself, of a kind that its ending says."""
    return PLAIN.fullmatch(name) is not None and name.endswith(endings) and name.lower() != "study.toml"


def _read_plain_file(path: Path, most: int) -> bytes:
    """The bytes of a file that is no link, pipe or device, so that a study sends nothing from elsewhere."""
    advice = "put the file itself beside the study"
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a link" if path.is_symlink() else error.strerror
        raise StudyError(f"{path}: cannot be read ({reason}); {advice}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise StudyError(f"{path}: is a folder, a pipe or a device; {advice}")
        with os.fdopen(file, "rb", closefd=False) as opened:
            content = opened.read(most + 1)
    finally:
        os.close(file)
    if len(content) > most:
        raise StudyError(
            f"{path}: the files of a study may have {MOST_BYTES >> 20} MiB together, and have more"
        )
    return content


def _put(path: Path, content: bytes) -> None:
    """Write a file that is what its name says; ConciliumError where it is not, and nothing is left of it."""
    kind = path.suffix
    received = path.with_name(f"{path.name}.received")
    try:
        with os.fdopen(os.open(received, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        if kind == ".parquet":
            _copy_parquet(path, received, content)
        else:
            os.link(received, path, follow_symlinks=False)  # which replaces nothing
            try:
                _check_dictionary(path) if kind == ".toml" else _check_text(path, content)
            except ConciliumError:
                path.unlink()
                raise
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        received.unlink(missing_ok=True)


def _copy_parquet(path: Path, received: Path, content: bytes) -> None:
    if content[:4] != MAGIC or content[-4:] != MAGIC:
        raise StudyError(f"{path}: is not a Parquet file")
    problem = f"{path} cannot be read as a Parquet file"
    try:
        read_confined(
            "parquet", str(received), str(path), problem=problem, memory=2 * GIB, seconds=PARQUET_SECONDS
        )
    except ConciliumError:
        path.unlink(missing_ok=True)
        raise


def _check_dictionary(path: Path) -> None:
    from concilium.records.dictionary import Dictionary

    _check_toml(path)
    Dictionary.read(path)


def _check_toml(path: Path) -> None:
    """A short text can take TOML's reader hours, or nest deeper than it can follow: found out within limits."""
    if path.stat().st_size > MOST_TOML:
        raise StudyError(f"{path}: a text in TOML may have {MOST_TOML >> 20} MiB, and has more")
    read_confined("toml", str(path), problem=f"{path} cannot be read", seconds=TOML_SECONDS)


def _check_text(path: Path, content: bytes) -> None:
    from concilium.records.delimited import look

    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        raise StudyError(f"{path}: is not text; save the file as UTF-8") from None
    header = content.lstrip().partition(b"\n")[0]
    if NO_TEXT.search(content) or header.count(b'"') % 2:
        raise StudyError(f"{path}: is not a CSV file with a header of one line")
    if max(map(header.count, (b",", b";", b"\t", b"|"))) >= MOST_COLUMNS:
        raise StudyError(f"{path}: stays have at most {MOST_COLUMNS} columns")
    look(path)
