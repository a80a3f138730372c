"""What sharing protects and what it loses, measured: attacks, losses, frequencies, curves.

The attacks and the losses compare what was recorded with another draw of the same patients, which goes nowhere: of
the file itself nobody can tell which of the codes of one moment is which. The attacks see these in the order in which
they were recorded, so they know more than whoever gets the file. A report is the hospital's own. It tells more than
the shared codes do, and no budget covers handing it on with individual codes; its few numbers are averages of many
patients.

docs/methods.md, section 7.12.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from concilium.codes.agreed_sharing import NOT_FOR_CARE
from concilium.codes.attack import Precision, SharedView, find_largest, guess_events, judge_guesses
from concilium.codes.block_response import BlockResponse
from concilium.codes.frequencies import Frequencies, estimate_frequencies
from concilium.codes.loss import InformationLoss, expect_loss, measure_divergence, measure_loss
from concilium.codes.sequence_attack import find_transitions, guess_histories
from concilium.codes.sharing import CodeSharing, Histories, read_histories
from concilium.privacy.mechanisms import Number
from concilium.records.sequences import Sequences

EPSILONS: tuple[str, ...] = ("0.1", "0.5", "1", "2", "2.5", "3", "4", "5")
OURS, NEVER, SAME = "blocks", "blocks, hidden never shown", "umaxrr, same codes"
PLAIN, BLOT = "umaxrr", "suppression"


@dataclass(frozen=True)
class Measurement:
    """One draw: what it loses, how far it moves the frequencies, and how precise the attacks on it are."""

    loss: InformationLoss
    divergence: float
    precisions: tuple[Precision, ...]
    history_precisions: tuple[Precision, ...] | None

    @property
    def largest(self) -> float | None:
        """MAP of the attack on single events; None: no sensitive code was guessed often enough to tell."""
        return find_largest(list(self.precisions))

    @property
    def largest_by_history(self) -> float | None:
        """MAP of the attack on whole histories."""
        return None if self.history_precisions is None else find_largest(list(self.history_precisions))


@dataclass(frozen=True)
class CurvePoint:
    """One mechanism at one epsilon: codes protected, block size, the loss that Eq. 5 expects, a measurement."""

    series: str
    epsilon: Fraction
    protected: int
    block_size: int
    expected_loss: float
    measured: Measurement


@dataclass(frozen=True, eq=False)
class SharingReport:
    """All that a steward needs to decide; `str` says it in sentences."""

    sharing: CodeSharing
    patients: int
    events: int
    cut: int
    hidden: tuple[str, ...]
    company: tuple[str, ...]
    kept_clear: float
    expected_loss: float
    measured: Measurement
    frequencies: Frequencies
    curves: tuple[CurvePoint, ...]

    @property
    def confounded(self) -> tuple[tuple[str, ...], ...]:
        """The groups of codes whose frequencies nobody can tell apart."""
        codes = self.sharing.taxonomy.codes
        return tuple(tuple(codes[code] for code in group) for group, _ in self.frequencies.confounded)

    def __str__(self) -> str:
        sharing, loss = self.sharing, self.measured.loss
        if sharing.mechanism == "suppression":
            cost = "no differential privacy"
        else:
            price = float(sharing.price)
            cost = f"epsilon = {float(sharing.epsilon):g} for each event, {price:g} for each patient"
        said = [
            f"{self.patients:,} patients, {self.events:,} events of {sharing.taxonomy!r}"
            + (
                f"; {self.cut:,} earlier events left out (the latest {sharing.max_events} count)"
                if self.cut
                else ""
            ),
            f"protected: {len(sharing.protected_)} codes: {len(sharing.sensitive)} sensitive, {len(self.hidden)} for "
            f"what they say about those, {len(self.company)} as company in blocks of {sharing.blocking_.size}",
            cost,
            f"a code in the clear stays with probability {self.kept_clear:.3f}; {loss.changed:.1%} of the events are "
            f"shared as another code, {loss.false_sensitive:.1%} as a sensitive code that was not there",
            f"information lost, 0 to 1: {loss.sensitive:.3f} on sensitive codes (expected over them "
            f"{self.expected_loss:.3f}), {loss.sensitive_patients:.3f} for patients who have one, "
            f"{loss.everything:.3f} over all; divergence {self.measured.divergence:.3f}",
            f"precision of the attack, at most: {_say(self.measured.largest)} on single events, "
            f"{_say(self.measured.largest_by_history)} on whole histories",
            f"frequencies: {len(self.frequencies.codes)} codes can be estimated; "
            + (
                "confounded: " + "; ".join(", ".join(group) for group in self.confounded)
                if self.confounded
                else "none are confounded"
            ),
            NOT_FOR_CARE,
        ]
        return "\n".join(said)


class SharingTest:
    """Shares the same patients again and again, and measures each draw."""

    def __init__(self, sharing: CodeSharing, sequences: Histories) -> None:
        self.sharing = sharing
        self.sequences = sharing.take_latest(read_histories(sequences))
        self._before = sharing.number(self.sequences).astype(np.intp)
        taxonomy = sharing.taxonomy
        # All that can go in or come out, so that every draw finds its distances.
        outputs = sharing.mechanism_.hidden_outputs
        known = np.unique(
            np.concatenate([sharing.states, self._before, outputs[outputs < len(taxonomy.codes)]])
        )
        self._rows = np.full(len(taxonomy.codes) + 1, -1, dtype=np.intp)
        self._rows[known] = np.arange(len(known))
        self._rows[-1] = len(known)  # the blot is beyond all codes
        self._distances = taxonomy.distances([taxonomy.codes[code] for code in known])
        self._sensitive = np.isin(known, sharing.sensitive_numbers)
        self._states = np.full(len(taxonomy.codes) + 1, -1, dtype=np.intp)
        self._states[sharing.states] = np.arange(len(sharing.states))

    def measure(self, sharing: CodeSharing | None = None, histories: bool = False) -> Measurement:
        """Share once, by this sharing or another of the same auxiliary patients; attack, and compare."""
        sharing = sharing or self.sharing
        offsets = self.sequences.offsets
        after = sharing.mechanism_.randomize(self._before.astype(np.int32)).astype(np.intp)
        size = len(self._distances)
        loss = measure_loss(
            self._distances, self._sensitive, offsets, self._rows[self._before], self._rows[after]
        )
        counts = [np.bincount(self._rows[codes], minlength=size + 1) for codes in (self._before, after)]
        mechanism = sharing.mechanism_
        places = np.full(len(self._rows), -1, dtype=np.intp)
        places[mechanism.hidden_outputs] = np.arange(len(mechanism.hidden_outputs))
        hidden = places[after]
        view = SharedView(offsets, hidden, np.where(hidden >= 0, -1, self._states[after]))
        channel = mechanism.find_hidden(sharing.states)
        truth, targets = self._states[self._before], self._states[sharing.sensitive_numbers]
        guesses = guess_events(sharing.graph, channel, view)
        precisions = judge_guesses(guesses, truth, hidden >= 0, targets)
        by_history = None
        if histories:
            transitions = find_transitions(sharing.transitions, sharing.graph)
            guesses = guess_histories(sharing.graph, transitions, channel, view)
            by_history = tuple(judge_guesses(guesses, truth, hidden >= 0, targets))
        return Measurement(loss, measure_divergence(counts[0], counts[1]), tuple(precisions), by_history)


def report_sharing(
    sharing: CodeSharing,
    sequences: Histories,
    epsilons: Iterable[Number] = EPSILONS,
    shared: Sequences | None = None,
) -> SharingReport:
    """Measure a sharing on a draw of these patients, with frequencies of what was `shared`, and curves over epsilon."""
    histories = read_histories(sequences)
    test = SharingTest(sharing, histories)
    if shared is None:
        shared = sharing.share(histories)
    drawn = sharing.number(shared)
    codes = sharing.taxonomy.codes
    mechanism = sharing.mechanism_
    kept = float(1 - mechanism.replaced) if isinstance(mechanism, BlockResponse) else 1.0
    return SharingReport(
        sharing,
        len(test.sequences),
        len(test.sequences.codes),
        len(histories.codes) - len(test.sequences.codes),
        tuple(codes[code] for code in sharing.states[sharing.extension_.added]),
        tuple(codes[code] for code in sharing.states[sharing.blocking_.added]),
        kept,
        find_expected_loss(sharing),
        test.measure(histories=True),
        estimate_frequencies(mechanism, drawn.astype(np.intp)),
        tuple(draw_points(sharing, test, epsilons)),
    )


def draw_points(sharing: CodeSharing, test: SharingTest, epsilons: Iterable[Number]) -> list[CurvePoint]:
    """Blocks beside UMAXRR and suppression: on sensitive codes alone, as in the source, and UMAXRR on the same."""
    bare = {"gamma": None, "gamma_max": None}
    points = []
    for epsilon in epsilons:
        for series, changes in (
            (OURS, {"mechanism": "blocks", "show_hidden": True}),
            (NEVER, {"mechanism": "blocks", "show_hidden": False}),
            (SAME, {"mechanism": "umaxrr", "show_hidden": True}),
            (PLAIN, {"mechanism": "umaxrr", **bare}),
            (BLOT, {"mechanism": "suppression", **bare}),
        ):
            other = sharing.refit(epsilon=epsilon, **changes)
            points.append(measure_point(series, other, test))
    return points


def measure_point(
    series: str, sharing: CodeSharing, test: SharingTest, histories: bool = False
) -> CurvePoint:
    """One draw of one sharing."""
    return CurvePoint(
        series,
        sharing.epsilon,
        len(sharing.protected_),
        sharing.blocking_.size,
        find_expected_loss(sharing),
        test.measure(sharing, histories),
    )


def find_expected_loss(sharing: CodeSharing, everything: bool = False) -> float:
    """Eq. 5, as mean over the sensitive codes, or over everything protected: exact, without a draw."""
    if sharing.mechanism == "suppression":
        return 1.0
    codes, mechanism = sharing.taxonomy.codes, sharing.mechanism_
    inputs = np.flatnonzero(mechanism.places >= 0) if everything else sharing.sensitive_numbers
    outputs = mechanism.hidden_outputs
    distances = sharing.taxonomy.distances([codes[code] for code in (*inputs, *outputs)])
    return float(expect_loss(distances[: len(inputs), len(inputs) :], mechanism.find_hidden(inputs)).mean())


def _say(precision: float | None) -> str:
    return "no code guessed 30 times" if precision is None else f"{precision:.2f}"
