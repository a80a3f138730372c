"""A folder of studies and results, as the console shows it: models, figures, reports, study files, ledgers.

What is shown is found by looking, never by a path that a browser sends: a page names a key of what was found. Only
regular files inside the folder count; a link that leads out of it does not.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from concilium.console.gateway_log import OTHER, find_decision
from concilium.errors import ConciliumError, StudyError

MODEL, METRICS, REPORT, CARD = "model.json", "metrics.json", "report.html", "card.json"
DOWNLOADS = (MODEL, METRICS, CARD, REPORT, "terms.json", "tree.svg", "table.csv")
"""All that can be fetched of a folder of results."""
SUFFIXES = (".ledger", ".toml", ".html", ".log")
MOST_FILES = 20_000
SECONDS_FRESH = 1.0
MODELS_KEPT = 16

T = TypeVar("T")


@dataclass(frozen=True)
class FoundModel:
    """A folder of results: its key in addresses, and what its files say without opening the model."""

    key: str
    folder: Path
    title: str
    method: str
    release: str
    target: str
    patients: int | None
    auc: float | None
    alarms: tuple[str, ...]
    date: str
    problem: str = ""

    @property
    def path(self) -> Path:
        return self.folder / MODEL


@dataclass(frozen=True)
class FoundFiles:
    """What lies in a folder, each by its key: the path below the folder. `comparisons` are folders of results of
    several methods, `sharings` pages of shared codes (shared.html beside its shared.json), `logs` logs of gateways."""

    models: dict[str, FoundModel]
    comparisons: dict[str, Path]
    sharings: dict[str, Path]
    logs: dict[str, Path]
    studies: dict[str, Path]
    ledgers: dict[str, Path]
    policies: dict[str, Path]


class FileCache(Generic[T]):
    """What was made of a file, until the file has another size or time; a few at a time."""

    def __init__(self, make: Callable[[Path], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[Path, tuple[tuple[int, int], T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> T:
        try:
            state = path.stat()
        except OSError as error:
            raise StudyError(f"{path.name}: cannot be read ({error.strerror})") from None
        seen = state.st_size, state.st_mtime_ns
        with self._lock:
            if path in self._kept and self._kept[path][0] == seen:
                self._kept.move_to_end(path)
                return self._kept[path][1]
        made = self._make(path)
        with self._lock:
            self._kept[path] = seen, made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


class ResultsFolder:
    """`ResultsFolder(path).find()`: looked through again at most once a second."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        if not self.path.is_dir():
            raise StudyError(
                f"{path}: is not a folder; name one with results, such as the one `run --out` wrote"
            )
        self._found: FoundFiles | None = None
        self._until = 0.0
        self._lock = threading.Lock()
        self._described = FileCache(self._describe_model, MOST_FILES)
        self._models: FileCache[Any] = FileCache(_open_model, MODELS_KEPT)
        self._kinds = FileCache(_find_kind, MOST_FILES)
        self._compares = FileCache(_compares, MOST_FILES)
        self._shares = FileCache(_shares, MOST_FILES)
        self._decides = FileCache(_decides, MOST_FILES)

    def find(self) -> FoundFiles:
        with self._lock:
            if self._found is None or time.monotonic() > self._until:
                self._found = self._look()
                self._until = time.monotonic() + SECONDS_FRESH
            return self._found

    def forget(self) -> None:
        """Look again at once: something was written."""
        with self._lock:
            self._until = 0.0

    def open_model(self, found: FoundModel) -> Any:
        """The model, ready to answer; kept while its file stays as it is."""
        return self._models.get(found.path)

    def _look(self) -> FoundFiles:
        models: dict[str, FoundModel] = {}
        comparisons: dict[str, Path] = {}
        sharings: dict[str, Path] = {}
        logs: dict[str, Path] = {}
        by_kind: dict[str, dict[str, Path]] = {"study": {}, "policy": {}, "ledger": {}}
        for path in sorted(self._walk()):
            key = str(path)[len(str(self.path)) + 1 :]
            if path.name == MODEL:
                found = self._described.get(path)
                models[found.key] = found
            elif path.name == METRICS:
                if self._compares.get(path):
                    comparisons[path.parent.relative_to(self.path).as_posix()] = path.parent
            elif path.suffix == ".html":
                beside = path.with_suffix(".json")
                if path.name != REPORT and beside.is_file() and self._shares.get(beside):
                    sharings[key] = path
            elif path.suffix == ".log":
                if self._decides.get(path):
                    logs[key] = path
            elif path.suffix == ".ledger":
                by_kind["ledger"][key] = path
            elif path.suffix == ".toml" and (kind := self._kinds.get(path)):
                by_kind[kind][key] = path
        return FoundFiles(
            models, comparisons, sharings, logs, by_kind["study"], by_kind["ledger"], by_kind["policy"]
        )

    def _walk(self) -> Iterator[Path]:
        """All regular files that may be shown, hidden folders left out; as many as can be looked through."""
        seen, folders = 0, [str(self.path)]
        while folders:
            try:
                with os.scandir(folders.pop()) as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                seen += 1
                if seen > MOST_FILES:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        folders.append(entry.path)
                elif entry.name.endswith(SUFFIXES) or entry.name in (MODEL, METRICS):
                    if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(self.path):
                        continue
                    if entry.is_file():
                        yield Path(entry.path)

    def _describe_model(self, path: Path) -> FoundModel:
        """What the files beside a model say of it; a problem instead where one of them cannot be read."""
        folder = path.parent
        key = folder.relative_to(self.path).as_posix()
        key = "results" if key == "." else key
        metrics, problem = _read_json(folder / METRICS)
        card, card_problem = _read_json(folder / CARD)
        patients: list[Any] = [
            site.get("patients") for site in card.get("sites", []) if isinstance(site, dict)
        ]
        auc = metrics.get("auc")
        return FoundModel(
            key=key,
            folder=folder,
            title=str(metrics.get("study") or key),
            method=str(metrics.get("method") or card.get("method") or ""),
            release=str(card.get("release") or ""),
            target=str(metrics.get("target") or ""),
            patients=sum(patients) if patients and all(isinstance(one, int) for one in patients) else None,
            auc=float(auc) if isinstance(auc, int | float) else None,
            alarms=tuple(str(one) for one in card.get("alarms", [])),
            date=str(card.get("date") or ""),
            problem=problem or card_problem,
        )


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object of a file, or none and why; none is no problem."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError):
        return {}, f"{path.name} cannot be read: it is not a file of results of this version"
    return (content, "") if isinstance(content, dict) else ({}, f"{path.name} is not a file of results")


