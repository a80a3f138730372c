"""A table that was read once, on the hospital's disk: coded columns that are mapped into memory where they are asked
for.

    north.ledger.columns/
        4f1c...-k3x_.../            one reading of one table, by its digest
            table.json              names, kinds and values of the columns, and which file it was read from
            0.codes  1.numbers ...  a file for each column: codes of one, two or four bytes, or numbers of eight
            rows.hashes             two hashes of each row (row_hashes.py)

Who is protected: the patients, from other users of the machine: folders are 0700 and files 0600. A store holds what the
table holds, as readably: keep it where the table may be kept. *Not protected:* from whoever reads the hospital's files.

A store is taken for its source while that is as it was (unchanged.py). Where a file has only grown (growth.py), the
next store goes on with the files of the one before: what is in them stays, and more comes behind it. `concilium columns
check` reads everything. A store that is damaged, or half-written, is written again; the one before stays until the new
one is there, and as long as a process has it open.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError
from concilium.records import streaming
from concilium.records.batches import KEEPER, BatchReader, DeclaredColumn, LaterReader, NotContinued
from concilium.records.blocks import fill_room, list_blocks, read_block, split_hashes
from concilium.records.coding import Place
from concilium.records.columns import Coded, Column, Moments, Numbers, RowValues, Value
from concilium.records.grammar import canonical
from concilium.records.growth import begins_with, describe_contents
from concilium.records.row_hashes import Hashes, digest_rows, hash_rows
from concilium.records.streaming import (
    Finished,
    NotStreamed,
    RowCoder,
    StreamCoder,
    begin_writing,
    code_on_all_cores,
    get_rows,
    open_for_owner,
)
from concilium.records.unchanged import Identity

log = logging.getLogger(__name__)

FORMAT = "concilium/columns@1"
MANIFEST, HASHES, FACTS, LOCK, PARTIAL = "table.json", "rows.hashes", "facts.json", "lock", "part-"
LARGE = 1 << 25  # cells from which on a table is kept in a store
YOUNG = 2 * 10**9  # nanoseconds in which a file may change twice with one time


@dataclass(frozen=True)
class Store:
    """One reading of one table on disk."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    @property
    def rows(self) -> int:
        return int(self.manifest["rows"])

    @property
    def hashes(self) -> Hashes:
        return np.memmap(self.folder / HASHES, dtype="<u8", mode="r", shape=(2, self.rows))

    @property
    def bytes(self) -> int:
        return sum(entry.stat().st_size for entry in os.scandir(self.folder))

    @property
    def source(self) -> str:
        return str(self.manifest["source"]["path"])

    def recall(self, fact: str, find: Callable[[], Any]) -> Any:
        """What was found once of this table, such as whether a column identifies patients; kept beside it."""
        place = self.folder / FACTS
        try:
            facts = json.loads(place.read_bytes())
        except (OSError, ValueError):
            facts = {}
        if fact not in facts:
            facts[fact] = find()
            with suppress(OSError):  # of a full disk: it is found again
                _write_json(place.with_suffix(f".{os.getpid()}"), facts).replace(place)
        return facts[fact]

    def recall_numbers(self, state: object) -> NDArray[np.uint32] | None:
        """The numbers that a ledger has for these rows, as it was in this state; None where that is not known."""
        for place in self.folder.glob(f"numbers-{_digest(state)[:32]}-*"):
            size = 4 * self.rows
            if place.stat().st_size == size and f"{_check(place, size):08x}" == place.name[-8:]:
                return np.memmap(place, dtype="<u4", mode="r", shape=(self.rows,))
        return None

    def keep_numbers(self, state: object, numbers: NDArray[np.uint32]) -> None:
        """Keep the numbers of a ledger's state, and those of no other; if not kept, they are found anew."""
        draft = self.folder / f"draft-{os.getpid()}"
        try:
            _, checksum = _write_array(
                draft, (read_block(numbers, block) for block in list_blocks(self.rows))
            )
            for older in self.folder.glob("numbers-*"):
                older.unlink()
            draft.rename(self.folder / f"numbers-{_digest(state)[:32]}-{checksum:08x}")
        except OSError:
            draft.unlink(missing_ok=True)

    def list_files(self) -> Iterator[tuple[str, int, int]]:
        """Name, size and checksum of every file but the manifest."""
        entries = [*self.manifest["columns"], *(self.manifest["raw"] or ())]
        files = {str(name): (size, checksum) for entry in entries for name, size, checksum in entry["files"]}
        for name, (size, checksum) in {**files, HASHES: self.manifest["hashes"]}.items():
            yield name, int(size), int(checksum)

    def is_complete(self) -> bool:
        """Whether all files are there and as long as they were; a later store may have gone on with them."""
        try:
            return all((self.folder / name).stat().st_size >= size for name, size, _ in self.list_files())
        except OSError:
            return False

    def find_damage(self) -> list[str]:
        """The files that are not as they were written; all bytes are read."""
        damaged = []
        for name, size, checksum in self.list_files():
            try:
                place = self.folder / name
                if place.stat().st_size < size or _check(place, size) != checksum:
                    damaged.append(name)
            except OSError:
                damaged.append(name)
        return damaged


