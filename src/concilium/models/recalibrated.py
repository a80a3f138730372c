"""A model as a hospital has adapted it to its own patients: the one that it received, and what it changed of it.

`adapt` needs no house and asks nobody: it reads the hospital's own table and fits an intercept and perhaps a slope
(recalibration.py). Nothing leaves, nothing is charged; therefore what comes of it, which holds numbers about the
hospital's patients, may not leave either, and says so on its card.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError
from concilium.models.explanation import Explanation, say_risk, say_risk_interval
from concilium.models.intervals import WITHIN_95
from concilium.models.method import Method
from concilium.models.model_file import save, write
from concilium.models.prediction import AnyPatients, KnownOutcomes, NewPatients
from concilium.models.recalibration import Adaptation, count_classes, fit_classes, fit_numbers
from concilium.models.threshold import Decided, choose, choose_one
from concilium.parameters import Declared
from concilium.privacy.accounting import Plan
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.records.patients import Patients

STAYS_ALL_THE_SAME = (
    "how many of this hospital's patients have which outcome was charged to no ledger, and stands in the file: it "
    "should not leave the hospital without being charged"
)
STAYS = (
    "what was changed was learned from this hospital's own patients and charged to no ledger: the adapted model holds "
    "numbers about them, and should not leave the hospital without being charged"
)


class AdaptedModel(Method[Any]):
    """`cc.adapt(model, table, site="north")`: predicts, explains, is saved and exported as the model it is made of.

    origin       the model as it was received
    adaptation   what the hospital changed: `site`, `patients`, `shifts`, `slope`, `reasons`
    """

    def __init__(self, origin: Method[Any], adaptation: Adaptation) -> None:
        if len(adaptation.shifts) != max(len(origin.classes_), 1):
            raise ModelError(f"it was adapted for {len(adaptation.shifts)} classes, and the model has others")
        self.origin, self.adaptation = origin, adaptation
        told = (*(name for name in DESCRIBING if hasattr(origin, name)), "target", "query", "release")
        vars(self).update({name: getattr(origin, name) for name in told})
        warnings = [*say_adapted(adaptation, origin), *origin.card.warnings]
        self.take(origin.body, msgspec.structs.replace(origin.card, warnings=warnings))

    @classmethod
    def parameters(cls) -> dict[str, Declared]:
        return {}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the model that was adapted."""
        return self.origin.get_params(deep)

    def plan(self) -> Plan:
        """What the model that was adapted asked."""
        return self.origin.plan()

    def converse(self, partners: Partners) -> Conversation[Learned[Any]]:
        raise ModelError("an adapted model is not learned again: learn one, and adapt that")

    def save(self, path: str | Path) -> None:
        """A model file: the model as it was received, and what was changed."""
        save(path, self.write())

    def write(self) -> bytes:
        origin = self.origin
        return write(self.method, origin.get_params(), origin.body, origin.card, self.adaptation)

    @property
    def classes_(self) -> list[Value]:
        return self.origin.classes_

    @property
    def attributes_(self) -> list[str]:
        return self.origin.attributes_

    @property
    def decided(self) -> Decided | None:
        """The study's decision, as it reads for adapted chances (recalibration.py)."""
        return self.adaptation.move_decision(self.origin.placed, self.classes_)

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        return self.origin.find_outcomes(patients)

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        if not self.adaptation.changes:
            return self.origin.predict_proba(patients)
        return self.adaptation.apply(self.origin.soft_proba(patients))

    def predict(self, patients: AnyPatients) -> NDArray[Any]:
        if self.classes_:
            return super().predict(patients)
        return self.adaptation.move(self.origin.predict(patients))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        """What it says here, and then what it said as it was received, with its reasons."""
        said, where = self.origin._explain(patient), self.adaptation.site
        if not self.adaptation.changes:
            return said
        how = f"adapted to {self.adaptation.patients} patients of {where}: {self.adaptation.say_change()}"
        if not self.classes_:
            ends = np.array([float(said.prediction or 0.0), *(said.interval or ())])
            number, *between = self.adaptation.move(ends).tolist()
            said = replace(said, prediction=number, interval=_as_interval(between))
            first = f"{self.target} = {number:.4g}, {how}."
        else:
            chances = self.adaptation.apply(self.origin.soften(said)[None, :])[0]
            best = choose_one(chances.tolist(), self.classes_, self.decided)
            interval = self._move_interval(said, best)
            about = say_risk(float(chances[best]))
            about += "" if interval is None else f"; {say_risk_interval(interval)}"
            named = say_value(self.classes_[best], self.card.dictionary.get(self.target))
            first = f"{self.target} = {named} ({about}), {how}."
            said = replace(
                said,
                prediction=self.classes_[best],
                probability=float(chances[best]),
                chances=tuple(chances.tolist()),
                interval=interval,
            )
        return replace(said, sentences=(first, "As it was received, the model says:", *said.sentences))

    def _move_interval(self, said: Explanation, best: int) -> tuple[float, float] | None:
        """The interval of the class that is predicted here: the received one, moved as the chances are, and wider by
        what so many patients of the hospital leave unsure of their odds. That of two classes only."""
        if said.interval is None or len(self.classes_) != 2:
            return None
        predicted = [label(value) for value in self.classes_].index(label(said.prediction))
        ends = np.array(said.interval) if predicted == best else 1 - np.array(said.interval)
        shares = np.column_stack([ends, 1 - ends])
        moved = self.adaptation.apply(np.clip(shares if best == 0 else shares[:, ::-1], EDGE, 1 - EDGE))
        middle = self.adaptation.apply(self.origin.soften(said)[None, :])[0, best]
        unsure = WITHIN_95**2 * sum(1 / max(count, 1) for count in self.adaptation.counts)
        odds = np.log(np.clip(np.array([middle, *moved[:, best]]), EDGE, 1 - EDGE))
        odds -= np.log1p(-np.exp(odds))
        reach = np.sqrt((odds[1:] - odds[0]) ** 2 + unsure)
        ends = odds[0] + np.array([-1.0, 1.0]) * (reach if odds[1] <= odds[2] else reach[::-1])
        return _as_interval((1 / (1 + np.exp(-ends))).tolist())

    def importances(self) -> dict[str, float]:
        return self.origin.importances()

    def _text(self) -> str:
        """What was changed, and the model as it was received."""
        return "\n".join([*say_adapted(self.adaptation, self.origin), "", self.origin.text()])

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """Those of the model as it was received."""
        return self.origin.pictures(whole=whole)

    def rows(self) -> list[list[str]]:
        """That of the model as it was received."""
        return self.origin.rows()

    def list_terms(self) -> Sequence[Any]:
        """Those of the model as it was received."""
        return self.origin.list_terms()

    def to_pmml(self) -> str:
        """A tree, shapes or rules as a PMML 4.4 document, with adapted chances; ModelError for what has no export."""
        exported: str = self._export("to_pmml")
        return exported

    def to_cql(self) -> str:
        """Shapes or rules as definitions in CQL, with the adapted log odds."""
        exported: str = self._export("to_cql")
        return exported

    def to_expressions(self) -> list[Any]:
        """A tree as boolean expressions in the style of CQL, with the adapted chances."""
        exported: list[Any] = self._export("to_expressions")
        return exported

    def _export(self, name: str) -> Any:
        if not hasattr(self.origin, name):
            raise ModelError(
                f"{self.called} has no {name!r}: trees, shapes and rules are written for other software"
            )
        export = getattr(self.origin, name)
        return export(self._tell) if self.adaptation.changes else export()

    def _tell(self, shares: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The adapted chances, and the classes that are called."""
        adapted = self.adaptation.apply(shares)
        return adapted, choose(adapted, self.classes_, self.decided)

    def _summary(self) -> str:
        return f"adapted at {self.adaptation.site}"

    def __repr__(self) -> str:
        return f"{self.origin!r} [{self._summary()}]"


EDGE = 1e-6  # of a chance: one of 0 or 1 has no log odds to move


def _as_interval(ends: list[float]) -> tuple[float, float] | None:
    return (min(ends), max(ends)) if ends else None


DESCRIBING = (
    "method",
    "called",
    "description",
    "against_rest",
    "predicts_numbers",
    "reads_courses",
    "differs_from_pooled",
)


def say_adapted(adaptation: Adaptation, origin: Method[Any]) -> list[str]:
    """What the card says first of an adapted model."""
    entry = origin.card.dictionary.get(origin.target)
    by_class = ", ".join(
        f"{count} {say_value(value, entry)}"
        for count, value in zip(adaptation.counts, origin.classes_, strict=False)
    )
    whom = f"{adaptation.patients} patients" + (f" ({by_class})" if by_class else "")
    return [
        f"adapted at {adaptation.site} to {whom}: {adaptation.say_change()}; it was received as the model of study "
        f"{origin.card.study[:12]}, file SHA-256 {adaptation.origin[:12]}",
        *adaptation.reasons,
        STAYS if adaptation.changes else STAYS_ALL_THE_SAME,
    ]


def adapt(model: Method[Any], patients: Any, *, site: str) -> AdaptedModel:
    """The model with an intercept, and perhaps a slope, of this hospital's own; nothing leaves it.

    model      a fitted or loaded model; one that is adapted already is adapted anew, from what was received
    patients   the hospital's table (Records, a DataFrame, or rows), with the outcome; of a model of courses its Series,
               or Patients with series, and a table where the model has a query
    site       the hospital's name: if it took part in learning the model, no slope is fitted
    """
    if not isinstance(site, str) or not site.strip() or not site.isprintable():
        raise ModelError("say which hospital this is: site='north'")
    origin: Method[Any] = model.origin if isinstance(model, AdaptedModel) else model
    if unfit := origin.find_unadaptable():
        raise ModelError(unfit)
    found = origin.find_outcomes(Patients.of(patients) or Patients(table=NewPatients(patients).records))
    if not len(found.rows):
        raise ModelError(f"there is no patient whom the model is about and whose {origin.target!r} is known")
    took_part = any(one.name == site for one in origin.card.sites)
    reasons: list[str] = []
    counts: list[int] = []
    if origin.classes_:
        truth = origin.place(found.truth)
        known = truth >= 0
        if not known.all():
            strangers = sorted(
                {label(v) for v, is_known in zip(found.truth, known, strict=True) if not is_known}
            )
            reasons.append(
                f"{int((~known).sum())} patients have a class that the model does not know: {', '.join(strangers)}"
            )
        fitted = fit_classes(origin.soft_proba(found.asked)[known], truth[known], learned_from=took_part)
        counts = count_classes(truth[known], origin.classes_)
    else:
        numbers = np.array([float(value) for value in found.truth])
        fitted = fit_numbers(origin.predict(found.asked), numbers, learned_from=took_part)
    received = hashlib.sha256(origin.write()).hexdigest()
    adaptation = Adaptation(
        site=site.strip(),
        origin=received,
        patients=sum(counts) if counts else len(found.rows),
        counts=counts,
        shifts=fitted.shifts,
        slope=fitted.slope,
        reasons=[*fitted.reasons, *reasons],
    )
    return AdaptedModel(origin, adaptation)
