"""Sharing coded histories, the sensitive codes hidden: `CodeSharing(...).fit(auxiliary).share(sequences)`.

Which codes are hidden follows from auxiliary patients, the taxonomy and the parameters alone; the patients whose
codes are shared are looked at once, by the mechanism (docs/methods.md, section 7; docs/code-sharing.md).

Claim. Protected: for `blocks`, `umaxrr` and `k-rr`, each recorded code by itself, from whoever sees an output in
the protected set, with pure epsilon (block_response.py). Cost: `epsilon` for each event; a patient has at most
`max_events`, and how many is itself telling, so everyone is charged `price` = max_events * epsilon. Assumptions:
the auxiliary patients are others than those shared, and are not protected. Not protected: that a patient is among
those shared, how many events there are and when, codes in the clear. Suppression protects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

import numpy as np
from numpy.typing import NDArray

from concilium.codes.attack import count_transitions
from concilium.codes.block_response import (
    Blocking,
    CodeMechanism,
    Suppression,
    check_size,
    choose_blocking,
    find_losses,
    tabulate_channel,
)
from concilium.codes.code_design import SINCE_FIRST, describe_taxonomy, make_response
from concilium.codes.dependence import MOST_STEPS, PRIOR, Extension, count_dependence, extend_protection
from concilium.codes.sensitive_codes import sensitive_codes
from concilium.codes.shared_codes import number_codes, replace_codes, take_latest
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import StudyError
from concilium.privacy.mechanisms import Number, read_positive
from concilium.records.sequences import Sequences

if TYPE_CHECKING:
    from concilium.codes.agreed_sharing import AgreedSharing
    from concilium.protocol.card import Card
    from concilium.protocol.house import House
    from concilium.protocol.site import Site

MechanismName: TypeAlias = Literal["blocks", "umaxrr", "k-rr", "suppression"]
MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
Histories: TypeAlias = Sequences | Iterable[Iterable[tuple[Any, str]]]

# Of the codes that lie next to a sensitive one in the taxonomy, how many on either side may join its block.
NEIGHBOURS = 25
FEWEST_HIDDEN = 50


class CodeSharing:
    """`CodeSharing(taxonomy="icd9", sensitive=["042", "305"], epsilon=1, gamma=0.05).fit(auxiliary).share(sequences)`.

    taxonomy    "icd9", "icd10", or a Taxonomy; `digits` says how fine the codes are
    sensitive   the codes to hide, or headings above them; None: those of Title 38 U.S.C. section 7332
    epsilon     what one event costs
    gamma       at most so much may codes in the clear say on average about a sensitive one; a number, a number for each
                sensitive code, or None for no bound
    gamma_max   at most so much may any one code in the clear say; None for no bound
    mechanism   "blocks", "umaxrr", "k-rr", or "suppression", which protects nothing and is there to compare
    block_size  how many similar codes share a block; None: what loses least
    within      codes at most so many days apart belong together
    prior       how many patients' weight the share of all patients has in what one code says about another
    steps       how many edges the paths between codes may have
    max_events  of a longer history the latest so many are shared, and everyone is charged for so many
    most_hidden at most so many codes are hidden for what they say; None: half of those seen, or 50
    most_company  at most so many codes are added for the sake of better blocks
    show_hidden whether codes that are hidden for what they say may come out, at random; if not, sensitive codes
                lose less, and the hidden ones are lost
    """

    def __init__(
        self,
        taxonomy: str | Taxonomy = "icd9",
        digits: int = 3,
        sensitive: Iterable[str] | None = None,
        epsilon: Number = 1,
        gamma: float | Mapping[str, float] | None = 0.05,
        gamma_max: float | None = 0.2,
        mechanism: MechanismName = "blocks",
        block_size: int | None = None,
        within: float = 300,
        steps: int = 1,
        prior: float = PRIOR,
        max_events: int = 100,
        most_hidden: int | None = None,
        most_company: int = 100,
        show_hidden: bool = True,
    ) -> None:
        self.taxonomy = _read_taxonomy(taxonomy, digits)
        self.epsilon = read_positive(epsilon, "epsilon")
        self.mechanism: MechanismName = _read_mechanism(mechanism)
        self.block_size = None if block_size is None else _read_whole(block_size, "block_size", 1)
        self.within = _read_number(within, "within", "a number of days of at least 0", 0, math.inf)
        self.steps = _read_whole(steps, "steps", 1, MOST_STEPS)
        self.prior = _read_number(prior, "prior", "a number of patients of at least 0", 0, 1e9)
        self.max_events = _read_whole(max_events, "max_events", 1)
        self.most_hidden = None if most_hidden is None else _read_whole(most_hidden, "most_hidden", 0)
        self.most_company = _read_whole(most_company, "most_company", 0)
        self.show_hidden = bool(show_hidden)
        self.gamma_max = None if gamma_max is None else _read_share(gamma_max, "gamma_max")
        self.sensitive = _read_sensitive(self.taxonomy, sensitive)
        self.gamma = _read_gamma(gamma, self.taxonomy, self.sensitive)
        self._number_of = {code: number for number, code in enumerate(self.taxonomy.codes)}
        self.sensitive_numbers = np.array([self._number_of[code] for code in self.sensitive], dtype=np.intp)

    card_: Card | None = None
    """What the last sharing through a gate cost, and whom; None where none was charged."""

    def __repr__(self) -> str:
        return (
            f"CodeSharing({self.taxonomy!r}, {len(self.sensitive)} sensitive codes, "
            f"epsilon={float(self.epsilon):g}, mechanism={self.mechanism!r})"
        )

    @property
    def price(self) -> Fraction:
        """What sharing costs every patient, in pure epsilon: the one number to charge before anything leaves."""
        if self.mechanism == "suppression":
            raise StudyError(
                "suppression has no price: it gives no differential privacy; share with blocks, umaxrr or k-rr"
            )
        return self.max_events * self.epsilon

    def fit(self, auxiliary: Histories) -> CodeSharing:
        """Learn from auxiliary patients which codes come with sensitive ones, and form the mechanism."""
        sequences = read_histories(auxiliary)
        codes = self.number(sequences)
        self.states = np.unique(np.concatenate([codes, self._find_neighbours()])).astype(np.intp)
        places = np.searchsorted(self.states, codes).astype(np.int32)
        size = len(self.states)
        self.graph = count_dependence(
            sequences.offsets, places, sequences.times, size, self.within, self.prior
        )
        self.transitions = count_transitions(sequences.offsets, places, size)
        self._design()
        return self

    def refit(self, **changes: Any) -> CodeSharing:
        """A copy with other parameters (epsilon, gamma, mechanism, ...) on the same auxiliary patients."""
        self._check_fitted()
        allowed = (
            "epsilon",
            "gamma",
            "gamma_max",
            "mechanism",
            "block_size",
            "steps",
            "max_events",
            "most_company",
            "show_hidden",
        )
        if unknown := set(changes) - set(allowed):
            raise StudyError(f"refit changes {', '.join(allowed)}; got {', '.join(sorted(unknown))}")
        kept = {
            name: getattr(self, name)
            for name in (*allowed, "taxonomy", "sensitive", "within", "prior", "most_hidden")
        }
        other = CodeSharing(**{**kept, **changes})
        other.states, other.graph, other.transitions = self.states, self.graph, self.transitions
        other._design()
        return other

    @overload
    def share(self, source: Histories | Site, *, query: str = "", dates: str = SINCE_FIRST) -> Sequences: ...

    @overload
    def share(self, source: House, *, query: str = "", dates: str = SINCE_FIRST) -> dict[str, Sequences]: ...

    def share(
        self, source: Histories | Site | House, *, query: str = "", dates: str = SINCE_FIRST
    ) -> Sequences | dict[str, Sequences]:
        """The codes of these patients, randomised: of each the latest `max_events`, codes of one moment sorted.

        Of a `Site`, or of all sites of a `House` by name, through the gate: as agreed, charged to the ledger before
        anything leaves, patients under numbers; `card_` says what it cost. Of histories at hand, with the same
        patients and times, and then NO ledger is charged: whoever hands that on accounts for `price` themselves.
        """
        from concilium.protocol.house import House
        from concilium.protocol.site import Site

        if isinstance(source, Site | House):
            house = source if isinstance(source, House) else House([source])
            agreed = self.propose(query=query, dates=dates).fit(house)
            self.card_ = agreed.card
            shared = agreed.sequences_
            return shared if isinstance(source, House) else shared[source.name]
        if query or dates != SINCE_FIRST:
            raise StudyError(
                "query and dates are for the patients of a site; choose among histories yourself"
            )
        self.card_ = None
        latest = self.take_latest(read_histories(source))
        if self.taxonomy.root in latest.labels:
            raise StudyError(
                f"some of these codes are suppressed ({self.taxonomy.root}): share codes as they were recorded"
            )
        drawn = self.mechanism_.randomize(self.number(latest))
        return replace_codes(latest, drawn, (*self.taxonomy.codes, self.taxonomy.root))

    def propose(self, *, query: str = "", dates: str = SINCE_FIRST) -> AgreedSharing:
        """What hospitals are asked to agree to: this mechanism, for the patients of a query."""
        from concilium.codes.agreed_sharing import AgreedSharing

        self._check_fitted()
        if self.mechanism == "suppression":
            raise StudyError(
                "suppression has no price, so that no ledger could be charged for it; share with blocks, umaxrr or k-rr"
            )
        chosen = set(self.sensitive)
        hidden = [self.taxonomy.codes[code] for code in self.states[self.extension_.added]]
        shown = [self.taxonomy.codes[code] for code in self.mechanism_.hidden_outputs]
        return AgreedSharing(
            sensitive=self.sensitive,
            hidden=hidden,
            company=[code for code in shown if code not in chosen.union(hidden)],
            show_hidden=self._shows_hidden,
            block_size=self.blocking_.size,
            epsilon=self.epsilon,
            max_events=self.max_events,
            query=query,
            dates=dates,
            **describe_taxonomy(self.taxonomy),
        )

    def take_latest(self, sequences: Sequences) -> Sequences:
        """Of each patient the latest `max_events` events; which of several at one time, is drawn anew each time."""
        self._check_fitted()
        return take_latest(sequences, self.max_events)

    def channel(
        self, codes: Iterable[str] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float64]]:
        """Inputs, outputs and P(output | input): of these codes, or of all that were seen or are hidden."""
        self._check_fitted()
        if codes is None:
            seen = self.states[self.graph.events > 0]
            inputs = np.unique(np.concatenate([seen, np.flatnonzero(self.mechanism_.places >= 0)]))
        else:
            names = dict.fromkeys(self.taxonomy.normalise_all(list(codes)))
            inputs = np.array([self._number_of[code] for code in names], dtype=np.intp)
        outputs, matrix = tabulate_channel(self.mechanism_, inputs)
        names_of = (*self.taxonomy.codes, self.taxonomy.root)
        return tuple(names_of[x] for x in inputs), tuple(names_of[y] for y in outputs), matrix

    def _design(self) -> None:
        """Both extensions of the sensitive set, and the mechanism over it: no patient's codes are read from here on."""
        taxonomy = self.taxonomy
        self.mechanism_: CodeMechanism
        chosen = np.searchsorted(self.states, self.sensitive_numbers)
        clear = self.graph.events > 0
        clear[chosen] = False
        self.extension_ = self._extend(chosen, clear)
        added = self.extension_.added
        members = np.concatenate([chosen, added]) if self._shows_hidden else chosen
        self.blocking_ = self._choose_blocking(members, len(chosen), added)
        outputs = np.sort(self.states[np.concatenate([members, self.blocking_.added])]).astype(np.int32)
        never = (
            np.zeros(0, dtype=np.int32)
            if self._shows_hidden
            else np.sort(self.states[added]).astype(np.int32)
        )
        self.mechanism_ = self._make_mechanism(outputs, never)
        hidden = np.flatnonzero(self.mechanism_.places >= 0)
        self.protected_: tuple[str, ...] = tuple(taxonomy.codes[code] for code in hidden)

    @property
    def _shows_hidden(self) -> bool:
        return self.show_hidden or self.mechanism in ("suppression", "k-rr")

    def _make_mechanism(self, outputs: NDArray[np.int32], never: NDArray[np.int32]) -> CodeMechanism:
        size = len(self.taxonomy.codes)
        if self.mechanism == "suppression":
            return Suppression(size, outputs)
        if self.mechanism == "k-rr":
            outputs = np.arange(size, dtype=np.int32)
        shown, unseen = (tuple(self.taxonomy.codes[code] for code in codes) for codes in (outputs, never))
        return make_response(self.taxonomy, shown, unseen, self.blocking_.size, self.epsilon)

    def _extend(self, chosen: NDArray[np.intp], clear: NDArray[np.bool_]) -> Extension:
        bound = math.inf if self.gamma is None else self.gamma
        gamma = np.array(
            [bound[code] if isinstance(bound, Mapping) else bound for code in self.sensitive],
            dtype=np.float64,
        )
        most = max(int(clear.sum()) // 2, FEWEST_HIDDEN) if self.most_hidden is None else self.most_hidden
        worst = math.inf if self.gamma_max is None else self.gamma_max
        conditionals = self.graph.find_conditionals(chosen, self.steps)
        return extend_protection(conditionals, self.graph.frequencies, clear, gamma, worst, most)

    def _choose_blocking(
        self, members: NDArray[np.intp], sensitive: int, hidden: NDArray[np.intp]
    ) -> Blocking:
        """The size of blocks and their company; a size that is given is taken as it is, without company."""
        if self.mechanism != "blocks":
            return Blocking(1, np.zeros(0, dtype=np.intp), math.nan)
        free = np.isin(self.states, self._find_neighbours())
        free[np.concatenate([members, hidden])] = False
        others = np.flatnonzero(free)
        names = [self.taxonomy.codes[self.states[place]] for place in (*members, *others)]
        distances = self.taxonomy.distances(names)[:sensitive]
        known, candidates = distances[:, : len(members)], distances[:, len(members) :]
        if self.block_size is not None:
            check_size(self.block_size, len(members))
            loss = find_losses(known, math.expm1(min(float(self.epsilon), 700.0)))[self.block_size - 1]
            return Blocking(self.block_size, np.zeros(0, dtype=np.intp), float(loss))
        recorded = self.graph.events[members[:sensitive]].astype(np.float64)
        weights = recorded if recorded.any() else None
        blocking = choose_blocking(known, candidates, self.epsilon, self.most_company, weights)
        return Blocking(blocking.size, others[blocking.added], blocking.loss)

    def _find_neighbours(self) -> NDArray[np.intp]:
        """The codes that come just before and after a sensitive one in the order of the taxonomy."""
        leaves = self.taxonomy.tree.leaves
        places = np.array([self.taxonomy.tree.place_of[code] for code in self.sensitive])
        near = np.unique(places[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
        near = near[(near >= 0) & (near < len(leaves))]
        return np.array([self._number_of[leaves[place]] for place in near], dtype=np.intp)

    def number(self, sequences: Sequences) -> NDArray[np.int32]:
        """The number of each event's code in the taxonomy; a blot has the number after the last."""
        return number_codes(self.taxonomy, sequences)

    def _check_fitted(self) -> None:
        if not hasattr(self, "graph"):
            raise StudyError("it has not learned yet which codes come together; call fit(auxiliary) first")


def read_histories(histories: Histories) -> Sequences:
    """Sequences as they are, or from a list of (time, code) for each patient."""
    if not isinstance(histories, Iterable):
        raise StudyError(f"give Sequences, or for each patient a list of (time, code); got {histories!r}")
    return histories if isinstance(histories, Sequences) else Sequences(histories)


def _read_taxonomy(taxonomy: str | Taxonomy, digits: int) -> Taxonomy:
    if isinstance(taxonomy, Taxonomy):
        return taxonomy
    if taxonomy == "icd9":
        return Taxonomy.icd9(digits=digits)
    if taxonomy == "icd10":
        return Taxonomy.icd10(digits=digits)
    raise StudyError(f'taxonomy must be "icd9", "icd10" or a Taxonomy; got {taxonomy!r}')


def _read_sensitive(taxonomy: Taxonomy, sensitive: Iterable[str] | None) -> tuple[str, ...]:
    """The codes at the taxonomy's level; a heading stands for all below it."""
    if sensitive is None:
        return sensitive_codes(taxonomy)
    if isinstance(sensitive, str):
        raise StudyError(f"sensitive must be a list of codes; got the text {sensitive!r}")
    codes = sorted({code for text in sensitive for code in taxonomy.under(text)})
    if not codes:
        raise StudyError("sensitive names no code: there is nothing to hide")
    return tuple(codes)


def _read_gamma(
    gamma: float | Mapping[str, float] | None, taxonomy: Taxonomy, sensitive: Sequence[str]
) -> float | dict[str, float] | None:
    if gamma is None:
        return None
    if not isinstance(gamma, Mapping):
        return _read_share(gamma, "gamma")
    bounds = {
        code: _read_share(value, "gamma") for text, value in gamma.items() for code in taxonomy.under(text)
    }
    if missing := [code for code in sensitive if code not in bounds]:
        raise StudyError(
            f"gamma says nothing about the sensitive code {missing[0]!r}; give a bound for each, or one number"
        )
    return bounds


def _read_mechanism(name: str) -> MechanismName:
    for known in MECHANISMS:
        if name == known:
            return known
    raise StudyError(f"mechanism must be one of {', '.join(MECHANISMS)}; got {name!r}")


def _read_share(value: Any, name: str) -> float:
    number = _read_number(value, name, "a number above 0 and at most 1", 0, 1)
    if number == 0:
        raise StudyError(f"{name} must be a number above 0 and at most 1; got {value!r}")
    return number


def _read_number(value: Any, name: str, takes: str, low: float, high: float) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise StudyError(f"{name} must be {takes}; got {value!r}")
    return number


def _read_whole(value: Any, name: str, least: int, most: int | None = None) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or value < least
        or (most and value > most)
    ):
        up_to = "" if most is None else f" and at most {most}"
        raise StudyError(f"{name} must be a whole number of at least {least}{up_to}; got {value!r}")
    return int(value)
