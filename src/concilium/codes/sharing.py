"""Sharing coded histories, the sensitive codes hidden: `CodeSharing(...).fit(auxiliary).share(sequences)`.

Which codes are hidden with the sensitive ones never follows from the patients whose codes are shared, unless by a
release that was charged (docs/methods.md, section 7.4; docs/code-sharing.md):

    fit()               a public list, from what codes mean (sensitive_codes.py), or the codes that `hidden` names
    fit(auxiliary)      what other patients teach, who are not shared; they are not protected by anything here
    fit(counts)         noisy counts of the same patients that a hospital has released and charged (code_counts.py)

Wishes of patients: `choices` are what a patient may ask to have hidden. They are hidden for everyone, whoever asked, so
that a wish changes no probability and is told to nobody: what it reveals is bounded by a factor of 1.

Claim. Protected: for `blocks`, `umaxrr` and `k-rr`, each recorded code by itself, from whoever sees an output in
the protected set, with pure epsilon (block_response.py). Cost: `epsilon` for each event; a patient has at most
`max_events`, and how many is itself telling, so everyone is charged `price` = max_events * epsilon. Assumptions:
auxiliary patients, if any, are others than those shared, and are not protected. Not protected: that a patient is among
those shared, how many events there are and when, unprotected codes. Suppression protects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from concilium.codes.agreed_sharing import AgreedSharing
from concilium.codes.attack import Knowledge, learn
from concilium.codes.block_response import (
    Blocking,
    CodeMechanism,
    Suppression,
    check_size,
    choose_blocking,
    find_losses,
    tabulate_channel,
)
from concilium.codes.code_counts import CodeCounts
from concilium.codes.code_design import describe_taxonomy, make_response
from concilium.codes.dependence import DependenceGraph, Extension, extend_protection
from concilium.codes.sensitive_codes import revealing_codes, sensitive_codes
from concilium.codes.shared_codes import number_codes, replace_codes, take_latest
from concilium.codes.sharing_parameters import SINCE_FIRST, SharingParameters
from concilium.codes.taxonomy import Taxonomy, split_scheme
from concilium.errors import StudyError
from concilium.models.method import documented
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.sequences import Sequences

Histories: TypeAlias = Sequences | Iterable[Iterable[tuple[Any, str]]]

# Of the codes that lie next to a sensitive one in the taxonomy, how many on either side may join its block.
NEIGHBOURS = 25
FEWEST_HIDDEN = 50


# What is learned from auxiliary patients depends on these, so that another value needs another fit.
FITTED = (
    "taxonomy",
    "digits",
    "zeros",
    "headings",
    "sensitive",
    "choices",
    "hidden",
    "within",
    "prior",
    "most_hidden",
)


@documented
class CodeSharing(SharingParameters):
    """`CodeSharing(sensitive=["042", "305"], epsilon=1, gamma=0.05).fit(auxiliary).share(sequences)`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taxonomy: Taxonomy = self._open_taxonomy()
        self.sensitive: tuple[str, ...] = self._list_sensitive()
        self.gamma: float | dict[str, float] | None = self._list_bounds()
        self.sensitive_numbers = np.array(
            [self.taxonomy.number_of[code] for code in self.sensitive], dtype=np.intp
        )

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
        price: Fraction = self.max_events * self.epsilon
        return price

    knowledge: Knowledge | None = None
    """What auxiliary patients taught; None where there were none."""

    def fit(self, auxiliary: Histories | CodeCounts | None = None) -> CodeSharing:
        """Settle which codes are hidden with the sensitive ones, and form the mechanism.

        Without auxiliary patients nothing in it follows from any patient. Where `hidden` names the codes, auxiliary
        patients only tell the attacks what an adversary may know.
        """
        self.knowledge = None
        if isinstance(auxiliary, CodeCounts):
            if self.hidden is None:
                self.hidden = self._read_counts(auxiliary)
        elif auxiliary is not None:
            sequences = read_histories(auxiliary)
            self.knowledge = learn(
                sequences, self.number(sequences), self._list_candidates(), self.within, self.prior
            )
        self._design()
        return self

    def refit(self, **changes: Any) -> CodeSharing:
        """A copy with other parameters (epsilon, gamma, mechanism, ...) on the same auxiliary patients."""
        self._check_fitted()
        allowed = [name for name in self.parameters() if name not in FITTED]
        if unknown := set(changes) - set(allowed):
            raise StudyError(f"refit changes {', '.join(allowed)}; got {', '.join(sorted(unknown))}")
        other = CodeSharing(**{name: getattr(self, name) for name in self.parameters()} | changes)
        other.knowledge = self.knowledge
        other._design()
        return other

    @overload
    def share(self, source: Histories | Site) -> Sequences: ...

    @overload
    def share(self, source: House) -> dict[str, Sequences]: ...

    def share(self, source: Histories | Site | House) -> Sequences | dict[str, Sequences]:
        """Randomise the codes of these patients: of each the latest `max_events`, codes of one moment sorted.

        Of a `Site`, or of all sites of a `House` by name, through the gate: as agreed, charged to the ledger before
        anything leaves, patients under numbers; `card_` says what it cost. Of histories at hand, with the same
        patients and times, and then NO ledger is charged: whoever hands that on accounts for `price` themselves.
        """
        if isinstance(source, Site | House):
            house = source if isinstance(source, House) else House([source])
            agreed = self.propose().fit(house)
            self.card_ = agreed.card
            shared = agreed.sequences_
            return shared if isinstance(source, House) else shared[source.name]
        if self.query or self.dates != SINCE_FIRST:
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

    def propose(self) -> AgreedSharing:
        """What hospitals are asked to agree to: this mechanism, for the patients of the query."""
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
            lengths=self.lengths,
            alpha=self.alpha,
            query=self.query,
            dates=self.dates,
            **describe_taxonomy(self.taxonomy),
        )

    def take_latest(self, sequences: Sequences) -> Sequences:
        """Of each patient the latest `max_events` events; which of several at one time, is drawn anew each time."""
        self._check_fitted()
        return take_latest(sequences, self.max_events, self.lengths)

    def channel(
        self, codes: Iterable[str] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float64]]:
        """Inputs, outputs and P(output | input): of these codes, or of all that were seen or are hidden."""
        self._check_fitted()
        if codes is None:
            known = self.knowledge
            seen = self.states[:0] if known is None else known.states[known.graph.events > 0]
            inputs = np.unique(np.concatenate([seen, np.flatnonzero(self.mechanism_.places >= 0)]))
        else:
            names = dict.fromkeys(self.taxonomy.normalise_all(list(codes)))
            inputs = np.array([self.taxonomy.number_of[code] for code in names], dtype=np.intp)
        outputs, matrix = tabulate_channel(self.mechanism_, inputs)
        names_of = (*self.taxonomy.codes, self.taxonomy.root)
        return tuple(names_of[x] for x in inputs), tuple(names_of[y] for y in outputs), matrix

    def _design(self) -> None:
        """Both extensions of the sensitive set, and the mechanism over it: no patient's codes are read from here on."""
        taxonomy = self.taxonomy
        self.mechanism_: CodeMechanism
        learned = None if self.hidden is not None or self.knowledge is None else self.knowledge
        self.states = self._list_candidates() if self.knowledge is None else self.knowledge.states
        chosen = np.searchsorted(self.states, self.sensitive_numbers)
        self.extension_ = self._take_given() if learned is None else self._extend(chosen, learned.graph)
        added = self.extension_.added
        members = np.concatenate([chosen, added]) if self._shows_hidden else chosen
        graph = None if learned is None else learned.graph
        self.blocking_ = self._choose_blocking(members, len(chosen), added, graph)
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
        return make_response(self.taxonomy, shown, unseen, self.blocking_.size, self.epsilon, self.alpha)

    def _list_hidden(self) -> tuple[str, ...]:
        """The codes that are hidden where nobody taught which: those that were named, or the public list."""
        if self._hides_nothing:
            return ()
        if self.hidden is None:
            return revealing_codes(self.taxonomy, self.sensitive)
        codes = {code for text in self.hidden for code in self.taxonomy.under(text)}
        return tuple(sorted(codes.difference(self.sensitive)))

    @property
    def _hides_nothing(self) -> bool:
        """Whether no bound is asked for on what unprotected codes say, so that none is hidden for it."""
        gammas = self.gamma.values() if isinstance(self.gamma, dict) else (self.gamma,)
        return self.hidden is None and all(_find_limit(one) == math.inf for one in (*gammas, self.gamma_max))

    def _list_candidates(self) -> NDArray[np.intp]:
        """The codes that a design is about, whoever the patients are: those near sensitive ones, and the listed."""
        listed = np.array([self.taxonomy.number_of[code] for code in self._list_hidden()], dtype=np.intp)
        return np.unique(np.concatenate([self._find_neighbours(), listed]))

    def _read_counts(self, counts: CodeCounts) -> list[str]:
        """The public list, and what noisy counts that were paid for say beyond it."""
        known = describe_taxonomy(self.taxonomy)
        if (counts.taxonomy, counts.digits) != (known["taxonomy"], known["digits"]):
            raise StudyError(
                f"these counts are of {counts.taxonomy} at {counts.digits} digits, and the codes of {self.taxonomy!r}"
            )
        most = 1.0 if self.gamma_max is None else self.gamma_max
        found = counts.find_revealing(self.sensitive, most)
        return sorted({*revealing_codes(self.taxonomy, self.sensitive), *found})

    def _take_given(self) -> Extension:
        numbers = np.array([self.taxonomy.number_of[code] for code in self._list_hidden()], dtype=np.intp)
        unknown = np.full(len(self.sensitive), math.nan)
        places = np.searchsorted(self.states, numbers).astype(np.intp)
        return Extension(places, places[:0], unknown, unknown, unknown, unknown)

    def _extend(self, chosen: NDArray[np.intp], graph: DependenceGraph) -> Extension:
        clear = graph.events > 0
        clear[chosen] = False
        bounds = self.gamma if isinstance(self.gamma, dict) else dict.fromkeys(self.sensitive, self.gamma)
        gamma = np.array([_find_limit(bounds[code]) for code in self.sensitive], dtype=np.float64)
        most = max(int(clear.sum()) // 2, FEWEST_HIDDEN) if self.most_hidden is None else self.most_hidden
        worst = _find_limit(self.gamma_max)
        conditionals = graph.find_conditionals(chosen, self.steps)
        return extend_protection(conditionals, graph.frequencies, clear, gamma, worst, most)

    def _choose_blocking(
        self,
        members: NDArray[np.intp],
        sensitive: int,
        hidden: NDArray[np.intp],
        graph: DependenceGraph | None,
    ) -> Blocking:
        """The size of blocks and their company; a size that is given is taken as it is, without company."""
        if self.mechanism != "blocks":
            return Blocking(1, np.zeros(0, dtype=np.intp), math.nan)
        free = np.isin(self.states, self._find_neighbours())
        free[np.concatenate([members, hidden])] = False
        others = np.flatnonzero(free)
        names = [self.taxonomy.codes[self.states[place]] for place in (*members, *others)]
        distances = self.taxonomy.distances(names, self.alpha)[:sensitive]
        known, candidates = distances[:, : len(members)], distances[:, len(members) :]
        if self.block_size is not None:
            check_size(self.block_size, len(members))
            loss = find_losses(known, math.expm1(min(float(self.epsilon), 700.0)))[self.block_size - 1]
            return Blocking(self.block_size, np.zeros(0, dtype=np.intp), float(loss))
        recorded = np.zeros(0) if graph is None else graph.events[members[:sensitive]].astype(np.float64)
        weights = recorded if recorded.any() else None
        blocking = choose_blocking(known, candidates, self.epsilon, self.most_company, weights)
        return Blocking(blocking.size, others[blocking.added], blocking.loss)

    def _find_neighbours(self) -> NDArray[np.intp]:
        """The codes that come just before and after a sensitive one in the order of the taxonomy."""
        leaves = self.taxonomy.tree.leaves
        places = np.array([self.taxonomy.tree.place_of[code] for code in self.sensitive])
        near = np.unique(places[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
        near = near[(near >= 0) & (near < len(leaves))]
        return np.array([self.taxonomy.number_of[leaves[place]] for place in near], dtype=np.intp)

    def number(self, sequences: Sequences) -> NDArray[np.int32]:
        """The number of each event's code in the taxonomy; a blot has the number after the last."""
        return number_codes(self.taxonomy, sequences)

    def _open_taxonomy(self) -> Taxonomy:
        given = self.taxonomy
        if isinstance(given, Taxonomy):
            return given
        known = Taxonomy.named(given, self.digits, self.zeros, self.headings)
        if known is not None:
            return known
        scheme, file = split_scheme(given)
        return Taxonomy.read_codes(file, scheme) if scheme else Taxonomy.read(file)

    def _list_sensitive(self) -> tuple[str, ...]:
        """The codes at the taxonomy's level; a heading stands for all below it."""
        chosen = {code for text in self.choices for code in self.taxonomy.under(text)}
        if self.sensitive is None:
            return tuple(sorted(chosen.union(sensitive_codes(self.taxonomy))))
        codes = chosen.union(code for text in self.sensitive for code in self.taxonomy.under(text))
        if not codes:
            raise StudyError("sensitive names no code: there is nothing to hide")
        return tuple(sorted(codes))

    def _list_bounds(self) -> float | dict[str, float] | None:
        """`gamma` at the taxonomy's level."""
        if not isinstance(self.gamma, Mapping):
            return self.gamma
        bounds = {code: bound for text, bound in self.gamma.items() for code in self.taxonomy.under(text)}
        if missing := [code for code in self.sensitive if code not in bounds]:
            raise StudyError(
                f"gamma says nothing about the sensitive code {missing[0]!r}; give a bound for each, or one number"
            )
        return bounds

    def _check_fitted(self) -> None:
        if not hasattr(self, "mechanism_"):
            raise StudyError(
                "it is not settled yet which codes are hidden; call fit() first, or fit(auxiliary)"
            )


def read_histories(histories: Histories) -> Sequences:
    """Sequences as they are, or from a list of (time, code) for each patient."""
    if not isinstance(histories, Iterable):
        raise StudyError(f"give Sequences, or for each patient a list of (time, code); got {histories!r}")
    return histories if isinstance(histories, Sequences) else Sequences(histories)


def _find_limit(bound: float | None) -> float:
    """The bound on what codes may say; nothing is hidden where there is none."""
    return math.inf if bound is None or bound == 1 else bound
