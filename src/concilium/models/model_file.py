"""Model files: `{"format": "concilium/model@1", "method": ..., "parameters": {...}, "body": {...}, "card": {...}}`;
where a hospital adapted the model to its own patients, all of these are as it received them, and `adapted` says what it
changed.

JSON only: loading a model runs no code, refuses unknown fields and methods, and checks every type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from concilium import registry as registry
from concilium.errors import ModelError, QueryError, StudyError, nearest
from concilium.models.recalibration import Adaptation
from concilium.protocol.card import Card
from concilium.registry import METHODS

FORMAT = "concilium/model@1"


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    method: str
    body: msgspec.Raw
    card: Card
    parameters: dict[str, Any] = {}
    adapted: Adaptation | None = None


def write(
    method: str,
    parameters: Mapping[str, Any],
    body: msgspec.Struct,
    card: Card,
    adapted: Adaptation | None = None,
) -> bytes:
    """What a model file holds."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "method": method,
        "parameters": parameters,
        "body": body,
        "card": card,
    }
    if adapted is not None:
        document["adapted"] = adapted
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def save(path: str | Path, content: bytes) -> None:
    """A model file, written beside its place and moved there whole."""
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror})") from None


def name_by_content(path: Path) -> str:
    """A name of a model file that is the same wherever it lies: by it a card leads to the model's page."""
    return f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()[:20]}"


def load(path: str | Path) -> Any:
    """The model in a file, ready to predict; ModelError names the file and what is wrong in it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        document = msgspec.json.decode(data, type=_ModelFile)
        if document.format != FORMAT:
            raise ModelError(f"{path}: its format is {document.format!r}; this version reads {FORMAT!r}")
        if document.method not in METHODS:
            known = nearest(document.method, METHODS)
            raise ModelError(
                f"{path}: there is no method {document.method!r}{known}; known: {', '.join(METHODS)}"
            )
        form = registry.load(METHODS[document.method])
        model = form.from_body(document.body, document.card, document.parameters)
        if document.adapted is None:
            return model
        from concilium.models.recalibrated import AdaptedModel

        return AdaptedModel(model, document.adapted)
    except (msgspec.ValidationError, StudyError, QueryError, RecursionError) as error:
        problem = error.problem if isinstance(error, QueryError) else error
        raise ModelError(f"{path}: this is not a model file: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: this is not JSON: {error}") from None
