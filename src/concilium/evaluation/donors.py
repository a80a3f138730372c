"""Donor models: a hospital with too few patients borrows the model of one that has enough (docs/methods.md, 1.15).

Three studies, each agreed to, held to its terms and charged like any other:

1. Every hospital says how well a model of its own does for its own patients (`OwnModels`). Nothing of the model leaves.
   `exact`: four whole numbers, by local ten-fold cross-validation. `noised`: three with noise.
2. The house ranks (`Ranking`) and asks the best to lend its model: a study of the method with this one hospital,
   released as `exact`. A model that is passed on releases what it shows, such as the counts in a tree's leaves.
3. The borrower measures the model on its own patients (models/validation.py).

Candidates are the hospitals whose own model is right for more than 95 % of their own patients. They are ranked by how
many positive patients they have and by AUC; rank r weighs 1.1 - 0.1 r (the first five ranks count), and the best mean
of the two weights wins; on a tie the one with more positives, then the first by name.

Noise. One patient changes a hospital's model, and so what it says of all others: cross-validated figures have no bound
worth the name. So under `noised` a hospital deals its patients into blocks, by its own key. In each block, either half
is predicted by a model of the other, and the figures of all blocks are added up (subsample and aggregate: Nissim,
Raskhodnikova, Smith 2007, STOC). Protects: every patient of the hospital, from everybody who sees the answer, at the
pure epsilon that is charged. Argument: the block of a patient follows from the patient's own record and the key; one
patient more or less changes one block, whose accuracy and AUC are each held to [0, 1], and the count of positives by
one. What a block says depends on its own patients alone: its table is written anew from their cells, each read by
itself. The price is paid in bias, too: a model of half a block is worse than one of all patients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import ConciliumError, MessageError, StudyError
from concilium.evaluation.alone import FOLDS, cross_validate
from concilium.evaluation.leave_out import Predictions, find_classes
from concilium.models.method import (
    Epsilon,
    Method,
    Positive,
    QueryText,
    ReleaseName,
    Target,
    as_written,
    documented,
)
from concilium.parameters import Parameter, choice, whole_number
from concilium.policy.policy import WorkLimits
from concilium.privacy.accounting import Plan, PlannedQuestion, exact_positive, rho_from_pure
from concilium.protocol.attributes import Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import deal_blocks
from concilium.protocol.messages import Refused
from concilium.protocol.proposal import Proposal
from concilium.protocol.questions import (
    EXACT,
    NOISED,
    BySite,
    Conversation,
    Laplace,
    Learned,
    Partners,
    Sensitivity,
    Summed,
)
from concilium.protocol.releases.release import Release
from concilium.protocol.terms import open_method
from concilium.records.columns import Value, label
from concilium.records.grammar import read_text
from concilium.records.table import Records

log = logging.getLogger(__name__)

THRESHOLD = 0.95
RANKS = 5
LEAST_BLOCKS, MOST_BLOCKS = 2, 1000
# Of accuracy and AUC in a block, and what a positive patient counts: noise is L1/epsilon on each of the three numbers.
UNITS, POSITIVE = 100, 50
HALVES = 2  # of a block
# What cross-validating may take in all; the sites that learn meanwhile are held to it.
OPERATIONS, OPERATIONS_OF_BLOCK, OF_EACH_PATIENT = 4 * 10**9, 4 * 10**8, 5 * 10**5
MEMORY, BYTES_OF_EACH = 1 << 31, 1 << 4
PATIENCE = 600.0  # seconds, in which ten models are learned
# What can be learned locally from a table, and predicts classes.
LEARNED_AT_HOME = ("tree", "voting-trees", "rulefit", "naive-bayes")


class _Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well a hospital's own model does on its own patients."""

    site: str
    accuracy: float
    positives: int
    auc: float


