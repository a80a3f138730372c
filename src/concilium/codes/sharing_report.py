"""What sharing protects and what it loses, measured: attacks, losses, frequencies, curves.

The attacks and the losses compare what was recorded with another draw of the same patients, which goes nowhere: of
the file itself nobody can tell which of the codes of one moment is which. The attacks see these in the order in which
they were recorded, so they know more than whoever gets the file. A report is the hospital's own. It tells more than
the shared codes do, and no budget covers handing it on with individual codes; its few numbers are averages of many
patients.

docs/methods.md, section 7.12.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from concilium.codes import attack
from concilium.codes.agreed_sharing import NOT_FOR_CARE
from concilium.codes.attack import Knowledge
from concilium.codes.block_response import BlockResponse
from concilium.codes.frequencies import (
    Frequencies,
    InformationLoss,
    estimate_frequencies,
    expect_loss,
    measure_divergence,
    measure_loss,
)
from concilium.codes.sharing import CodeSharing, Histories, read_histories
from concilium.models.pictures import COLOURS, RULE, SOFT, draw, draw_frame
from concilium.privacy.mechanisms import Number
from concilium.records.sequences import Sequences

EPSILONS: tuple[str, ...] = ("0.1", "0.5", "1", "2", "2.5", "3", "4", "5")
OURS, NEVER, SAME = "blocks", "blocks, hidden never shown", "umaxrr, same codes"
PLAIN, BLOT = "umaxrr", "suppression"
TOO_FEW = "too few to tell"


@dataclass(frozen=True)
class _PatientAttack:
    """Who has it: any sensitive code, and the one code that is told best; and what the number of entries gives away."""

    any_code: attack.Finding
    by_code: tuple[attack.Finding, ...]
    by_length: attack.Finding

    @property
    def worst(self) -> tuple[int, attack.Finding] | None:
        """The place and figures of the code that is told best; None where each has too few patients to tell."""
        known = [(number, one) for number, one in enumerate(self.by_code) if one.auc is not None]
        return max(known, key=lambda pair: pair[1].auc or 0.0, default=None)


@dataclass(frozen=True)
class _Measurement:
    """One draw: what it loses, how far it moves the frequencies, and how precise the attacks on it are."""

    loss: InformationLoss
    divergence: float
    precisions: tuple[attack.Precision, ...]
    history_precisions: tuple[attack.Precision, ...] | None
    patients: _PatientAttack
    shown: float

    @property
    def largest(self) -> float | None:
        """MAP of the attack on single events; None: no sensitive code was guessed often enough to tell."""
        return attack.find_largest(list(self.precisions))

    @property
    def largest_by_history(self) -> float | None:
        """MAP of the attack on whole histories."""
        return None if self.history_precisions is None else attack.find_largest(list(self.history_precisions))


@dataclass(frozen=True)
class _Leak:
    """What unprotected codes say about one sensitive code: on average, and the one that says most, None where none
    says anything; as counted on the patients who are shared."""

    code: str
    average: float
    teller: str | None
    most: float


@dataclass(frozen=True)
class CurvePoint:
    """One mechanism at one epsilon: codes protected, block size, the loss that Eq. 5 expects, a measurement."""

    series: str
    epsilon: Fraction
    protected: int
    block_size: int
    expected_loss: float
    measured: _Measurement


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
    measured: _Measurement
    leaks: tuple[_Leak, ...]
    frequencies: Frequencies
    curves: tuple[CurvePoint, ...]

    @property
    def shown_share(self) -> float:
        """The share of entries that leave unprotected: each is what was recorded."""
        return self.measured.shown

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
            f"an unprotected code stays with probability {self.kept_clear:.3f}; {loss.changed:.1%} of the events are "
            f"shared as another code, {loss.false_sensitive:.1%} as a sensitive code that was not there",
            f"information lost, 0 to 1: {loss.sensitive:.3f} on sensitive codes (expected over them "
            f"{self.expected_loss:.3f}), {loss.sensitive_patients:.3f} for patients who have one, "
            f"{loss.everything:.3f} over all; divergence {self.measured.divergence:.3f}",
            f"precision of the attack, at most: {_say(self.measured.largest)} on single events, "
            f"{_say(self.measured.largest_by_history)} on whole histories",
            f"who has a sensitive code: AUC {_say(self.measured.patients.any_code.auc)} from all entries, "
            f"{_say(self.measured.patients.by_length.auc)} from their number alone (0.5 is guessing)",
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
        recorded = read_histories(sequences)
        self._recorded = recorded.owners, sharing.number(recorded)
        self.sequences = sharing.take_latest(recorded)
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
        self._distances = taxonomy.distances([taxonomy.codes[code] for code in known], sharing.alpha)
        self._sensitive = np.isin(known, sharing.sensitive_numbers)
        self._folds = list(self._teach(known))

    def _teach(self, known: NDArray[np.intp]) -> Iterator[_Fold]:
        """What the adversary has learned: from the auxiliary patients or, where there are none, from the other half of
        these patients, each half attacked in turn. That is more than anybody outside has."""
        sharing, everyone = self.sharing, np.arange(len(self.sequences))
        if sharing.knowledge is not None:
            yield self._open_fold(sharing.knowledge, everyone)
            return
        for place in range(2):
            taught = self.sequences.take(everyone % 2 != place)
            codes = sharing.number(taught)
            knowledge = attack.learn(taught, codes, known, sharing.within, sharing.prior)
            yield self._open_fold(knowledge, everyone[everyone % 2 == place])

    def _open_fold(self, knowledge: Knowledge, patients: NDArray[np.intp]) -> _Fold:
        counts = self.sequences.counts[patients]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        events = np.arange(offsets[-1]) + np.repeat(
            self.sequences.offsets[:-1][patients] - offsets[:-1], counts
        )
        places = np.full(len(self._rows), -1, dtype=np.intp)
        places[knowledge.states] = np.arange(len(knowledge.states))
        return _Fold(knowledge, patients, events, offsets, places)

    def measure(self, sharing: CodeSharing | None = None, histories: bool = False) -> _Measurement:
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
        guesses, by_history = np.full((2, len(after)), -1, dtype=np.intp)
        suspected = np.zeros((len(self.sequences), len(sharing.sensitive_numbers) + 1))
        for fold in self._folds:
            known = fold.knowledge
            channel = mechanism.find_hidden(known.states)
            output = hidden[fold.events]
            view = attack.SharedView(
                fold.offsets, output, np.where(output >= 0, -1, fold.places[after[fold.events]])
            )
            guesses[fold.events] = fold.name(attack.guess_events(known.graph, channel, view))
            if histories:
                transitions = attack.find_transitions(known.transitions, known.graph)
                by_history[fold.events] = fold.name(
                    attack.guess_histories(known.graph, transitions, channel, view)
                )
            targets = fold.places[sharing.sensitive_numbers]
            suspected[fold.patients] = attack.suspect_patients(known.graph, channel, view, targets)
        asked = self._before, hidden >= 0, sharing.sensitive_numbers
        return _Measurement(
            loss,
            measure_divergence(counts[0], counts[1]),
            tuple(attack.judge_guesses(guesses, *asked)),
            tuple(attack.judge_guesses(by_history, *asked)) if histories else None,
            self._judge_patients(suspected, sharing.sensitive_numbers),
            float((hidden < 0).mean()) if len(hidden) else 0.0,
        )

    def find_leaks(self) -> tuple[_Leak, ...]:
        """What unprotected codes say about each sensitive one, for patients of this hospital."""
        sharing = self.sharing
        codes, targets = sharing.taxonomy.codes, sharing.sensitive_numbers
        known = attack.learn(
            self.sequences, sharing.number(self.sequences), targets, sharing.within, sharing.prior
        )
        places = np.searchsorted(known.states, targets)
        says = known.graph.find_conditionals(places, sharing.steps)
        says[(sharing.mechanism_.places[known.states] >= 0) | (known.graph.events == 0)] = 0.0
        averages, tellers = known.graph.frequencies @ says, says.argmax(axis=0)
        return tuple(
            _Leak(
                codes[code],
                float(averages[place]),
                codes[known.states[tellers[place]]] if says[tellers[place], place] > 0 else None,
                float(says[tellers[place], place]),
            )
            for place, code in enumerate(targets)
        )

    def _judge_patients(self, suspected: NDArray[np.float64], sensitive: NDArray[np.intp]) -> _PatientAttack:
        """Who has a sensitive code in all that was recorded, beside who was suspected, and who has many entries."""
        owners, codes = self._recorded
        having = np.zeros(suspected.shape, dtype=bool)
        for place, code in enumerate(sensitive):
            having[owners[codes == code], place] = True
        having[:, -1] = having.any(axis=1)
        findings = [attack.judge_patients(*columns) for columns in zip(suspected.T, having.T, strict=True)]
        lengths = attack.judge_patients(self.sequences.counts.astype(np.float64), having[:, -1])
        return _PatientAttack(findings[-1], tuple(findings[:-1]), lengths)


@dataclass(frozen=True, eq=False)
class _Fold:
    """Patients who are attacked with this knowledge: their events, and the place of each code among its states."""

    knowledge: Knowledge
    patients: NDArray[np.intp]
    events: NDArray[np.intp]
    offsets: NDArray[np.int64]
    places: NDArray[np.intp]

    def name(self, guesses: NDArray[np.intp]) -> NDArray[np.intp]:
        """Guessed states as numbers of the taxonomy; -1 where nothing was guessed."""
        return np.where(guesses >= 0, self.knowledge.states[guesses], -1)


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
        test.find_leaks(),
        estimate_frequencies(mechanism, drawn.astype(np.intp)),
        tuple(_draw_points(sharing, test, epsilons)),
    )


def _draw_points(sharing: CodeSharing, test: SharingTest, epsilons: Iterable[Number]) -> list[CurvePoint]:
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
    distances = sharing.taxonomy.distances([codes[code] for code in (*inputs, *outputs)], sharing.alpha)
    return float(expect_loss(distances[: len(inputs), len(inputs) :], mechanism.find_hidden(inputs)).mean())


def expect_entries(sharing: CodeSharing, sequences: Sequences) -> InformationLoss:
    """What sharing these histories is expected to lose and change: exact, without a draw."""
    latest = sharing.take_latest(sequences)
    counts = np.bincount(sharing.number(latest), minlength=len(sharing.taxonomy.codes)).astype(np.float64)
    inputs = np.flatnonzero(counts)
    if not len(inputs):
        return InformationLoss(0.0, 0.0, 0.0, 0.0, 0.0)
    codes, mechanism = sharing.taxonomy.codes, sharing.mechanism_
    outputs = mechanism.hidden_outputs.astype(np.intp)
    names = [codes[code] for code in (*inputs, *outputs)]
    distances = sharing.taxonomy.distances(names, sharing.alpha)[: len(inputs), len(inputs) :]
    channel, weights = mechanism.find_hidden(inputs), counts[inputs] / counts.sum()
    lost = (distances * channel).sum(axis=1)
    same = (channel * (inputs[:, None] == outputs)).sum(axis=1) + mechanism.find_shown(inputs)
    touched = np.isin(inputs, sharing.sensitive_numbers)
    named = channel[:, np.isin(outputs, sharing.sensitive_numbers)].sum(axis=1)
    of_sensitive = float(np.average(lost[touched], weights=weights[touched])) if touched.any() else 0.0
    return InformationLoss(
        of_sensitive,
        of_sensitive,
        float(weights @ lost),
        float(weights @ (1 - same)),
        float(weights[~touched] @ named[~touched]),
    )


def _say(precision: float | None) -> str:
    return TOO_FEW if precision is None else f"{precision:.2f}"


WIDTH, HEIGHT, LEFT, BELOW, ABOVE, LEGEND = 640, 360, 52, 40, 14, 18
TICKS = 5


def draw_curves(
    points: Iterable[CurvePoint], measure: Callable[[CurvePoint], float | None], title: str
) -> str:
    """The mean of a measure over runs, with bars of one standard deviation; points without a value are left out."""
    series: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    listed = list(points)
    colour_of = {name: place for place, name in enumerate(dict.fromkeys(point.series for point in listed))}
    for point in listed:
        value = measure(point)
        if value is not None:
            series[point.series][float(point.epsilon)].append(value)
    widest = max((x for line in series.values() for x in line), default=1.0)
    highest = max((max(found) for line in series.values() for found in line.values()), default=1.0) or 1.0
    right, bottom = WIDTH - 20, HEIGHT - BELOW

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * x / widest, bottom - (bottom - ABOVE) * y / highest

    parts = _draw_axes(widest, highest, right, bottom, title)
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[colour_of[name] % len(COLOURS)]
        means = [(x, float(np.mean(found)), float(np.std(found))) for x, found in sorted(line.items())]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y, _ in means)
        parts.append(draw("polyline", points=path, fill="none", stroke=colour, stroke_width=2))
        for x, y, spread in means:
            left, low = place(x, max(y - spread, 0.0))
            _, high = place(x, min(y + spread, highest))
            parts.append(draw("line", x1=left, y1=low, x2=left, y2=high, stroke=colour))
        top = HEIGHT + LEGEND * number
        parts.append(draw("rect", x=LEFT, y=top, width=12, height=4, fill=colour))
        parts.append(draw("text", name, x=LEFT + 20, y=top + 7))
    return draw_frame(f"{title} over epsilon", parts, WIDTH, HEIGHT + LEGEND * len(series) + 4)


def _draw_axes(widest: float, highest: float, right: float, bottom: float, title: str) -> list[str]:
    parts = [draw("line", x1=LEFT, y1=bottom, x2=right, y2=bottom, stroke=RULE)]
    for tick in range(TICKS + 1):
        share = tick / TICKS
        x, y = LEFT + (right - LEFT) * share, bottom - (bottom - ABOVE) * share
        parts.append(draw("line", x1=LEFT, y1=y, x2=right, y2=y, stroke=RULE, stroke_width=0.5))
        parts.append(
            draw("text", f"{highest * share:.2f}", x=LEFT - 6, y=y + 4, text_anchor="end", fill=SOFT)
        )
        across = f"{widest * share:.1f}"
        parts.append(draw("text", across, x=x, y=bottom + 16, text_anchor="middle", fill=SOFT))
    said = f"{title} over epsilon of one event"
    parts.append(draw("text", said, x=(LEFT + right) / 2, y=bottom + 32, text_anchor="middle"))
    return parts
