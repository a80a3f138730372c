"""The alternative to a randomised copy, at the same price: noisy counts of codes and of pairs of codes.

`CodeCounts(epsilon="1.5", pairs_with=["303"]).fit(house)` asks each hospital how many patients have each code, and how
many have it together with each of `pairs_with`. No entry of a patient leaves. For questions that are known beforehand
(how frequent is a code, what comes with it) counts are far more precise than a copy at the same epsilon; a copy answers
questions that nobody asked yet. What was released costs nothing more, whatever is made of it: `CodeSharing.fit(counts)`
hides the codes that these counts say give a sensitive one away.

Claim. Protected: every patient, with all entries at once, from everybody, at pure `epsilon`: discrete Laplace noise
(releases/noised.py). One patient adds 1 to the number of patients, to at most `most_codes` codes and to at most
`most_pairs` pairs, chosen from the patient's own history alone (the codes recorded last): L1 = 1 + most_codes +
most_pairs. Assumption: the operating system's generator. Counts of longer histories are too small by what is left out.

docs/methods.md, section 7.15.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from concilium.codes.block_response import UNREADABLE
from concilium.codes.recipient import CodeEstimate
from concilium.codes.shared_codes import find_codes, read_codes
from concilium.codes.sharing_parameters import Digits, Epsilon
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import MessageError, RecordsError, StudyError
from concilium.models.method import QueryText, documented
from concilium.parameters import Parameter, choice, names, whole_number
from concilium.privacy.accounting import Plan, PlannedQuestion, rho_from_pure
from concilium.protocol.attributes import CALL, Workload
from concilium.protocol.cohort import Cohort
from concilium.protocol.proposal import Proposal
from concilium.protocol.questions import NOISED, Conversation, Laplace, Learned, Partners, Sensitivity, Summed
from concilium.protocol.releases.release import Release
from concilium.records.sequences import Sequences

FORMAT = "concilium/code-counts@1"
MOST_TARGETS, MOST_OF_ONE = 100, 10_000
# To read all codes, to sort each event, and to add up each patient's codes and pairs.
OF_ALL_CODES, OF_AN_EVENT, EVENTS_EACH = 60_000_000, 400, 20
PAIR_BYTES = 64
CHANCE = 0.05
"""The chance that noise alone makes any pair count as one that gives a code away."""

Many = Annotated[int, Meta(ge=1, le=MOST_OF_ONE)]


class AskCodeCounts(Summed, frozen=True, kw_only=True):
    """How many patients are there, how many have each code, and how many have it with each of these?"""

    kind: ClassVar[str] = "codes.counts"
    releases: ClassVar[frozenset[str]] = NOISED
    reads_part: ClassVar[str] = "codes"

    taxonomy: str
    digits: Annotated[int, Meta(ge=3, le=3)]
    pairs_with: Annotated[tuple[str, ...], Meta(max_length=MOST_TARGETS)]
    most_codes: Many
    most_pairs: Many

    @property
    def fixed(self) -> Mapping[str, Any]:
        return {
            "taxonomy": self.taxonomy,
            "digits": self.digits,
            "pairs_with": list(self.pairs_with),
            "most_codes": self.most_codes,
            "most_pairs": self.most_pairs,
        }

    def check(self, release: Release) -> None:
        if self.taxonomy not in ("icd9", "icd10"):
            raise MessageError("codes are counted in icd9 or icd10")
        known = self._classification
        if len(set(self.pairs_with)) != len(self.pairs_with) or any(c not in known for c in self.pairs_with):
            raise MessageError("pairs_with names codes of the classification, each once")

    @property
    def _classification(self) -> Taxonomy:
        return _open(self.taxonomy, self.digits)

    @property
    def shape(self) -> tuple[int, ...]:
        return (1 + len(self._classification.codes) * (1 + len(self.pairs_with)),)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity.of_counts(1 + self.most_codes + (self.most_pairs if self.pairs_with else 0))

    def estimate(self, patients: int, columns: int) -> Workload:
        pairs = self.most_codes * max(len(self.pairs_with), 1)
        return Workload(
            OF_ALL_CODES + CALL + OF_AN_EVENT * EVENTS_EACH * patients,
            PAIR_BYTES * (EVENTS_EACH + min(pairs, EVENTS_EACH)) * patients + (1 << 22),
        )

    def compute(self, cohort: Cohort) -> NDArray[np.integer]:
        taxonomy, held = self._classification, find_codes(cohort)
        codes = read_codes(taxonomy, held)
        targets = np.array([taxonomy.number_of[code] for code in self.pairs_with], dtype=np.int64)
        return _count_codes(held, codes, len(taxonomy.codes), targets, self.most_codes, self.most_pairs)


def _count_codes(
    held: Sequences,
    codes: NDArray[np.int32],
    size: int,
    targets: NDArray[np.int64],
    most_codes: int,
    most_pairs: int,
) -> NDArray[np.int64]:
    """Patients; patients with each code; for each target, patients who have each other code with it.

    Of each patient the codes recorded last count, so many at most, and pairs of these, so many at most.
    """
    readable = np.flatnonzero(codes != UNREADABLE)
    owners, numbers = held.owners[readable], codes[readable].astype(np.int64)
    # The last event of each code of each patient: of equal keys np.unique keeps the first, so backwards.
    _, lasts = np.unique((owners * size + numbers)[::-1], return_index=True)
    lasts = len(owners) - 1 - lasts
    lasts = lasts[np.lexsort((-lasts, owners[lasts]))]  # each patient's codes, the latest first
    lasts = lasts[_rank(owners[lasts]) < most_codes]
    owner, code = owners[lasts], numbers[lasts]
    singles = np.bincount(code, minlength=size)
    hits = [np.flatnonzero(code == target) for target in targets]
    place = np.repeat(np.arange(len(targets)), [len(one) for one in hits])
    having = np.concatenate([owner[one] for one in hits]) if hits else np.zeros(0, dtype=np.int64)
    firsts, ends = np.searchsorted(owner, having), np.searchsorted(owner, having, side="right")
    lengths = ends - firsts
    rows = (
        np.repeat(firsts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) if len(having) else firsts
    )
    others = np.arange(lengths.sum()) + rows
    cells, who = np.repeat(place, lengths) * size + code[others], owner[others]
    different = code[others] != np.repeat(targets[place], lengths)
    cells, who = cells[different], who[different]
    order = np.lexsort((cells, who))
    cells = cells[order][_rank(who[order]) < most_pairs]
    pairs = np.bincount(cells, minlength=size * len(targets))
    return np.concatenate([[len(held)], singles, pairs]).astype(np.int64)


def _rank(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each row among those of its owner, who stand together."""
    begins = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]])) if len(owners) else owners
    lengths = np.diff(begins, append=len(owners))
    return np.arange(len(owners)) - np.repeat(begins, lengths)