class Donor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate with the mean of its weights."""

    site: str
    accuracy: float
    positives: int
    auc: float
    weight: float


def _rank_donors(candidates: Iterable[_Candidate], threshold: float = THRESHOLD) -> list[Donor]:
    """The candidates above the threshold, best first."""
    able = [candidate for candidate in candidates if candidate.accuracy > threshold]
    by_positives = _weigh([candidate.positives for candidate in able])
    by_auc = _weigh([candidate.auc for candidate in able])
    donors = [
        Donor(c.site, c.accuracy, c.positives, c.auc, (one + other) / 2)
        for c, one, other in zip(able, by_positives, by_auc, strict=True)
    ]
    # Weights are tenths: what differs in the fifteenth digit only is equal.
    return sorted(donors, key=lambda donor: (-round(donor.weight, 9), -donor.positives, donor.site))


def _weigh(figures: Sequence[float]) -> list[float]:
    """1.1 - 0.1 x rank, the largest figure first and equal ones alike; nothing beyond the last rank that counts."""
    places = [1 + sum(other > figure for other in figures) for figure in figures]
    return [1.1 - 0.1 * place if place <= RANKS else 0.0 for place in places]


@dataclass(frozen=True)
class Ranking:
    """The hospitals that have a model of their own, and who of them may lend it."""

    candidates: tuple[_Candidate, ...]
    threshold: float = THRESHOLD

    @property
    def donors(self) -> list[Donor]:
        """Those above the threshold, best first."""
        return _rank_donors(self.candidates, self.threshold)

    def others(self, site: str | None = None) -> list[str]:
        """All donors but the hospital itself, best first."""
        return [donor.site for donor in self.donors if donor.site != site]

    def why_none(self, site: str = "") -> str:
        """Why there is nobody to borrow from (for a hospital: nobody else), in a sentence."""
        others = [candidate for candidate in self.candidates if candidate.site != site]
        best = max(others, key=lambda candidate: candidate.accuracy, default=None)
        reached = (
            "none has a model of its own"
            if best is None
            else f"the best, {best.site}, reaches {best.accuracy:.1%}"
        )
        return f"no other hospital's own model is right for more than {self.threshold:.0%} of its patients ({reached})"


def count_own(predictions: Predictions, positive: Value) -> tuple[int, int, int, int]:
    """Patients, those diagnosed rightly, those with the positive value, and twice the number of pairs of a patient with
    it and one without whom the risks order rightly (a tie is half a pair)."""
    right = sum(one == other for one, other in zip(predictions.truth, predictions.predicted, strict=True))
    has = np.array([label(value) == label(positive) for value in predictions.truth], dtype=np.bool_)
    places = [label(value) for value in predictions.classes]
    if not has.any() or label(positive) not in places:
        return len(has), right, int(has.sum()), 0
    risks = np.array(predictions.probabilities)[:, places.index(label(positive))]
    without = np.sort(risks[~has])
    twice = np.searchsorted(without, risks[has], "left") + np.searchsorted(without, risks[has], "right")
    return len(has), right, int(has.sum()), int(twice.sum())


def describe(site: str, counts: Sequence[int]) -> _Candidate:
    """A hospital's candidature, from these counts; an AUC of 0 where there is none to show."""
    patients, right, positives, twice = counts
    pairs = 2 * positives * (patients - positives)
    return _Candidate(site, right / patients, positives, twice / pairs if pairs else 0.0)