def _open_model(path: Path) -> Any:
    from concilium.models.model_file import load

    return load(path)


def _find_kind(path: Path) -> str:
    """Whether a TOML file is a study or a policy; nothing for a dictionary, a map and others. A file that does not
    parse counts as what its words look like, so that its error can be shown."""
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return "study" if "[study]" in text else "policy" if "[release]" in text else ""
    if isinstance(document.get("study"), dict):
        return "study"
    return "policy" if set(document) & {"release", "houses", "agree", "constraints", "budget"} else ""


def _compares(path: Path) -> bool:
    """Whether figures are those of several methods."""
    return isinstance(_read_json(path)[0].get("methods"), dict)


def _shares(path: Path) -> bool:
    """Whether a file says how codes were drawn that were shared."""
    return {"study", "design", "file"} <= set(_read_json(path)[0])


def _decides(path: Path) -> bool:
    """Whether a log is a gateway's."""
    with path.open("rb") as file:
        lines = file.read(16 * 1024).decode("utf-8", "replace").splitlines()
    return any((one := find_decision(line)) is not None and one.outcome != OTHER for line in lines)


_FIGURES = FileCache(lambda path: _read_json(path)[0], 1000)


def read_figures(found: FoundModel | Path) -> dict[str, Any]:
    """metrics.json of a folder of results as it stands; empty where there is none."""
    path = (found if isinstance(found, Path) else found.folder) / METRICS
    return _FIGURES.get(path) if path.is_file() else {}


def find_download(found: FoundModel, name: str) -> Path:
    """One of the files of a folder of results, by its name; ConciliumError for any other."""
    if name not in DOWNLOADS or not (found.folder / name).is_file():
        raise ConciliumError(f"there is no file {name[:40]!r} among these results")
    return found.folder / name


def list_downloads(found: FoundModel) -> list[str]:
    return [name for name in DOWNLOADS if (found.folder / name).is_file()]