class _CountsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all hospitals together answered."""

    counts: list[int]
    sites: int


def _read_pairs(value: Any) -> list[str]:
    return sorted(names(value))


@documented
@dataclass(eq=False, repr=False)
class CodeCounts(Proposal[_CountsBody]):
    """`CodeCounts(epsilon="1.5", pairs_with=["303"]).fit(house)`: noisy counts of codes and pairs of codes."""

    method: ClassVar[str] = "code-counts"
    called: ClassVar[str] = "a count of codes"
    description: ClassVar[str] = "how many patients have each code, and pairs of codes, with noise"
    releases: ClassVar[tuple[str, ...]] = ("noised",)
    reads_columns: ClassVar[bool] = False
    pure_releases: ClassVar[tuple[str, ...]] = ("noised",)
    answers_at_random: ClassVar[bool] = True

    epsilon: Epsilon
    pairs_with: Annotated[
        Sequence[str],
        Parameter("a list of codes", _read_pairs, "codes that all others are counted together with"),
    ] = ()
    most_codes: Annotated[
        int, whole_number(1, MOST_OF_ONE, "how many different codes of a patient count, the latest")
    ] = 10
    most_pairs: Annotated[int, whole_number(1, MOST_OF_ONE, "how many pairs of a patient count")] = 10
    taxonomy: Annotated[
        str, Parameter('"icd9" or "icd10"', choice("icd9", "icd10"), "the classification of the codes")
    ] = "icd9"
    digits: Digits = 3
    query: QueryText = ""

    @property
    def release(self) -> str:  # type: ignore[override]
        return "noised"

    def check(self) -> None:
        if self.digits != 3:
            raise StudyError("codes are counted at three digits")
        if len(self.pairs_with) > MOST_TARGETS:
            raise StudyError(f"pairs are counted with at most {MOST_TARGETS} codes")
        classification = _open(self.taxonomy, self.digits)
        if unknown := [code for code in self.pairs_with if code not in classification]:
            raise StudyError(
                f"{unknown[0]!r} is not a code of {classification!r}, which pairs_with names in full"
            )

    @property
    def question(self) -> AskCodeCounts:
        return AskCodeCounts(
            query=self.query,
            target="",
            taxonomy=self.taxonomy,
            digits=self.digits,
            pairs_with=tuple(self.pairs_with),
            most_codes=self.most_codes,
            most_pairs=self.most_pairs,
            noise=Laplace(str(self.epsilon)),
        )

    @property
    def pure_price(self) -> Fraction:
        return Fraction(self.epsilon)

    def plan(self) -> Plan:
        note = "how many patients have each code, and pairs of codes, with noise that the hospital adds"
        return Plan("rho", (PlannedQuestion(AskCodeCounts.kind, rho_from_pure(self.pure_price), note),))

    @property
    def subject(self) -> str:
        return f"pairs with {len(self.pairs_with)} codes" if self.pairs_with else "codes"

    def converse(self, partners: Partners) -> Conversation[Learned[_CountsBody]]:
        counts = yield self.question
        return Learned(_CountsBody(counts.tolist(), partners.hospitals), {})

    def _summary(self) -> str:
        return f"{self.population:.0f} patients"

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of each count: every hospital adds its own."""
        return math.sqrt(float(self.question.variance) * self.body.sites)

    @cached_property
    def _tables(self) -> tuple[Taxonomy, float, NDArray[np.float64], NDArray[np.float64]]:
        classification = _open(self.taxonomy, self.digits)
        counts = np.array(self.body.counts, dtype=np.float64)
        size = len(classification.codes)
        return classification, float(counts[0]), counts[1 : 1 + size], counts[1 + size :].reshape(-1, size)

    @property
    def population(self) -> float:
        """How many patients there are, with noise."""
        return self._tables[1]

    def prevalence(self, code: str) -> CodeEstimate:
        """The share of patients who have a code; the interval includes noise and chance."""
        classification, population, singles, _ = self._tables
        name = classification.normalise(code)
        return self._share(name, singles[classification.number_of[name]], population)

    def together(self, one: str, other: str) -> CodeEstimate:
        """The share of patients who have both; one of them must be among `pairs_with`."""
        classification, population, _, pairs = self._tables
        names = [classification.normalise(code) for code in (one, other)]
        if names[0] not in self.pairs_with:
            names.reverse()
        if names[0] not in self.pairs_with:
            raise StudyError(
                f"pairs were counted with {', '.join(self.pairs_with) or 'no code'}; name one of them"
            )
        count = pairs[list(self.pairs_with).index(names[0]), classification.number_of[names[1]]]
        return self._share(", ".join(names), count, population)

    def _share(self, name: str, count: float, population: float) -> CodeEstimate:
        people = max(population, 1.0)
        share = float(count) / people
        chance = max(min(share, 1.0) * (1 - min(share, 1.0)), 0.0) * people
        error = math.sqrt(self.deviation**2 + chance) / people
        classification = self._tables[0]
        title = classification.describe(name) if name in classification else "both"
        return CodeEstimate.measure(name, title, share, error)

    def find_revealing(self, sensitive: Sequence[str], most: float) -> tuple[str, ...]:
        """The codes of which the noisy counts say that they give a sensitive one away: more than this share of those
        who have the code have the sensitive one, and the pair is well above its noise."""
        classification, _, singles, pairs = self._tables
        found: set[int] = set()
        # Of Laplace noise of scale s one number is above s ln(1/2p) with probability p.
        enough = self.deviation / math.sqrt(2) * math.log(max(pairs.size, 1) / (2 * CHANCE))
        for target, row in zip(self.pairs_with, pairs, strict=True):
            if target in sensitive:
                tells = (row > enough) & (row > most * np.maximum(singles, 1.0))
                found.update(np.flatnonzero(tells).tolist())
        return tuple(sorted({classification.codes[code] for code in found} - set(sensitive)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was released: it is public from now on, and needs no care. All of it is written, or nothing."""
        document = {"format": FORMAT, "parameters": self.get_params(), **msgspec.to_builtins(self.body)}
        part = Path(path).with_name(f".part-{Path(path).name}")
        try:
            part.write_text(json.dumps(document) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise RecordsError(
                f"{path}: cannot be written ({error.strerror}); what was there before is as it was, and the same "
                "counts can be saved again, free"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CodeCounts:
        """What `save` wrote; RecordsError where it is none."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise ValueError
            counts = cls(**document["parameters"])
            counts._body = _CountsBody([int(one) for one in document["counts"]], int(document["sites"]))
            if len(counts._body.counts) != counts.question.numbers:
                raise ValueError
        except OSError as error:
            raise RecordsError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, StudyError):
            raise RecordsError(f"{path}: these are no counts of codes that a hospital released") from None
        return counts


def _open(taxonomy: str, digits: int) -> Taxonomy:
    found = Taxonomy.named(taxonomy, digits, "kept", "refuse")
    if found is None:
        raise MessageError("codes are counted in icd9 or icd10")
    return found
