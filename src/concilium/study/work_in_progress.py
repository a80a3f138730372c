"""What a run keeps until its results are there: finished rounds (journals), finished folds, ledgers of hospitals that
name none. A run that is interrupted goes on from it.

Protects: the hospitals' budgets, from being charged twice for one study. The folder follows from the path of the
results alone, whatever folders exist, and nothing is resumed where there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from concilium.errors import CannotResume, ConciliumError, RunStopped, StudyError, StudyPending
from concilium.records.patients import Patients

if TYPE_CHECKING:
    from concilium.records.table import Records
    from concilium.study.study import Study

T = TypeVar("T")


@dataclass(frozen=True)
class WorkInProgress:
    """A folder of work that is not finished."""

    folder: Path
    made: tuple[Path, ...] = ()

    @classmethod
    def beside(cls, out: Path, resume: bool) -> WorkInProgress:
        """Open the work of a run to `out`, hidden beside it: fresh, or what is there; CannotResume if nothing is."""
        out = Path(os.path.abspath(out))  # noqa: PTH100, a link that is made meanwhile must change nothing
        if out.exists() and not out.is_dir():
            raise StudyError(f"{out}: is a file; results go to a folder")
        folder = out.with_name(f".{out.name}.partial")
        if resume and not folder.is_dir():
            raise CannotResume(
                f"{out}: there is no work in progress for this folder, so there is nothing to go on with"
            )
        work = cls(folder, tuple(parent for parent in out.parents if not parent.exists()))
        try:
            if not resume and folder.exists():
                work.discard()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(f"{out.parent}: cannot be written to ({error.strerror})") from None
        return work

    @contextlib.contextmanager
    def until_done(self, resume: bool) -> Iterator[None]:
        """Discard the work once the results are in place, or where an error would come out the same again. It is kept
        for a run that can go on: one that was interrupted, whose house stopped, or that waits for people to agree; and
        for one that was resumed, since what people have agreed to is not thrown away."""
        try:
            yield
        except (StudyPending, RunStopped):
            raise
        except ConciliumError:
            if not resume:
                self.discard()
            raise
        self.discard()

    def discard(self) -> None:
        """Delete the work, renamed first so that a kill leaves no half of it, and folders made for it alone."""
        rest = self.folder.with_name(f"{self.folder.name}.old")
        if rest.exists():
            shutil.rmtree(rest)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)
        for folder in self.made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def bind(self, study: Study, tables: Iterable[Records | Patients]) -> None:
        """Tie the work to this study and these patients, so that only the same can resume it."""
        lines = [
            study.digest,
            *(table.digest if isinstance(table, Patients) else table.digest_in_order for table in tables),
        ]
        mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        path = self.folder / "study.sha256"
        if path.exists() and path.read_text() != mark:
            raise CannotResume(
                f"{study.path}: the study or its records have changed since the run that was interrupted"
            )
        write_whole(path, mark.encode())

    def journal(self, name: str) -> Path:
        """Where a conversation's finished rounds are kept."""
        return self.folder / f"{name}.journal"

    def keep(self, name: str, value: object) -> None:
        write_whole(self.folder / f"{name}.json", msgspec.json.encode(value))

    def recall(self, name: str, kind: type[T]) -> T | None:
        """What was kept under a name; None where nothing was."""
        path = self.folder / f"{name}.json"
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None
