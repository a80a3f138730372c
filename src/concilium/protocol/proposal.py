"""What a house can propose to hospitals: parameters declared once, the questions that follow from them with what each
costs, and what is no question of it. A method learns a model by that (method.py); sharing codes hands on histories
(codes/agreed_sharing.py). `registry.PROPOSED` lists them all: nothing else can stand in the terms of a study.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from fractions import Fraction
from typing import Any, ClassVar, Generic, Self

from concilium.errors import ModelError, StudyError, nearest
from concilium.parameters import Parametrised
from concilium.privacy.accounting import Plan
from concilium.protocol.card import Card
from concilium.protocol.held_out import Folds
from concilium.protocol.house import House
from concilium.protocol.questions import B, Conversation, Learned, Partners, Statistic
from concilium.protocol.releases import find_release
from concilium.protocol.releases.release import Release
from concilium.protocol.terms import Draft
from concilium.records.patients import PatientPart
from concilium.records.query import Query
from concilium.records.query_reading import read_query


class Proposal(Parametrised, ABC, Generic[B]):
    """A dataclass whose fields are its parameters (concilium/parameters.py).

    method         its name in terms, policies and files
    called         how sentences name it
    description    what comes of it
    handed_on      the part of patients whose entries leave; empty where none do
    reads_columns  whether it asks about columns of a table, which a committee then reads
    instead        what to say of a release that it has not
    pure_releases  the releases under which it may cost pure epsilon alone (`pure_price`)
    answers_at_random  whether even what has no price is drawn at random, so that nothing comes out twice the same
    """

    method: ClassVar[str]
    description: ClassVar[str]
    releases: ClassVar[tuple[str, ...]]
    handed_on: ClassVar[str] = ""
    reads_columns: ClassVar[bool] = True
    instead: ClassVar[str] = ""
    pure_releases: ClassVar[tuple[str, ...]] = ()
    answers_at_random: ClassVar[bool] = False

    query: str
    release: str
    _body: B | None = None
    _card: Card | None = None
    _settled: bool = False

    def __post_init__(self) -> None:
        self.read_parameters()
        if self.release not in self.releases:
            *others, last = map(repr, self.releases)
            fault = self.wrong("release", " or ".join(filter(None, [", ".join(others), last])), self.release)
            raise StudyError(f"{fault}{self.instead}")
        target = self.must_know
        if target and target in (getattr(self, "attributes", None) or ()):
            raise StudyError(
                f"{target!r} is the target of {self.called}, and cannot be among its 'attributes': take it out"
            )
        self.check()
        self._settled = True

    def check(self) -> None:
        """StudyError for parameters that need, exclude or contradict each other."""

    def check_before_proposing(self) -> None:
        """StudyError where it cannot work. The house's affair, before it proposes: it may take long, and a hospital
        that reads the terms of a study does not compute it."""

    @abstractmethod
    def plan(self) -> Plan:
        """What it will ask, what each question costs, and all of it together."""

    @abstractmethod
    def converse(self, partners: Partners) -> Conversation[Learned[B]]:
        """Everything that it asks, and what it makes of the answers."""

    @property
    def subject(self) -> str:
        """What it is about, in a word or two, for lists."""
        return self.description

    @property
    def aim(self) -> str:
        """What is to come of it, in a sentence, for those who decide."""
        return f"{self.description[0].upper()}{self.description[1:]}."

    @property
    def worst_case(self) -> Sequence[str]:
        """What can come of it for patients, in sentences of its own; none where the release says all of it."""
        return ()

    @property
    def pure_price(self) -> Fraction | None:
        """All that it costs in pure epsilon, where every part of it that has a price has such a one; None otherwise."""
        return None

    def find_reservation(self, sensitive: Sequence[str] | None) -> str | None:
        """Why a person must decide on it, whatever else a policy agrees to, None where there is no reason; `sensitive`
        are codes that the policy wants hidden."""
        return None

    @property
    def must_know(self) -> str:
        """The column of the table that must be known of a patient; empty where there is none."""
        return ""

    @property
    def needed_columns(self) -> frozenset[str]:
        """The columns without which a hospital refuses its private questions."""
        return frozenset(filter(None, [self.must_know, *Query.parse(self.query).attributes]))

    @property
    def spares_misfits(self) -> bool:
        """Whether a hospital that does not fit steps aside, rather than stop the study."""
        return False

    @property
    def required_columns(self) -> frozenset[str]:
        """The columns without which a hospital refuses the study, however it is released."""
        return frozenset()

    @property
    def reads_beside(self) -> str:
        """What its private questions read of patients in place of a table, such as their series."""
        return ""

    def check_part(self, part: PatientPart) -> None:
        """DoesNotFit where a hospital's part of that name does not fit, by what is stated of it alone."""

    def draft(self, *, models: int = 1) -> Draft:
        """What hospitals are asked to agree to, for a house to propose: all of this, and its price at most."""
        self.check_before_proposing()
        price = self.plan().total * models
        return Draft(self.method, self.release, self.get_params(), price or None, models)

    @property
    def percent_held_out(self) -> int | None:
        """The share of every site's patients that it may hold out, in percent; None where it does not."""
        return None

    @property
    def folds(self) -> Folds | None:
        """The folds of every site's patients that it may tell apart; None where it does not."""
        return None

    def find_objection(self, question: Statistic) -> str | None:
        """Why this is no question of a study with these parameters, None where it may be one: sites hold every question
        to it (terms.py)."""
        if question.query != self.query or question.target != self.must_know:
            return "it is about other patients, or another target, than the study's"
        if question.division is not None and question.division.percent != self.percent_held_out:
            return "it holds out another share of the patients"
        if question.dealing is not None and question.dealing != self.folds:
            return "it deals the patients into other folds"
        for parameter, asked in question.fixed.items():
            if not self._is_agreed(parameter, asked):
                return f"its {parameter!r} is not that of the study"
        return self._find_foreign(question)

    def _is_agreed(self, parameter: str, asked: Any) -> bool:
        """Whether a question has the study's own value of a parameter."""
        return bool(asked == getattr(self, parameter, None))

    def _find_foreign(self, question: Statistic) -> str | None:
        """What a question is about that the study is not."""
        return None

    @property
    def way_out(self) -> Release:
        """The release, as an object."""
        return find_release(self.release)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, as plain values; `deep` is there because scikit-learn says it."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {name: str(v) if isinstance(v, Fraction) else v for name, v in values.items()}

    def set_params(self, **given: Any) -> Self:
        """Take other parameters, checked as those it was made with; what was learned with the old ones is forgotten."""
        for name in given:
            if name not in self.parameters():
                raise StudyError(f"{self.called} has no parameter {name!r}{nearest(name, self.parameters())}")
        other = type(self)(**{**self.get_params(), **given})
        vars(self).clear()
        vars(self).update(vars(other))
        return self

    def __sklearn_clone__(self) -> Self:
        """Another with the same parameters, which has learned nothing: what `sklearn.base.clone` asks for."""
        return type(self)(**self.get_params())

    def fit(self, house: House | Mapping[str, Any] | Iterable[Any]) -> Self:
        """Have the sites of this house take part, or these sites or tables in a house of their own; returns itself.

        `fit({"north": frame, "south": "south.csv"})` makes a site of every table.
        """
        house = House.of(house)
        # In the values of the dictionary, before anybody is asked; what is asked is what the model then says.
        self.__dict__["query"] = read_query(self.query, house.dictionary.entries)
        self.take(*house.learn(self.draft(), self.converse))
        return self

    def take(self, body: B, card: Card) -> None:
        """Hold what came of it."""
        self._body, self._card = body, card

    @property
    def body(self) -> B:
        """What came of it."""
        if self._body is None:
            raise ModelError(f"{type(self).__name__} is not fitted yet; call fit(house) first")
        return self._body

    @property
    def card(self) -> Card:
        """Sites, rounds, bytes, releases with their cost, refusals, dropouts, warnings."""
        if self._card is None:
            raise ModelError(f"{type(self).__name__} is not fitted yet; call fit(house) first")
        return self._card

    def _summary(self) -> str:
        """What `repr` says of what came of it, such as "7 nodes"."""
        return "fitted"

    def __repr__(self) -> str:
        given = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in self.parameters().values()
            if one.required or getattr(self, one.name) != one.kept_default
        ]
        fitted = [] if self._body is None else [self._summary()]
        return f"{type(self).__name__}({', '.join(given)})" + "".join(f" [{one}]" for one in fitted)

    def stating(self, **parameters: Any) -> Self:
        """The same with other parameters, which are known to be right: what a study has found out on its way."""
        stated = copy(self)
        stated.__dict__.update(parameters)
        return stated

    def __setattr__(self, name: str, value: Any) -> None:
        if self._settled and name in self.parameters():
            raise AttributeError(f"the {name!r} of a {type(self).__name__} is settled: make another with it")
        super().__setattr__(name, value)
