"""Model files: `{"format": "concilium/model@1", "method": ..., "body": {...}, "card": {...}}`.

JSON only: loading a model runs no code, refuses unknown fields and methods, and checks every type.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from concilium import closed_lists
from concilium.closed_lists import METHODS
from concilium.errors import ModelError, QueryError, StudyError, nearest
from concilium.federation.card import Card

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from concilium.federation.house import House
    from concilium.privacy.accounting import Plan
    from concilium.records.table import Value

FORMAT = "concilium/model@1"

B = TypeVar("B", bound=msgspec.Struct)


class Estimator(Protocol):
    """What every method of a study can do: say what it will ask, learn with a house, and answer with its model."""

    def plan(self) -> Plan: ...

    def fit(self, house: House) -> Self: ...

    @property
    def body(self) -> msgspec.Struct: ...

    @property
    def card(self) -> Card: ...

    @property
    def classes_(self) -> list[Value]: ...

    @property
    def attributes_(self) -> list[str]: ...

    def predict(self, records: Any) -> NDArray[Any]: ...

    def predict_proba(self, records: Any) -> NDArray[np.float64]: ...

    def explain(self, patient: Any) -> Any: ...

    def text(self) -> str:
        """The model for terminals and logs."""

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """The model as SVG by name, fit for a page or `whole`; none where there is nothing to draw."""

    def save(self, path: str | Path) -> None: ...


class Fitted(Generic[B]):
    """What a method keeps of what it learned: the body of its model file and the card; before that, it has none."""

    method: ClassVar[str]
    _body: B | None = None
    _card: Card | None = None

    @property
    def body(self) -> B:
        if self._body is None:
            raise ModelError(f"{type(self).__name__} is not fitted yet; call fit(house) first")
        return self._body

    @property
    def card(self) -> Card:
        """Sites, rounds, bytes, releases with their cost, refusals, dropouts, warnings."""
        if self._card is None:
            raise ModelError(f"{type(self).__name__} is not fitted yet; call fit(house) first")
        return self._card

    def save(self, path: str | Path) -> None:
        """A model file (JSON)."""
        save(path, self.method, self.body, self.card)


class ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    method: str
    body: msgspec.Raw
    card: Card


def save(path: str | Path, method: str, body: msgspec.Struct, card: Card) -> None:
    """A model file, written beside its place and moved there whole."""
    path = Path(path)
    document = msgspec.json.encode({"format": FORMAT, "method": method, "body": body, "card": card})
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(msgspec.json.format(document, indent=1))
        partial.replace(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror})") from None


def load(path: str | Path) -> Any:
    """The model in a file, ready to predict; ModelError names the file and what is wrong in it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        document = msgspec.json.decode(data, type=ModelFile)
        if document.format != FORMAT:
            raise ModelError(f"{path}: its format is {document.format!r}; this version reads {FORMAT!r}")
        if document.method not in METHODS:
            known = nearest(document.method, METHODS)
            raise ModelError(
                f"{path}: there is no method {document.method!r}{known}; known: {', '.join(METHODS)}"
            )
        return closed_lists.load(METHODS[document.method]).from_body(document.body, document.card)
    except (msgspec.ValidationError, StudyError, QueryError, RecursionError) as error:
        said = getattr(error, "problem", error)
        raise ModelError(f"{path}: this is not a model file: {said}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: this is not JSON: {error}") from None
