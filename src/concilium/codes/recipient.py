"""What whoever gets shared codes can do with them: `SharedCodes.read("shared.csv")`.

Entries are randomised one by one, by probabilities that come with the file (shared.json). Reading entries as they stand
is wrong: most may be false. Here every estimate is corrected by the channel, and its interval includes what the draw
adds. The idea is one: for a set C of codes find a weight w(y) for every output with E[w(Y) | x] = 1 where x is not in
C, and 0 where it is. Entries are drawn independently, so the product of a patient's weights has the expectation 1 if
the patient has no code of C, and 0 otherwise. Prevalence, co-occurrence and odds ratios are means of such products.

Guarantee: none is needed. All of this is computed from what was released, and costs nothing.
Assumption: patients are a sample of those the interval is about; of longer histories the latest max_events count.
Not identified: codes that share their block have the same probabilities. They are named (`confounded`), and only what
they have in common can be estimated. `features` is a guess by Bayes' rule, which for such codes rests on equal shares.

docs/methods.md, section 7.14.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.codes.block_response import BlockResponse
from concilium.codes.code_design import CodeDesign, open_design
from concilium.codes.frequencies import Frequencies, estimate_frequencies
from concilium.codes.shared_codes import number_codes, number_moments
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import ConciliumError, RecordsError, StudyError
from concilium.models.intervals import WITHIN_95
from concilium.records.sequence_reading import FORMS
from concilium.records.sequences import Sequences

UNSOLVED = 1e-6
MOST_WIDE = 0.5
"""An interval that covers more than this part of all possible values says too little to report the estimate."""
MOST_SPANNED = 100.0
"""The same of an odds ratio: the upper end of its interval over the lower one."""
TOO_NOISY = "too noisy to tell"
HELP = "a larger epsilon, more patients or noisy counts (concilium share --counts) would help"
WITHIN = 30.0


@dataclass(frozen=True)
class _EntryEffect:
    """How far one entry moves an estimate, at most; `rises`: never down."""

    size: float
    rises: bool

    def __mul__(self, other: _EntryEffect) -> _EntryEffect:
        return _EntryEffect(self.size * other.size, self.rises and other.rises)

    def __truediv__(self, patients: int) -> _EntryEffect:
        return _EntryEffect(self.size / max(patients, 1), self.rises)


@dataclass(frozen=True)
class CodeEstimate:
    """An estimate with its 95 % interval. Neither is clipped, so that estimates of several hospitals can be averaged.

    `too_noisy`: the interval is wider than half of all values that are possible. Do not report the value then.
    """

    code: str
    title: str
    value: float
    low: float
    high: float
    group: str = ""
    too_noisy: bool = False

    @classmethod
    def measure(
        cls,
        code: str,
        title: str,
        value: float,
        error: float,
        *,
        most: float = 1.0,
        step: _EntryEffect | None = None,
        group: str = "",
    ) -> CodeEstimate:
        """The estimate with this standard error, of something between 0 and `most`.

        `step` makes it a score interval (as Wilson's): the error is itself estimated, and is too small where few
        entries, or none, were seen.
        """
        size, rises = (0.0, False) if step is None else (step.size, step.rises)
        middle = value + rises * size * WITHIN_95**2 / 2
        half = WITHIN_95 * math.hypot(error, size * WITHIN_95 / 2)
        return cls(code, title, value, middle - half, middle + half, group, not 2 * half <= MOST_WIDE * most)

    def __str__(self) -> str:
        where = f", {self.group}" if self.group else ""
        interval = f"{self.low:.4g} to {self.high:.4g}"
        said = f"{TOO_NOISY} ({interval}); {HELP}" if self.too_noisy else f"{self.value:.4g} ({interval})"
        return f"{self.code} ({self.title}{where}): {said}"


@dataclass(frozen=True)
class Together:
    """Two codes among patients: the share who have both, and the odds ratio.

    `odds_ratio` is None where noise is too large to tell: an estimate of one of the four cells is not above 0, or the
    interval spans more than a factor of 100.
    """

    both: CodeEstimate
    odds_ratio: CodeEstimate | None
    cells: tuple[float, float, float, float]

    def __str__(self) -> str:
        ratio = self.odds_ratio
        said = f"{TOO_NOISY}; {HELP}"
        if ratio is not None:
            said = f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"
        return f"patients who have both: {self.both}\nodds ratio: {said}"


@dataclass(frozen=True, eq=False)
class Stays:
    """The moments of all histories, each taken as a stay: whose it is, on which day, and whether the next one begins
    within so many days (False for the last, of which nobody knows)."""

    patient: NDArray[np.int64]
    day: NDArray[np.float64]
    readmitted: NDArray[np.bool_]

    @classmethod
    def find(cls, sequences: Sequences, within: float = WITHIN) -> Stays:
        firsts = np.unique(number_moments(sequences), return_index=True)[1]
        owners, days = sequences.owners[firsts], sequences.times[firsts]
        soon = np.zeros(len(firsts), dtype=bool)
        soon[:-1] = (owners[1:] == owners[:-1]) & (np.diff(days) <= within)
        return cls(owners, days, soon)


class SharedCodes:
    """`SharedCodes.read("shared.csv")`: randomised histories, and estimates that know how they were randomised."""

    def __init__(self, sequences: Sequences, design: CodeDesign) -> None:
        self.sequences = sequences
        self.design = design
        self.taxonomy: Taxonomy
        self.taxonomy, self._channel = open_design(design)
        self._codes = number_codes(self.taxonomy, sequences).astype(np.intp)
        self._weights: dict[tuple[int, ...], NDArray[np.float64] | None] = {}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SharedCodes:
        """The copy, with its probabilities from the .json beside it; RecordsError where they do not belong together."""
        file = Path(path)
        ending = next((one for one in FORMS if file.name.lower().endswith(one)), None)
        if ending is None:
            raise RecordsError(f"{file}: shared codes are in a file whose name ends in {', '.join(FORMS)}")
        drawn = _read_draw(file.with_name(f"{file.name[: -len(ending)]}.json"))
        try:
            content = file.read_bytes()
        except OSError as error:
            raise RecordsError(f"{file}: cannot be read ({error.strerror})") from None
        if hashlib.sha256(content).hexdigest() != drawn["file"]["sha256"]:
            raise RecordsError(
                f"{file}: it is not the file that was shared, or was edited since: ask the hospital for it again"
            )
        design = msgspec.convert(drawn["design"], CodeDesign)
        return cls(Sequences.read(file, patient="patient", time="time", code="code"), design)

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        return (
            f"SharedCodes({len(self)} patients, {len(self._codes)} entries, "
            f"epsilon={self.design.epsilon} of each, {len(self.confounded)} confounded groups)"
        )

    @cached_property
    def _frequencies(self) -> Frequencies:
        return estimate_frequencies(self._channel, self._codes)

    @cached_property
    def confounded(self) -> tuple[tuple[str, ...], ...]:
        """The groups of codes that nobody can tell apart."""
        return tuple(
            tuple(self.taxonomy.codes[code] for code in group)
            for group, _ in self._frequencies.confounded
            if len(group) > 1
        )

    def frequencies(self) -> list[CodeEstimate]:
        """How many entries each code had before it was randomised, most frequent first; of confounded codes the sum,
        where that is identified, under all their names."""
        found, most = self._frequencies, float(len(self._codes))
        listed = [
            self._estimate(
                (int(code),), float(count), float(error), most=most, step=self._find_overwritten(code)
            )
            for code, count, error in zip(found.codes, found.counts, found.errors, strict=True)
        ]
        listed += [
            self._estimate(group, *total, most=most) for group, total in found.confounded if total is not None
        ]
        return sorted(listed, key=lambda one: -one.value)

    def prevalence(
        self, codes: Iterable[str] | str, by: Sequence[Any] | Mapping[Any, Any] | None = None
    ) -> list[CodeEstimate]:
        """The share of patients who have any of these codes: of all or, `by` a label of each patient, of each group.

        `by` has a label for each patient in their order, or by their numbers.
        """
        chosen = self._choose(codes)
        scores = 1 - self._find_absence(chosen)
        if by is None:
            return [self._average(chosen, scores, self._find_step(chosen))]
        labels = self._label_patients(by)
        return [
            self._average(chosen, scores[labels == group], self._find_step(chosen), str(group))
            for group in sorted(set(labels.tolist()))
        ]

    def together(self, one: str, other: str) -> Together:
        """How many patients have both codes, and the odds ratio of the one given the other."""
        first, second = self._choose(one), self._choose(other)
        if set(first) & set(second):
            raise StudyError(f"{one!r} and {other!r} are the same code here; name two")
        without, lacking = self._find_absence(first), self._find_absence(second)
        neither = self._find_absence(tuple(sorted({*first, *second})))
        cells = np.column_stack(
            [1 - without - lacking + neither, lacking - neither, without - neither, neither]
        )
        means = cells.mean(axis=0)
        step = self._find_step(first) * self._find_step(second)
        both = self._average((*first, *second), cells[:, 0], step)
        odds = None
        if len(cells) > 1 and (means > 0).all():
            slope = np.array([1, -1, -1, 1]) / means
            spread = math.sqrt(float(slope @ np.cov(cells.T) @ slope) / len(cells))
            log = float(np.log(means) @ [1, -1, -1, 1])
            if 2 * WITHIN_95 * spread <= math.log(MOST_SPANNED):
                low, middle, high = (math.exp(log + WITHIN_95 * step * spread) for step in (-1, 0, 1))
                odds = CodeEstimate(both.code, both.title, middle, low, high)
        return Together(both, odds, (float(means[0]), float(means[1]), float(means[2]), float(means[3])))

    def stays(self, within: float = WITHIN) -> Stays:
        """The moments of all histories as stays, and whether the next begins within so many days: times are not
        randomised."""
        return Stays.find(self.sequences, within)

    def features(self, codes: Iterable[str], *, of: str = "patient") -> NDArray[np.float64]:
        """What to train a model on: for each patient, or `of="stay"`, the probability that each of these codes was
        recorded, given all entries and how often each code is recorded (regression calibration).

        A model that learns from entries as they stand learns the noise. These probabilities shrink false entries to
        what they are worth, so that coefficients are about recorded codes.
        """
        if of not in ("patient", "stay"):
            raise StudyError(f"features are of each patient or of each stay; got {of!r}")
        owners = self.sequences.owners if of == "patient" else number_moments(self.sequences) - 1
        count = len(self) if of == "patient" else int(owners[-1]) + 1 if len(owners) else 0
        chosen = [self._choose(code) for code in codes]
        table = np.column_stack([self._posteriors[:, list(group)].sum(axis=1) for group in chosen])
        absent = np.zeros((count, len(chosen)))
        np.add.at(absent, owners, np.log1p(-np.clip(table[self._codes], 0.0, 1 - 1e-12)))
        return -np.expm1(absent)

    @cached_property
    def _posteriors(self) -> NDArray[np.float64]:
        """P(recorded | output) in a row for each output: an unprotected code was recorded."""
        channel = self._channel
        size = channel.size
        prior = np.zeros(size)
        found = self._frequencies
        clear = channel.places[found.codes] < 0
        prior[found.codes[clear]] = np.maximum(found.counts[clear], 0.0)
        for code, count in found.likely.items():
            prior[code] = count
        known = np.flatnonzero(prior > 0)
        posterior = np.eye(size)
        joint = (channel.find_hidden(known) * prior[known, None]).T
        posterior[channel.hidden_outputs] = 0.0
        rows = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)
        posterior[np.ix_(channel.hidden_outputs, known)] = rows
        return posterior

    def _choose(self, codes: Iterable[str] | str) -> tuple[int, ...]:
        """The numbers of codes, or of all under a heading."""
        texts = [codes] if isinstance(codes, str) else list(codes)
        named = {code for text in texts for code in self.taxonomy.under(text)}
        if not named:
            raise StudyError("name at least one code")
        return tuple(sorted(self.taxonomy.number_of[code] for code in named))

    def _find_absence(self, chosen: tuple[int, ...]) -> NDArray[np.float64]:
        """For each patient a number whose expectation is 1 where none of these codes was recorded, and 0 otherwise."""
        if chosen not in self._weights:
            self._weights[chosen] = _find_weights(self._channel, np.array(chosen, dtype=np.intp))
        weights = self._weights[chosen]
        if weights is None:
            names = {self.taxonomy.codes[code] for code in chosen}
            mixed = set(next((group for group in self.confounded if names & set(group)), ())) - names
            if not mixed:
                raise StudyError(
                    f"{', '.join(sorted(names))}: {TOO_NOISY} from other protected codes at epsilon = "
                    f"{self.design.epsilon} of each entry; a larger epsilon would help"
                )
            raise StudyError(
                f"{', '.join(sorted(names))} cannot be told apart from {', '.join(sorted(mixed))}: "
                "ask about all of them together (confounded lists such groups)"
            )
        each = weights[self._codes]
        scores = np.ones(len(self))
        np.multiply.at(scores, self.sequences.owners, each)
        return scores

    def _find_step(self, chosen: tuple[int, ...]) -> _EntryEffect:
        """How far one entry moves the sum of scores, once `_find_absence` has found the weights."""
        weights = self._weights[chosen]
        assert weights is not None
        gains = 1 - weights
        return _EntryEffect(float(np.abs(gains).max()), bool(gains.min() > -UNSOLVED))

    def _find_overwritten(self, code: int) -> _EntryEffect | None:
        """How many entries of an unprotected code were overwritten for each that is seen."""
        if self._channel.places[code] >= 0:
            return None
        replaced = self._channel.replaced
        return _EntryEffect(float(replaced / (1 - replaced)), True)

    def _average(
        self, chosen: tuple[int, ...], scores: NDArray[np.float64], step: _EntryEffect, group: str = ""
    ) -> CodeEstimate:
        mean = float(scores.mean()) if len(scores) else math.nan
        error = float(scores.std(ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else math.nan
        return self._estimate(chosen, mean, error, step=step / len(scores), group=group)

    def _estimate(self, chosen: Sequence[int], value: float, error: float, **how: Any) -> CodeEstimate:
        names = [self.taxonomy.codes[code] for code in chosen]
        title = self.taxonomy.describe(names[0]) if len(names) == 1 else f"{len(names)} codes together"
        return CodeEstimate.measure(", ".join(names), title, value, error, **how)

    def _label_patients(self, by: Sequence[Any] | Mapping[Any, Any]) -> NDArray[Any]:
        if isinstance(by, Mapping):
            texts = {str(key): value for key, value in by.items()}
            by = [texts.get(str(one), "unknown") for one in self.sequences.ids]
        if len(by) != len(self):
            raise StudyError(f"there are {len(self)} patients and {len(by)} labels; give one for each")
        return np.array([str(one) for one in by], dtype=object)


def _find_weights(channel: BlockResponse, chosen: NDArray[np.intp]) -> NDArray[np.float64] | None:
    """For every output the weight w with E[w(Y) | x] = 0 where x is among the chosen codes and 1 otherwise; None where
    the channel does not tell them from others."""
    protected = np.flatnonzero(channel.places >= 0)
    wanted = ~np.isin(protected, chosen)
    matrix = channel.find_hidden(protected)
    solved: NDArray[np.floating[Any]] = np.ones(matrix.shape[1])
    if not wanted.all():
        solved = np.linalg.lstsq(matrix, wanted.astype(np.float64), rcond=1e-10)[0]
    replaced, kept = float(channel.replaced), float(1 - channel.replaced)
    if not kept or np.abs(matrix @ solved - wanted).max(initial=0.0) > UNSOLVED:
        return None
    weights = np.full(channel.size, 1 + replaced * (1 - solved.mean()) / kept)
    weights[chosen] = -replaced * solved.mean() / kept
    weights[channel.protected] = solved
    return weights


def digest_design(design: Mapping[str, Any]) -> str:
    """SHA-256 of a design as it is written: tells a file that was edited by mistake, not one that was forged."""
    return hashlib.sha256(json.dumps(design, sort_keys=True).encode()).hexdigest()


def _read_draw(path: Path) -> dict[str, Any]:
    """How a copy was drawn, from the file beside it."""
    try:
        drawn: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        open_design(msgspec.convert(drawn["design"], CodeDesign))
        if digest_design(drawn["design"]) != drawn["file"]["design"] or not drawn["file"]["sha256"]:
            raise ValueError
    except OSError as error:
        raise RecordsError(
            f"{path}: cannot be read ({error.strerror}); it comes with the copy, and nobody can analyse that without it"
        ) from None
    except (ValueError, KeyError, TypeError, msgspec.ValidationError, ConciliumError):
        raise RecordsError(
            f"{path}: it does not say how codes were drawn, or was edited since: ask the hospital for it again"
        ) from None
    return drawn