class StoredColumns(Mapping[str, Column]):
    """The columns of a store, each mapped when it is first asked for."""

    def __init__(self, store: Store, *, raw: bool = False) -> None:
        self.store = store
        self._entries = {str(entry["name"]): entry for entry in store.manifest["raw" if raw else "columns"]}
        self._open: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._open:
            self._open[name] = _map_column(self.store.folder, self._entries[name], self.store.rows)
        return self._open[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def list_stores(root: Path) -> list[Store]:
    """The stores that are there and can be read, the newest first."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        manifest = _read_manifest(folder)
        if manifest is not None:
            found.append(Store(folder, manifest))
    return sorted(found, key=lambda one: -float(one.manifest["written"]))


def remove_stores(root: Path) -> tuple[int, int]:
    """Delete all stores, half-written ones among them: how many were deleted, and how many some process has open."""
    if not root.is_dir():
        return 0, 0
    with _locked(root):
        removed = [_remove(one) for one in root.iterdir() if one.is_dir()]
    return sum(removed), len(removed) - sum(removed)


def _hold(store: Store) -> Store | None:
    """The same, not to be removed while it is in use; None where it was just removed."""
    try:
        handle = (store.folder / MANIFEST).open("rb")
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:
        return None
    weakref.finalize(store, handle.close)
    return store if store.is_complete() else None


def _remove(folder: Path) -> bool:
    """Delete a store that no process has open; whether it was."""
    try:
        with (folder / MANIFEST).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except BlockingIOError:
        return False
    except OSError:  # half-written: there is no manifest
        shutil.rmtree(folder, ignore_errors=True)
    return True


def find_store(root: Path, identity: Identity, reading: Mapping[str, Any]) -> Store | None:
    """The store of a source as it is now, read in this way; None where there is none that can be used."""
    for store in list_stores(root):
        if store.manifest["source"] == identity and store.manifest["reading"] == _digest(reading):
            held = _hold(store)
            if held is not None:
                return held
            log.warning("%s is damaged or incomplete: the table is read again", store.folder)
    return None


def write_store(
    root: Path,
    identify: Callable[[], Identity | None],
    reading: Mapping[str, Any],
    read: Callable[[], object],
) -> Store | None:
    """Read a table into a store; None where it cannot be kept in one, and why is logged. What was there before of this
    source is deleted once the new one is complete."""
    with _locked(root), _saying_full(root):
        begun, identity = time.time_ns(), dict(identify() or {})
        source = identity["path"]
        found = find_store(root, identity, reading)  # by another process, meanwhile
        if found is not None:
            return found
        for leftover in root.glob(f"{PARTIAL}*"):
            log.warning("%s was not finished: it is deleted, and the table read again", leftover)
            shutil.rmtree(leftover)
        folder = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=root))
        try:
            log.info("%s is read into %s once", source, root)
            is_file = "inode" in identity and "cohort" not in identity
            before = _find_grown(root, source, _digest(reading)) if is_file else None
            manifest = _write_columns(folder, read, before)
            if manifest is None:
                return None
            manifest["contents"] = describe_contents(Path(source)) if is_file else None
            if "changed" in identity:
                if identify() != identity:
                    raise RecordsError(
                        f"{source} changed while it was read: read it again once it is complete"
                    )
                if begun - max(identity["modified"], identity["changed"]) < YOUNG:
                    identity["changed"] = 0  # it may change again within the same time: it is read anew
            manifest |= {"source": identity, "reading": _digest(reading), "written": time.time()}
            _sync(_write_json(folder / MANIFEST, manifest))
            for file in list(folder.iterdir()):
                _sync(file)
            older = [one for one in list_stores(root) if one.source == source]
            final = root / f"{manifest['digest'][:32]}-{folder.name.removeprefix(PARTIAL)}"
            folder.rename(final)
            _sync(root)
            for one in older:
                if one.manifest["reading"] == manifest["reading"]:
                    _remove(one.folder)
            return _hold(Store(final, manifest))
        finally:
            for leftover in root.glob(f"{PARTIAL}*"):
                shutil.rmtree(leftover, ignore_errors=True)


def _find_grown(root: Path, source: str, reading: str) -> Store | None:
    """The store of all rows with which this file begins, and has more; None where there is none."""
    for store in list_stores(root):
        if store.source == source and store.manifest["reading"] == reading and store.is_complete():
            contents = store.manifest.get("contents")
            if contents is not None and begins_with(Path(source), contents):
                return store
            log.info("%s has not only grown at its end: it is read again as a whole", source)
    return None


class _ColumnWriter:
    """The columns of a table on their way into a folder: those of its source, and those that a map makes of them."""

    def __init__(self, folder: Path, before: Store | None = None) -> None:
        self.folder, self.before = folder, before
        self.entries: list[dict[str, Any]] = []
        self.made: list[dict[str, Any]] = []
        self.rows = 0
        self._columns: dict[str, Column] = {}

    def code_batches(
        self,
        read: BatchReader,
        declared: Mapping[str, DeclaredColumn],
        place: Callable[[str], Place],
        empty: str,
        read_later: LaterReader | None,
    ) -> dict[str, Column]:
        self._clear()
        found = None
        if self.before is not None and read_later is not None:
            try:
                found = _code_later(self.folder, self.before, read_later, declared, place)
            except (NotContinued, NotStreamed, OSError) as problem:
                log.info("what is stored of %s cannot be gone on with (%s)", self.before.source, problem)
        if found is None:
            self.before = None
            self._clear()
            found = _code_batches(self.folder, read, declared, place, empty)
        self.rows, finished, kept = found
        numbers = {name: number for number, name in enumerate(declared)}

        def finish(name: str) -> dict[str, Any]:
            if name in kept:
                return self._describe_rows(name, kept[name])
            return self._finish(numbers[name], name, finished[name], declared[name].by_itself)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.entries = list(pool.map(finish, declared))
        self._columns = {entry["name"]: _map_column(self.folder, entry, self.rows) for entry in self.entries}
        return dict(self._columns)

    def _clear(self) -> None:
        """Delete what is left of a reading that was given up."""
        for leftover in self.folder.iterdir():
            leftover.unlink()

    def _describe_rows(self, name: str, coder: RowCoder) -> dict[str, Any]:
        """A column of which each row keeps its own cell, once its different ones are counted."""
        entry: dict[str, Any] = {"name": name, **coder.describe(), "distinct": 0}
        column = _map_column(self.folder, entry, self.rows)
        assert isinstance(column, Coded)
        return {**entry, "distinct": _count_distinct(column, self.folder)}

    def _finish(self, number: int, name: str, column: Finished, by_itself: bool) -> dict[str, Any]:
        spool = column.spool
        plain = (spool.path, spool.checksum) if column.is_plain else None
        entry = _write_column(self.folder, str(number), name, column.distinct, column.rows, plain)
        spool.path.unlink(missing_ok=True)
        return {**entry, "by_itself": entry["by_itself"] or by_itself, "state": column.state}

    def keep(self, name: str, column: Column) -> Column:
        if self._columns.get(name) is column:
            self.made.append(next(entry for entry in self.entries if entry["name"] == name))
            return column

        if isinstance(column, Coded) and len(column.values) > streaming.MOST_DISTINCT:
            raise NotStreamed(f"the map makes {name!r} a column of very many distinct values")

        def list_rows(part: Callable[[Column], NDArray[Any]] = get_rows) -> Iterator[NDArray[Any]]:
            yield from (read_block(part(column), block) for block in list_blocks(self.rows))

        entry = _write_column(self.folder, f"made{len(self.made)}", name, column, list_rows)
        self.made.append(entry)
        return _map_column(self.folder, entry, self.rows)


def _write_columns(folder: Path, read: Callable[[], object], before: Store | None) -> dict[str, Any] | None:
    """Write all columns of a table, and the hashes of its rows; it may begin with all of a table `before`."""
    writer = _ColumnWriter(folder, before)
    token = KEEPER.set(writer)
    try:
        read()
    except NotStreamed as problem:
        log.warning("the table is read into memory: %s", problem)
        return None
    finally:
        KEEPER.reset(token)
    columns = {entry["name"]: _map_column(folder, entry, writer.rows) for entry in writer.entries}
    known = None if writer.before is None else writer.before.hashes
    hashes = hash_rows(columns, writer.rows, folder.parent, known)
    blocks = list_blocks(writer.rows)
    written = _write_array(folder / HASHES, (read_block(half, block) for half in hashes for block in blocks))
    return {
        "format": FORMAT,
        "rows": writer.rows,
        "digest": digest_rows(list(columns), hashes),
        "columns": writer.made or writer.entries,
        "raw": writer.entries if writer.made else None,
        "hashes": written,
    }


def _code_batches(
    folder: Path,
    read: BatchReader,
    declared: Mapping[str, DeclaredColumn],
    place: Callable[[str], Place],
    empty: str,
) -> tuple[int, dict[str, Finished], dict[str, RowCoder]]:
    """`batches.code_batches`, onto disk; apart the columns of which each row keeps its own cell."""
    coders = {
        name: StreamCoder(column, folder / f"{number}.spool")
        for number, (name, column) in enumerate(declared.items())
    }
    rows = code_on_all_cores(read, coders)
    if not rows:
        raise RecordsError(empty)
    kept: dict[str, RowCoder] = {}
    numbers = {name: number for number, name in enumerate(declared)}
    while lost := {name: coder for name, coder in coders.items() if coder.lost}:
        own = {
            name: RowCoder(declared[name], folder, numbers[name])
            for name, coder in lost.items()
            if coder.by_row
        }
        again = {
            name: StreamCoder(declared[name], coder.spool.path, every_text=True)
            for name, coder in lost.items()
            if name not in own
        }
        code_on_all_cores(read, {**own, **again})
        kept |= own
        coders = {name: again.get(name, coder) for name, coder in coders.items() if name not in own}
    return rows, {name: coder.finish(place(name)) for name, coder in coders.items()}, kept


def _code_later(
    folder: Path,
    before: Store,
    read: LaterReader,
    declared: Mapping[str, DeclaredColumn],
    place: Callable[[str], Place],
) -> tuple[int, dict[str, Finished], dict[str, RowCoder]]:
    """The same of a table that was stored and has grown: only rows that came later are read, and written behind those
    of the stored files. A column in which they change what earlier codes mean is written anew from those."""
    entries = {str(entry["name"]): entry for entry in before.manifest["raw"] or before.manifest["columns"]}
    if list(entries) != list(declared):
        raise NotContinued("it has other columns")
    coders: dict[str, StreamCoder] = {}
    kept: dict[str, RowCoder] = {}
    for number, (name, column) in enumerate(declared.items()):
        try:
            if "rows" in entries[name]:
                kept[name] = RowCoder(column, folder, number)
                kept[name].resume(entries[name], before.folder, before.rows)
            else:
                coders[name] = StreamCoder(column, folder / f"{number}.spool")
                coders[name].resume(entries[name], before.folder, before.rows)
        except NotContinued:
            raise NotContinued(f"column {name!r} does not keep all that its cells were") from None
    every = {**coders, **kept}
    more = code_on_all_cores(
        lambda names: read(names, before.manifest["contents"]), {name: every[name] for name in declared}
    )
    for name, coder in coders.items():
        if coder.lost:
            raise NotContinued(f"column {name!r} becomes another one")
    log.info("%s has grown by %s rows, and only those are read", before.source, f"{more:,}")
    return before.rows + more, {name: coder.finish(place(name)) for name, coder in coders.items()}, kept


def _count_distinct(column: Coded, folder: Path) -> int:
    """How many different values a column has, by 64 bits of each that are drawn anew in every process."""
    values = column.values
    assert isinstance(values, RowValues)

    def hash_labels(block: slice) -> NDArray[np.uint64]:
        hashed = np.fromiter(map(hash, values.list_labels(block)), np.int64).astype(np.uint64)
        hashed[read_block(column.codes, block) == 0] = 0
        return hashed

    hashes = fill_room(len(values), np.uint64, folder, hash_labels)
    counted = sum(len(np.unique(hashes[rows])) for rows in split_hashes(hashes))
    missing = any(not read_block(column.codes, block).all() for block in list_blocks(len(values)))
    return counted - missing


def _write_column(
    folder: Path,
    number: str,
    name: str,
    column: Column,
    rows: Callable[..., Iterator[NDArray[Any]]],
    plain: tuple[Path, int] | None = None,
) -> dict[str, Any]:
    """Write a column's final files; what the manifest says of it. `column` says what its codes mean and `rows` gives
    them, unless they lie in a `plain` file, of which the checksum is known."""
    entry: dict[str, Any] = {"name": name, "by_itself": column.by_itself}
    path = folder / f"{number}.{'codes' if isinstance(column, Coded) else 'numbers'}"
    files = [[path.name, *_write_array(path, rows())]] if plain is None else []
    if isinstance(column, Coded):
        entry |= {"stated": column.stated, "values": list(column.values), "dtype": column.codes.dtype.str}
        if column.typed is not None:
            files.append([f"{number}.typed", *_write_array(folder / f"{number}.typed", rows(_typed))])
    if isinstance(column, Moments):
        entry["zoned"] = column.zoned
    if column.raw is not None:
        entry |= {"raw": list(column.raw.values), "raw_dtype": column.raw.codes.dtype.str}
        files.append([f"{number}.raw", *_write_array(folder / f"{number}.raw", rows(_raw))])
    if plain is not None:
        plain[0].rename(path)
        files.append([path.name, path.stat().st_size, plain[1]])
    return {**entry, "files": files}


def _raw(column: Column) -> NDArray[Any]:
    assert column.raw is not None
    return column.raw.codes


def _typed(column: Column) -> NDArray[Any]:
    assert isinstance(column, Coded)
    assert column.typed is not None
    return column.typed


def _map_column(folder: Path, entry: Mapping[str, Any], rows: int) -> Column:
    """A column whose rows are those of its file."""
    files = {str(name).partition(".")[2]: folder / name for name, _, _ in entry["files"]}

    def open_rows(kind: str, dtype: str) -> NDArray[Any]:
        return np.memmap(files[kind], dtype=dtype, mode="r", shape=(rows,))

    if "rows" in entry:
        ends = open_rows("ends", "<i8") if "ends" in files else None
        size = rows if ends is None else int(ends[-1])
        cells = np.memmap(files["cells"], "<f8" if ends is None else "u1", "r", shape=(size,))
        own = RowValues(cells, ends, canonical if entry["rows"] == "canonical" else None, entry["distinct"])
        return Coded.trust(open_rows("codes", entry["dtype"]), own, entry["stated"], entry["by_itself"])
    raw = None
    if "raw" in files:
        raw = Coded.trust(open_rows("raw", entry["raw_dtype"]), tuple(entry["raw"]))
    if "zoned" in entry:
        return Moments(open_rows("numbers", "<f8"), entry["by_itself"], raw, entry["zoned"])
    if "numbers" in files:
        return Numbers(open_rows("numbers", "<f8"), entry["by_itself"], raw)
    typed = open_rows("typed", "?") if "typed" in files else None
    values: tuple[Value, ...] = tuple(entry["values"])
    return Coded.trust(
        open_rows("codes", entry["dtype"]), values, entry["stated"], entry["by_itself"], raw, typed
    )


def _write_array(path: Path, parts: Iterator[NDArray[Any]]) -> tuple[int, int]:
    """Write arrays one after the other; size and checksum of the file."""
    size = checksum = 0
    with open(path, "wb", opener=open_for_owner) as file:
        for part in parts:
            content = np.ascontiguousarray(part).data
            checksum = zlib.crc32(content, checksum)
            file.write(content)
            file.flush()
            begin_writing(file.fileno(), size, part.nbytes)
            size += part.nbytes
    return size, checksum


def _check(path: Path, size: int) -> int:
    checksum = 0
    with path.open("rb") as file:
        while size and (content := file.read(min(size, 1 << 22))):
            checksum = zlib.crc32(content, checksum)
            size -= len(content)
    return checksum


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    known = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return manifest if known and not folder.name.startswith(PARTIAL) else None


def _write_json(path: Path, content: object) -> Path:
    with open(path, "w", encoding="ascii", opener=open_for_owner) as file:
        json.dump(content, file)
    return path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One process writes at a time."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _saying_full(root: Path) -> Iterator[None]:
    """A full disk is a sentence, and what was there before is still there."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        free = shutil.disk_usage(root).free
        raise RecordsError(
            f"{root}: there is no room for the columns of this table ({free / 1e9:.1f} GB left on that disk); make "
            "room, or move the ledger and what is beside it to another disk. What was kept there before is unharmed"
        ) from None