class AskOwnModel(Summed, frozen=True, kw_only=True):
    """How well does a model of the hospital's own patients do for these, by ten-fold cross-validation?

    Without noise: patients, rightly diagnosed, positives, twice the pairs in order (`count_own`); all 0 where there are
    fewer than ten, or they teach nothing. With noise: over the blocks, the sums of accuracy and AUC in hundredths;
    positives times 50. `encoded` are the method's parameters, as JSON.
    """

    kind: ClassVar[str] = "model.own"
    releases: ClassVar[frozenset[str]] = EXACT | NOISED
    adds_up: ClassVar[bool] = False  # the pairs of two hospitals are not those of both together

    learned_by: str
    encoded: bytes
    positive: str | int | float | bool
    blocks: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (4,) if self.noise is None else (3,)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(Fraction(2 * UNITS**2 + POSITIVE**2), 2 * UNITS + POSITIVE)

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in ("learned_by", "encoded", "positive", "blocks")}

    @property
    def patience(self) -> float:
        return PATIENCE

    def check(self, release: Release) -> None:
        if self.learned_by not in LEARNED_AT_HOME:
            raise MessageError(
                "a hospital's own model is learned by a method that predicts classes from a table"
            )
        if (self.blocks is None) != (self.noise is None):
            raise MessageError("patients are dealt into blocks where figures have noise, and only there")
        if self.blocks is not None and not LEAST_BLOCKS <= self.blocks <= MOST_BLOCKS:
            raise MessageError(f"patients are dealt into {LEAST_BLOCKS} to {MOST_BLOCKS} blocks")
        _open_learner(self.learned_by, _decode(self.encoded), self.target, self.query)

    def estimate(self, patients: int, columns: int) -> Workload:
        """The most that learning may take, to which it is held; most methods take far less."""
        operations = self._operations * (self.blocks or 1) + OF_EACH_PATIENT * patients
        return Workload(operations, MEMORY + BYTES_OF_EACH * patients * columns)

    @property
    def _operations(self) -> int:
        """What learning may take whatever the patients, of all of them or of a block."""
        return OPERATIONS if self.blocks is None else OPERATIONS_OF_BLOCK

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        if cohort.floored:
            raise Refused("kind", "a site that leaves small counts out does not tell how its own model does")
        if self.noise is None:
            try:
                return np.array(
                    self._count(cohort.view.site, cohort.view.records.take(cohort.rows)), dtype=np.int64
                )
            except ConciliumError as error:
                log.warning("no model of the site's own: %s", error)
                return np.zeros(4, dtype=np.int64)
        names = sorted({self.target, *(_decode(self.encoded).get("attributes") or ())})
        columns = {name: cohort.view.coded(name) for name in names}
        cells = {
            name: [None, *(read_text(label(value)) for value in one.values)] for name, one in columns.items()
        }
        sums, block_of = np.zeros(3, dtype=np.int64), deal_blocks(cohort, self.blocks or 1)
        for block in range(self.blocks or 1):
            rows = cohort.rows[block_of == block]
            table = [
                {name: cells[name][code] for name, code in zip(names, codes, strict=True)}
                for codes in zip(*(columns[name].codes[rows].tolist() for name in names), strict=True)
            ]
            sums += self._measure_block(table)
        return sums

    def _measure_block(self, rows: Sequence[dict[str, Value | None]]) -> NDArray[np.int64]:
        """Accuracy, AUC and positives of one block, each held to its bound; whatever goes wrong in it, the others and
        the answer do not notice."""
        positives = sum(label(row[self.target]) == label(self.positive) for row in rows)
        accuracy = auc = 0.0
        try:
            counts = self._count("", Records.from_rows(rows)) if rows else (0, 0, 0, 0)
            if counts[0]:
                figures = describe("", counts)
                accuracy, auc = figures.accuracy, figures.auc
        except ConciliumError as error:
            log.info("no model of a block of the site's own: %s", error)
        return np.array([round(UNITS * accuracy), round(UNITS * auc), POSITIVE * positives], dtype=np.int64)

    def _count(self, site: str, records: Records) -> tuple[int, int, int, int]:
        folds = FOLDS if self.blocks is None else HALVES
        operations = self._operations + OF_EACH_PATIENT * len(records)
        limits = WorkLimits(operations_per_day=operations // folds, memory_per_question=MEMORY)
        settings = _decode(self.encoded)
        predictions = cross_validate(
            lambda: _open_learner(self.learned_by, settings, self.target, self.query),
            site,
            records,
            classes=find_classes([records], self.target),
            folds=folds,
            work=limits,
        )
        return (0, 0, 0, 0) if predictions is None else count_own(predictions, self.positive)


def _decode(encoded: bytes) -> dict[str, Any]:
    """The parameters in a question; MessageError where these are none."""
    try:
        return msgspec.json.decode(encoded, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"these are no parameters: {str(error)[:100]}") from None


def _open_learner(name: str, settings: Mapping[str, Any], target: str, query: str) -> Method[Any]:
    """What a hospital learns its own model by; MessageError where these are none of its parameters."""
    learner = open_method(name, {**settings, "target": target, "query": query, "release": "exact"})
    assert isinstance(learner, Method)  # LEARNED_AT_HOME
    return learner


class _OwnCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each hospital answered (`AskOwnModel`)."""

    sites: dict[str, list[int]]


def _read_settings(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError
    return dict(value)


@documented
@dataclass(eq=False, repr=False)
class OwnModels(Proposal[_OwnCounts]):
    """How well each hospital's own model does: `OwnModels.of(cc.DecisionTree("death"), positive=1).fit(house)`."""

    method: ClassVar[str] = "own-models"
    called: ClassVar[str] = "a ranking of donors"
    description: ClassVar[str] = "how well each hospital's own model does for its own patients"
    releases: ClassVar[tuple[str, ...]] = ("exact", "noised")
    pure_releases: ClassVar[tuple[str, ...]] = ("noised",)

    target: Target
    positive: Positive
    learned_by: Annotated[
        str,
        Parameter(
            "the name of a method", choice(*LEARNED_AT_HOME), "the method that each hospital learns by, alone"
        ),
    ]
    settings: Annotated[
        Mapping[str, Any],
        Parameter("a table of the method's parameters", _read_settings, "the method's parameters"),
    ]
    query: QueryText = ""
    release: ReleaseName = "exact"
    epsilon: Epsilon = None
    blocks: Annotated[
        int | None,
        whole_number(
            LEAST_BLOCKS, MOST_BLOCKS, "with noise: how many parts each hospital deals its patients into"
        ),
    ] = None

    @classmethod
    def of(
        cls, method: Method[Any], *, positive: Value, epsilon: Any = None, blocks: int | None = None
    ) -> Self:
        """The ranking of hospitals that each learn by this method alone; with an epsilon, of noisy figures."""
        if method.method not in LEARNED_AT_HOME:
            raise StudyError(f"donors lend models that were learned by {', '.join(LEARNED_AT_HOME)}")
        return cls(
            target=method.target,
            positive=positive,
            learned_by=method.method,
            settings=_list_settings(method),
            query=method.query,
            release="exact" if epsilon is None else "noised",
            epsilon=epsilon,
            blocks=blocks,
        )

    def check(self) -> None:
        bounded = self.way_out.bounded
        if bounded != (self.epsilon is not None) or bounded != (self.blocks is not None):
            raise StudyError(
                "a ranking of donors has an epsilon and blocks where its figures have noise, and only there"
            )
        try:
            learner = self.open_learner()
        except MessageError as error:
            raise StudyError(str(error)) from None
        if learner.plan().total or (learner.predicts_numbers and self.target in getattr(learner, "bins", ())):
            raise StudyError("hospitals' own models predict classes, and ask nothing that has a price")
        if bounded and not self.settings.get("attributes"):
            raise StudyError("with noise, a ranking of donors names the 'attributes' of the models")

    def open_learner(self) -> Method[Any]:
        """What each hospital learns its own model by."""
        return _open_learner(self.learned_by, self.settings, self.target, self.query)

    @property
    def must_know(self) -> str:
        return self.target

    @property
    def required_columns(self) -> frozenset[str]:
        return frozenset(self.settings.get("attributes") or ())

    @property
    def pure_price(self) -> Fraction | None:
        return None if self.epsilon is None else exact_positive(as_written(self.epsilon), "epsilon")

    def plan(self) -> Plan:
        price = None if self.pure_price is None else rho_from_pure(self.pure_price)
        blocks = "" if self.blocks is None else f", in {self.blocks} blocks, with noise"
        note = f"accuracy, positives and AUC of each hospital's own model{blocks}"
        return Plan("rho", (PlannedQuestion(AskOwnModel.kind, price, note),))

    @property
    def encoded(self) -> bytes:
        """The method's parameters as they travel."""
        return msgspec.json.encode(self.settings, order="deterministic")

    @property
    def question(self) -> AskOwnModel:
        return AskOwnModel(
            query=self.query,
            target=self.target,
            learned_by=self.learned_by,
            encoded=self.encoded,
            positive=self.positive,
            blocks=self.blocks,
            noise=None if self.pure_price is None else Laplace(str(self.pure_price)),
        )

    def converse(self, partners: Partners) -> Conversation[Learned[_OwnCounts]]:
        by_site = yield BySite(self.question)
        counts = {site: numbers.tolist() for site, numbers in by_site.items()}
        patients = {site: None if self.blocks else numbers[0] for site, numbers in counts.items()}
        return Learned(_OwnCounts(counts), patients)

    @property
    def deviations(self) -> dict[str, float]:
        """The standard deviations of the noise in the figures of one hospital; none without noise."""
        if self.blocks is None:
            return {}
        each = float(self.question.variance) ** 0.5
        share = each / (UNITS * self.blocks)
        return {"accuracy": share, "auc": share, "positives": each / POSITIVE}

    def rank(self, threshold: float = THRESHOLD) -> Ranking:
        """The hospitals by what they answered."""
        candidates = []
        for site, numbers in self.body.sites.items():
            if self.blocks is not None:
                accuracy, auc = (min(max(sum_ / (UNITS * self.blocks), 0.0), 1.0) for sum_ in numbers[:2])
                candidates.append(_Candidate(site, accuracy, max(0, round(numbers[2] / POSITIVE)), auc))
            elif numbers[0]:
                candidates.append(describe(site, numbers))
        return Ranking(tuple(candidates), threshold)


def _list_settings(method: Method[Any]) -> dict[str, Any]:
    """The parameters by which a hospital learns alone as this method does with others: exact, locally. What a private
    study states of its attributes says which they are."""
    declared = method.parameters().items()
    apart = {name for name, one in declared if one.parameter.section in ("privacy", "values")}
    apart |= {"target", "query"}
    given = {name: value for name, value in method.get_params().items() if name not in apart}
    stated = [*getattr(method, "values", ()), *getattr(method, "bins", ())]
    if method.way_out.bounded and not given.get("attributes") and "attributes" in given:
        given["attributes"] = sorted({*stated} - {method.target}) or None
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    return settings
