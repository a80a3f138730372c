"""What every method is: parameters declared once, a conversation that learns, and a model that predicts and explains.

A method is a dataclass whose fields are its parameters (concilium/parameters.py). `converse` is all it has to say to
the sites; `fit` has a house drive it. What it learned is the body of its model file, with the card.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from functools import partial
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import LedgerError, MessageError, MissingExtra, ModelError, RecordsError, StudyError
from concilium.models.explanation import (
    Explanation,
    annotate,
    decline,
    find_outside,
    say_missing_sites,
    say_open,
    say_query,
    warn_outside,
)
from concilium.models.follow_up import Followed, know_by_horizon
from concilium.models.model_file import save, write
from concilium.models.pictures import Picture
from concilium.models.prediction import AnyPatients, KnownOutcomes, NewPatients, as_plain, read_patient
from concilium.models.private_start import CLASSES, WORDS, share_of_start, states_attributes
from concilium.models.threshold import CallingRule, Decided, choose, parse, say_decided
from concilium.parameters import Parameter, choice, describe, lists_by_column, name, names, text
from concilium.privacy.accounting import (
    epsilon_from_rho,
    exact_delta,
    exact_positive,
    rho_for_epsilon,
    say_epsilon,
)
from concilium.protocol.attributes import read_bins
from concilium.protocol.card import Card
from concilium.protocol.grid import all_on_grid
from concilium.protocol.proposal import Proposal
from concilium.protocol.questions import B, Statistic
from concilium.protocol.schema import LEFT_OUT, UNITS, name_rest, state_values
from concilium.protocol.terms import Draft
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.records.grammar import canonical
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.series_times import read_duration
from concilium.registry import RELEASES, load

if TYPE_CHECKING:
    from pandas import DataFrame


def _read_query(value: Any) -> str:
    query = text(value)
    Query.parse(query)
    return query


def read_value(value: Any) -> Value:
    """A value of the target, and not that it is missing."""
    plain: Value | None = as_plain(value)
    if not isinstance(plain, str | int | float) or label(plain) in ("", label(None)):
        raise ValueError
    return plain


def as_written(value: Any) -> str | int | Fraction:
    """A float stands for its shortest decimal, 0.1 for one tenth."""
    exact: str | int | Fraction = str(value) if isinstance(value, float) else value
    return exact


LEAST_EPSILON, MOST_EPSILON = Fraction(1, 10**30), 10**6
_reading = threading.Lock()
AN_EPSILON = "a number above 0 (at least 1e-30, at most 1e6)"


def read_epsilon(value: Any) -> str | int | Fraction:
    exact = _read_exactly(value, lambda number: exact_positive(number, "epsilon"))
    if not LEAST_EPSILON <= exact_positive(exact, "epsilon") <= MOST_EPSILON:
        raise ValueError
    return exact


def _read_exactly(value: Any, check: Callable[[str | int | Fraction], Fraction]) -> str | int | Fraction:
    """A number as it is written; ValueError, as for every other parameter, where a ledger could not count with it."""
    try:
        check(as_written(value))
    except LedgerError:
        raise ValueError from None
    return as_written(value)


def read_edges(value: Any) -> dict[str, list[float]]:
    try:
        return read_bins({} if value is None else value)
    except MessageError as error:
        raise StudyError(str(error)) from None


Target = Annotated[
    str,
    Parameter(
        "an attribute's name",
        name,
        "the attribute to predict; patients for whom it is missing are left out",
        "study",
    ),
]
QueryText = Annotated[
    str,
    Parameter(
        "text", _read_query, "attributes of interest: the patients to learn from; empty: everyone", "study"
    ),
]
Positive = Annotated[
    str | int | float | bool,
    Parameter(
        "a value of the target, such as 'yes'",
        read_value,
        "the value of the target that is predicted; all its other values together are the other class",
        "study",
    ),
]
PositiveClass = Annotated[
    str | int | float | bool | None,
    Parameter(
        "a value of the target, such as 'yes'",
        read_value,
        "the class that `threshold` is about, and figures; None: the second of two",
        "study",
    ),
]
Attributes = Annotated[
    Sequence[str] | None,
    Parameter("a list of names", names, "the attributes to consider; None: all that every site has", "study"),
]
OnMisfit = Annotated[
    str,
    Parameter(
        "'attribute' or 'hospital'",
        choice("attribute", "hospital"),
        "what is left out where a hospital lacks or withholds an attribute: it for all, or that hospital, if it lacks "
        "one that is stated or is in the query; card and answers name it",
        "study",
    ),
]
ReleaseName = Annotated[
    str,
    Parameter(
        "the name of a release",
        name,
        '"exact": the house sees each site\'s numbers; "masked": sums over all sites only (three at least); "private": '
        "sums with noise, at the price of `epsilon` and `delta` per patient, for which the study must state `values` "
        "or `bins` for all it asks about",
        "privacy",
    ),
]
Epsilon = Annotated[
    float | str | Fraction | None,
    Parameter(AN_EPSILON, read_epsilon, "what private releases may cost per patient", "privacy"),
]
Delta = Annotated[
    float | str | Fraction,
    Parameter(
        "a number between 0 and 1, such as '1e-6'",
        partial(_read_exactly, check=exact_delta),
        "the delta that goes with epsilon",
        "privacy",
    ),
]


def time_span(example: str, about: str) -> Parameter:
    """A parameter that takes a time, such as this one."""
    return Parameter(f"a time such as {example!r}", _read_time, about)


def _read_time(value: Any) -> str:
    try:
        read_duration(value, "time")
    except RecordsError:
        raise ValueError from None
    return str(value)


Step = Annotated[str, time_span("1h", "the step of the series")]
Carry = Annotated[str, time_span("24h", "how long a value of a series stands for those missing")]
Values = Annotated[
    Mapping[str, Sequence[Value]],
    Parameter(
        "lists of values by attribute",
        lists_by_column,
        "of private studies: the values of categories, and the classes; any other counts as one more",
        "values",
    ),
]
Bins = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        'public cutoffs of numeric attributes, {"age": [40, 60]}; numbers without bins are cut at quantiles on a '
        "public grid",
        "bins",
    ),
]


class Method(Proposal[B]):
    """The contract of all methods (tests/contract runs every one in `registry.METHODS` through it).

    body_type         what its model file holds
    against_rest      whether it tells the positive class from all others together
    compares          whether every hospital can learn it alone, so that ways of learning can be put side by side
    tells_apart       whether what it says depends on the patient; of a table of the population it does not
    predicts_numbers  the releases in which it predicts a number where `bins` gives the target's range
    reads_courses     whether it learns from series or rules of patients and judges their courses, not rows
    differs_from_pooled  why an exact or masked model is not that of the pooled table; empty where it is
    decides           how it comes to a class, where that is not for a study's `threshold` to say
    memory_share      predicting one patient takes at most this many bytes for each byte of the model's file
    """

    body_type: ClassVar[type[msgspec.Struct]]
    releases: ClassVar[tuple[str, ...]] = ("exact", "masked", "private")
    against_rest: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    tells_apart: ClassVar[bool] = True
    predicts_numbers: ClassVar[tuple[str, ...]] = ()
    reads_courses: ClassVar[bool] = False
    follows_time: ClassVar[bool] = False
    differs_from_pooled: ClassVar[str] = ""
    decides: ClassVar[str] = ""
    memory_share: ClassVar[float] = 1.0

    target: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if fault := self.find_decision_fault(self.rule):
            raise StudyError(f"{self.called} cannot decide by {self.get_params()['threshold']!r}: {fault}")

    @property
    def rule(self) -> CallingRule:
        """How it decides, by its parameter `threshold`, if it has that."""
        return parse(getattr(self, "threshold", "majority"))

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        """Why it cannot decide by this rule with its other parameters; None where it can."""
        return None

    @property
    def decided(self) -> Decided | None:
        """From which chance on `predict` calls the positive class; None where the likeliest class is called."""
        decided: Decided | None = getattr(self.body, "decided", None)
        return decided

    @property
    def placed(self) -> Decided | None:
        """The same; where a half is no chance but a place in the order of patients, that place: what a hospital that
        adapts the model moves with the chances (recalibration.py)."""
        return self.decided

    def find_why_silent(self) -> str | None:
        """Why the model says nothing of a patient's outcome, so that `predict` and `explain` refuse; None where it
        does."""
        return None

    def find_unadaptable(self) -> str | None:
        """Why there is no intercept that a hospital could adapt; None where there is one."""
        if self.classes_ and len(self.classes_) < 2:
            return "the model knows a single class: there is nothing to adapt"
        return None

    @property
    def subject(self) -> str:
        return self.target

    @property
    def aim(self) -> str:
        positive = getattr(self, "positive", None) if self.against_rest else None
        about = "" if positive is None else f" = {positive}"
        return f"{super().aim[:-1]}, to predict {self.target}{about}."

    @property
    def must_know(self) -> str:
        """The column of the table that must be known of a patient: the target; empty where there is none."""
        return self.target

    @property
    def spares_misfits(self) -> bool:
        return getattr(self, "on_misfit", "attribute") == "hospital"

    @property
    def required_columns(self) -> frozenset[str]:
        if not self.spares_misfits:
            return super().required_columns
        stated = getattr(self, "attributes", None)
        listed = {*self._stated("bins"), *self._stated("values")} if stated is None else stated
        return frozenset({*self.needed_columns, *listed} - {""})

    def draft(self, *, models: int = 1) -> Draft:
        return replace(super().draft(models=models), spares_misfits=self.spares_misfits)

    def may_cut(self, name: str, edges: Sequence[float]) -> bool:
        """Whether it may cut an attribute at these cutoffs: they are among the public ones that the study states."""
        stated = self._stated("bins").get(name)
        return all_on_grid(tuple(edges)) if stated is None else set(stated).issuperset(edges)

    def _stated(self, name: str) -> Mapping[str, Sequence[Any]]:
        """What it states of every attribute under a parameter, if it has that."""
        stated: Mapping[str, Sequence[Any]] = getattr(self, name, None) or {}
        return stated

    def _is_agreed(self, parameter: str, asked: Any) -> bool:
        """Whether a question has the study's own value of a parameter; what the study leaves open may be anything."""
        agreed: Any = getattr(self, parameter, None)
        if parameter == "bins":
            edges = [{n: list(e) for n, e in b.items() if n != self.target} for b in (agreed or {}, asked)]
            return edges[0] == edges[1]
        if parameter == "attributes":
            return bool(asked == (None if agreed is None else list(agreed)))
        if agreed is None or asked is None:
            return True
        return canonical(asked) == canonical(agreed) if parameter == "positive" else bool(asked == agreed)

    def _find_foreign(self, question: Statistic) -> str | None:
        """An attribute that the study does not ask about, or a cutoff or value that it does not state."""
        among: Sequence[str] | None = getattr(self, "attributes", None)
        states_values = self.way_out.bounded
        for one in question.named:
            if among is not None and one.name not in among and one.name != self.target:
                return f"it asks about {one.name!r}, which is not among the study's attributes"
            if not self.may_cut(one.name, one.edges):
                return f"it cuts {one.name!r} where the study does not"
            named = states_values and one.values
            if named and not self._labels_of(one.name).issuperset(map(label, one.values)):
                return f"it names a value of {one.name!r} that the study does not state"
        return None

    def _labels_of(self, name: str) -> frozenset[str]:
        """What a private study states of an attribute, as hospitals read it; of its target also what it predicts."""
        stated, positive = self._stated("values").get(name, ()), getattr(self, "positive", None)
        predicted: list[Value] = [positive] if name == self.target and positive is not None else []
        if name == self.target and not stated:
            predicted += [word for pair in CLASSES for word in pair]
        elif name != self.target and not stated and not states_attributes(self):
            predicted = list(WORDS)
        return frozenset(map(label, state_values([*stated, *predicted])))

    def save(self, path: str | Path) -> None:
        """A model file (JSON)."""
        save(path, self.write())

    def write(self) -> bytes:
        """What its model file holds."""
        return write(self.method, self.get_params(), self.body, self.card)

    @classmethod
    def from_body(cls, raw: bytes, card: Card, parameters: Mapping[str, Any] | None = None) -> Self:
        """The model that a file holds."""
        # Two threads that have msgspec look at a new struct at the same time can crash the interpreter.
        with _reading:
            body: Any = msgspec.json.decode(raw, type=cls.body_type)
        return cls.of(body, card, parameters)

    @classmethod
    def of(cls, body: B, card: Card, parameters: Mapping[str, Any] | None = None) -> Self:
        """The model that a body, a card and parameters make; without parameters, those that the body tells, and
        defaults. StudyError where the parameters are not those of the method, or contradict the body."""
        fitted = cls.__new__(cls)
        stored = cls.parameters_in(body)
        given = dict(parameters or {})
        if unknown := sorted(set(given) - set(cls.parameters())):
            raise StudyError(f"{cls.called} has no parameter {unknown[0]!r}")
        for shared in ("target", "query"):
            if shared in given and given[shared] != stored.get(shared, given[shared]):
                raise StudyError(
                    f"its parameter {shared!r} is {given[shared]!r}, and its body says otherwise"
                )
        for one in cls.parameters().values():
            setattr(fitted, one.name, stored.get(one.name, one.kept_default))
            if one.name in given:
                setattr(fitted, one.name, given[one.name])
        if given:
            fitted.read_parameters()
        if "release" in cls.parameters():
            fitted.release = card.release
        fitted._body, fitted._card, fitted._settled = body, card, True
        return fitted

    @classmethod
    def parameters_in(cls, body: B) -> dict[str, Any]:
        """The parameters that the body of a model file tells."""
        stored = {name: getattr(body, name) for name in cls.parameters() if hasattr(body, name)}
        decided: Decided | None = getattr(body, "decided", None)
        if decided is not None:
            stored |= {"threshold": decided.rule, "positive": decided.positive}
        return stored

    @property
    def classes_(self) -> list[Value]:
        """The classes, in the order of `predict_proba`'s columns; none where a number is predicted."""
        body: Any = self.body
        return list(body.classes)

    @property
    @abstractmethod
    def attributes_(self) -> list[str]:
        """The attributes that the model asks about, in order."""

    def read(self, patients: AnyPatients) -> NewPatients:
        """Patients as the model reads them, whatever it is asked about them (prediction.py)."""
        bounded = self.card.release in RELEASES and RELEASES[self.card.release].bounded
        return NewPatients(patients, self.card.dictionary, by_itself=bounded)

    @abstractmethod
    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """For each patient how likely each class is; columns as in classes_."""

    def predict(self, patients: AnyPatients) -> NDArray[Any]:
        """The class that is called for each patient: by the study's decision, which the model stores, or the likeliest
        (the first of those that are equally likely)."""
        best = choose(self.predict_proba(patients), self.classes_, self.decided)
        labels: NDArray[Any] = np.array(self.classes_).take(best)
        return labels

    @property
    def tells_risks(self) -> bool:
        """Whether its chances are meant to come true; not those of courses, which are weighed as if the outcome were as
        frequent as not."""
        return not self.reads_courses

    @property
    def followed(self) -> Followed | None:
        """Up to which horizon it tells risks, of a model of survival (`follows_time`)."""
        return None

    def soft_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """The same, but nothing is held to be certain because a few patients were all alike: what a hospital adapts
        (recalibration.py)."""
        return self.predict_proba(patients)

    def soften(self, said: Explanation) -> NDArray[np.float64]:
        """The same for the patient of an explanation."""
        if said.chances or said.probability is None:
            return np.array(said.chances)
        place = [label(value) for value in self.classes_].index(label(said.prediction))
        return np.array([said.probability if at == place else 1 - said.probability for at in range(2)])

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        """Those of the patients whom it is about and whose outcome is known, as it is asked about them."""
        table = patients.table
        if table is None:
            raise ModelError("this model is about a table of patients, and there is none")
        if self.target not in table:
            raise ModelError(f"the patients have no column {self.target!r}, which is what the model predicts")
        known = np.array([value is not None for value in table.values(self.target)], dtype=np.bool_)
        rows = np.flatnonzero(Query.parse(self.query).mask(table) & known)
        about = table.take(rows)
        truth = [value for value in about.values(self.target) if value is not None]
        found = KnownOutcomes(about, truth, rows)
        return found if self.followed is None else know_by_horizon(self, self.followed, found)

    def score(self, patients: Any) -> float:
        """How often the model is right about patients whose outcome the table holds; of a number, R squared.

        Whom its query does not select, and whose outcome is missing, is left out.
        """
        found = self.find_outcomes(Patients.of(patients) or Patients(table=NewPatients(patients).records))
        if not len(found.rows):
            raise ModelError(
                f"there is no patient whom the model is about and whose {self.target!r} is known"
            )
        predicted = self.predict(found.asked)
        if not self.classes_:
            truth = np.array([float(value) for value in found.truth])
            spread = float(((truth - truth.mean()) ** 2).sum())
            return 1 - float(((truth - predicted) ** 2).sum()) / spread if spread else float("nan")
        truth = self.place(found.truth)
        guesses = self.place(predicted.tolist())
        return float(np.mean((truth == guesses) & (truth >= 0)))

    def evaluate(self, house: Any, **how: Any) -> Any:
        """Measure the model on the patients of a house, through their gates: `.metrics` has figures overall and, where
        the release shows them, by site (evaluation/validation.py says what it takes)."""
        return load("concilium.evaluation.validation:validate")(self, house, **how)

    def place(self, outcomes: Sequence[Value]) -> NDArray[np.intp]:
        """The place of each outcome among the classes; -1 for one that is none of them."""
        places = {label(value): place for place, value in enumerate(self.classes_)}
        rest = (
            0 if self.against_rest else -1
        )  # of one class against all others together, the others come first
        return np.array([places.get(label(value), rest) for value in outcomes], dtype=np.intp)

    @property
    def names_classes(self) -> bool:
        """Whether patients with none of its classes have an outcome that it does not know; otherwise all that is not
        the positive one counts as the other."""
        if not self.against_rest:
            return True
        return self.followed is None and label(self.classes_[0]) != name_rest(self.classes_[-1])

    def list_risks(self, place: int) -> Sequence[float] | None:
        """All that `predict_proba` can say of the class at this place, where that is a list."""
        return None

    def bin_risks(self, patients: AnyPatients, place: int, edges: NDArray[np.float64]) -> NDArray[np.integer]:
        """How many of these edges are at or below each patient's risk of the class at this place."""
        return np.searchsorted(edges, self.predict_proba(patients)[:, place], side="right")

    def importances(self) -> dict[str, float]:
        """How much of what the model tells it tells by each attribute, the largest 100, the most important first."""
        raise ModelError(f"{self.called} does not say how important its attributes are")

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The importances of `attributes_`, in their order, as shares of 1."""
        known = self.importances()
        found = np.array([known.get(name, 0.0) for name in self.attributes_])
        return found / found.sum() if found.sum() else found

    def _repr_html_(self) -> str:
        """For notebooks: the model drawn where there is a picture, and as text."""
        said = f"<p><code>{escape(repr(self))}</code></p>"
        if self._body is None:
            return said
        pictures = "".join(f"<div>{picture}</div>" for picture in self.pictures().values())
        folded = "" if pictures else " open"
        text = f"<summary>as text</summary><pre>{escape(self.text())}</pre>"
        return f"{said}{pictures}<details{folded}>{text}</details>"

    def explain(self, patient: Mapping[str, Any], *, anyway: bool = False) -> Explanation:
        """Why this patient gets this prediction: prints as sentences, `.reasons` and `.interval` are data.

        A name that the patient lacks was not entered, and counts neither for nor against; None says that it is missing,
        which counts as it did for patients learned from. A model of courses takes numbers in order,
        {"HR": [88, 95, 102]}. Outside of the model's query there is no prediction, and `.outside` says why; `anyway`
        predicts all the same, and says so first.
        """
        plain = dict(patient) if self.reads_courses else read_patient(patient)
        if self.reads_courses and not set(plain) & set(self.attributes_):
            plain |= {name: [None] for name in self.attributes_}
        dictionary = self.card.dictionary
        query = Query.parse(self.query)
        outside = find_outside(query, plain, dictionary)
        if outside and not anyway:
            return decline(self.target, say_query(query, dictionary), outside)
        explanation = self._say_decided(say_open(self._explain(plain)))
        explanation = annotate(explanation, plain, self.attributes_, dictionary)
        more = (*self._say_lacking(plain, explanation), *say_missing_sites(self.card))
        explanation = replace(
            explanation, notes=(*explanation.notes, *more), sentences=(*explanation.sentences, *more)
        )
        return warn_outside(explanation, say_query(query, dictionary), outside)

    def _say_lacking(self, patient: Mapping[str, Any], explanation: Explanation) -> list[str]:
        """What to measure first for a patient of whom not all is known that the model asks for."""
        if self.reads_courses or not self.attributes_:
            return []
        if any("Measure " in one for one in explanation.sentences):  # a tree knows what it asks next
            return []
        entered = bool(set(patient) & set(self.attributes_))
        asked = any(one.startswith(("Not entered", "Not known")) for one in explanation.sentences)
        if entered and (not asked or self.way_out.bounded):  # noise may have ranked them
            return []
        told = self.importances()
        name = next((one for one in told if one not in patient), "")
        if not entered:
            return [f"Nothing that the model asks for was entered. Measure {name} first."]
        if told.get(name, 0.0) < LEAST_TOLD:
            return []
        return [f"Of what was not entered {name} tells most: measure it first."]

    def _say_decided(self, explanation: Explanation) -> Explanation:
        """The explanation with what is said of the decision, if there is one, after its first sentence."""
        if self.decided is None:
            return explanation
        first, *others = explanation.sentences
        positive = say_value(self.decided.positive, self.card.dictionary.get(self.target))
        said = say_decided(msgspec.structs.replace(self.decided, positive=positive))
        return replace(
            explanation,
            called_from=self.decided.threshold,
            sentences=(first, f"{said[0].upper()}{said[1:]}.", *others),
        )

    @abstractmethod
    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        """The same for a patient of plain values."""

    def text(self) -> str:
        """The model for terminals and logs, what was left out of it, and units that may differ."""
        shown = [warning for warning in self.card.warnings if warning.startswith((LEFT_OUT, UNITS))]
        return "\n".join([self._text(), *shown])

    @abstractmethod
    def _text(self) -> str:
        """The model itself."""

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """The model as SVG by name, fit for a page or `whole`; none where there is nothing to draw."""
        return {}

    def list_terms(self) -> Sequence[Any]:
        """The terms of the model with their figures, one object each; none where it is not made of terms."""
        return ()

    def table(self) -> DataFrame:
        """The model with all its numbers as a pandas DataFrame: a row for each term, rule or figure."""
        terms, text = self.list_terms(), self.to_csv()
        if not terms and not text:
            raise ModelError(f"{self.called} is no table; print(model.text()) shows it")
        try:
            import pandas
        except ImportError:
            raise MissingExtra("notebook", "a table as a DataFrame") from None
        if not terms:  # a group may be named "None"
            read = pandas.read_csv(StringIO(text), na_values=[""], keep_default_na=False)
            return read.rename(columns={"Unnamed: 0": ""})
        columns = getattr(terms[0], "__struct_fields__", None) or [one.name for one in fields(terms[0])]
        return pandas.DataFrame(
            [[getattr(term, each) for each in columns] for term in terms], columns=columns
        )

    def rows(self) -> list[list[str]]:
        """The model in words as rows of a table, the head first; none where it is no table."""
        return []

    def to_csv(self) -> str:
        """The model with all its numbers as CSV; empty where it is no table."""
        return ""

    def plot(self) -> Picture:
        """The model as one picture (SVG, which notebooks draw): the first of `pictures`."""
        for drawn in self.pictures().values():
            return Picture(drawn)
        raise ModelError(f"{self.called} has no picture; print(model.text()) shows it")


class PrivateMethod(Method[B]):
    """A method that may be released as `private`: all it asks then costs its epsilon, at its delta, per patient."""

    epsilon: Any
    delta: Any

    @property
    def needed_columns(self) -> frozenset[str]:
        if self.reads_courses or not self.way_out.bounded or not states_attributes(self):
            return super().needed_columns
        stated = {*self._stated("values"), *self._stated("bins")}
        among = getattr(self, "attributes", None)
        return super().needed_columns | (stated if among is None else stated & {*among, self.target})

    @property
    def rho(self) -> Fraction:
        """What `epsilon` at `delta` buys."""
        return rho_for_epsilon(self.epsilon, self.delta)

    @property
    def rho_of_fit(self) -> Fraction:
        """What is left of it to learn with, once classes and cutoffs are known."""
        return self.rho * (1 - share_of_start(self))

    @property
    def epsilon_of_rho(self) -> float:
        """The epsilon that is shown for that: at most the one of the study."""
        return epsilon_from_rho(self.rho, self.delta)

    def say_price(self) -> str:
        """What the card says first of a private model."""
        epsilon = say_epsilon(self.epsilon_of_rho)
        return f"differential privacy per patient: epsilon = {epsilon} at delta = {self.delta}"


LEAST_TOLD = 10.0  # of the 100 of the most important attribute: less is hardly worth a measurement
M = TypeVar("M")


def documented(method: type[M]) -> type[M]:
    """The method with its parameters in its docstring."""
    differs = getattr(method, "differs_from_pooled", "")
    notes = f"\n\n    An exact or masked one {differs}." if differs else ""
    method.__doc__ = f"{method.__doc__}\n\n{describe(method)}{notes}\n"
    return method
