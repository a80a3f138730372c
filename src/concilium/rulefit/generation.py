"""Rules of one site (docs/methods.md, 2.3): boosted trees on its patients alone, every node a rule.

Who is protected: nobody. Rules depend on every patient of the site, and the house sees which site sent which, under
`masked` as well. What holds: no rule is about fewer patients than `support`, or leaves fewer than that out, so that a
rule is never about three people (under `masked` the hospital's policy says how many, not the house); and a rule holds
cutoffs and values that all sites were told, never a patient's own. That is a courtesy, not privacy.

Trees see codes, not values (boosted_trees.py), so that no cut is finer than the shared cutoffs. The number of leaves of
each is 2 + floor(Exponential) with mean `leaves` - 2, drawn by hashing, since all of it follows from the question.

In reading rules off the nodes, a set of codes is the bits of a number, and what a node says of all attributes is one
number, each attribute with bits of its own: going down a branch is one bitwise and. Nodes that say the same are one
before a rule is written.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.models.outcome import Outcome
from concilium.policy.policy import LEAST_SUPPORT
from concilium.protocol.attributes import CALL, MISSING, Attribute, Workload, estimate_columns
from concilium.protocol.cohort import Cohort
from concilium.protocol.held_out import FOLDS, Folds, keep_rows
from concilium.protocol.questions import PLAIN, Gathered, Reply
from concilium.records.blocks import each_block, fill_room, list_blocks, read_block
from concilium.records.row_hashes import mix
from concilium.rulefit.boosted_trees import GAPPED, NUMBER, BoostedTrees, grow_trees
from concilium.rulefit.design import BLOCK, PATIENTS_AT_ONCE, find_codes, pack_rules
from concilium.rulefit.terms import Condition, Rule, check_coded, check_rules, list_conditions

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release

MOST_TREES = 10_000
MOST_LEAVES = 100
# To choose a penalty, fewer trees do: they are grown anew for every fold.
MOST_TREES_OF_FOLD = 100
# About so many patients teach the trees of a site that has more, drawn by hashing rows: trees over all of them would
# take longer than a house waits, for rules that are hardly others.
MOST_LEARNED_FROM = 1 << 21


class Rules(Reply, frozen=True):
    """The different rules of a site, in canonical order; `by_fold` has those of all patients but a fold's."""

    rules: tuple[Rule, ...]
    by_fold: tuple[tuple[Rule, ...], ...] = ()

    @property
    def numbers(self) -> int:
        """Each condition is something told about the site's patients."""
        return sum(len(rule) for rules in (self.rules, *self.by_fold) for rule in rules)


class AskRules(Gathered[Rules], frozen=True, kw_only=True):
    """Which rules tell your patients apart, with cuts at these cutoffs only?"""

    kind: ClassVar[str] = "rulefit.rules"
    releases: ClassVar[frozenset[str]] = PLAIN
    reply: ClassVar[type[Rules]] = Rules
    rows_at_once: ClassVar[int] = PATIENTS_AT_ONCE

    outcome: Outcome
    attributes: tuple[Attribute, ...]
    trees: int
    leaves: float
    shrinkage: float
    support: int
    seed: int
    folds: Folds | None = None

    @property
    def dealing(self) -> Folds | None:
        return self.folds

    @property
    def fixed(self) -> Mapping[str, Any]:
        names = ("trees", "leaves", "shrinkage", "support", "seed")
        return {"positive": self.outcome.positive, **{name: getattr(self, name) for name in names}}

    @property
    def named(self) -> Sequence[Attribute]:
        return self.attributes

    def check(self, release: Release) -> None:
        self.outcome.check()
        check_coded(self.attributes)
        if not 1 <= self.trees <= MOST_TREES or not 2 <= self.leaves <= MOST_LEAVES:
            raise MessageError(
                f"rules come of 1 to {MOST_TREES} trees with 2 to {MOST_LEAVES} leaves on average"
            )
        if not 0 < self.shrinkage <= 1 or not 0 <= self.seed < 2**63:
            raise MessageError("the shrinkage of boosted trees is above 0 and at most 1")
        if self.support < LEAST_SUPPORT:
            raise MessageError(f"a rule is about at least {LEAST_SUPPORT} patients")
        if self.folds is not None:
            self.folds.check()

    def estimate(self, patients: int, columns: int) -> Workload:
        whole = estimate_columns(self.attributes, patients) + _estimate_boosting(
            self.attributes, patients, self.trees, self.leaves
        )
        if self.folds is None:
            return whole
        # One after the other: of each fold only its rules stay.
        fold = _estimate_boosting(self.attributes, patients, self._trees_of_fold, self.leaves)
        many = len(self.folds)
        return Workload(whole.operations + many * fold.operations, whole.memory + fold.memory // 2)

    @property
    def _trees_of_fold(self) -> int:
        return min(self.trees, MOST_TREES_OF_FOLD)

    @property
    def goes_by_blocks(self) -> bool:
        return True

    def compute(self, cohort: Cohort) -> Rules:
        if self.folds is None or cohort.floored:
            return Rules(self._boost(cohort, self.trees))
        dealt = self.folds.deal(cohort)
        sides = (dealt[fold // FOLDS] != fold for fold in range(len(self.folds)))
        others = (replace(cohort, rows=keep_rows(cohort, side)) for side in sides)
        return Rules(
            self._boost(cohort, self.trees), tuple(self._boost(one, self._trees_of_fold) for one in others)
        )

    def _boost(self, cohort: Cohort, trees: int) -> tuple[Rule, ...]:
        """The rules of this many trees, over these patients or a sample of them."""
        learning = draw_some(cohort, self.seed)
        support = self.support if cohort.support is None else cohort.support
        outcome = fill_room(
            len(learning),
            np.float64,
            cohort.view.room,
            lambda block: self.outcome.at_site(learning.take_block(block), self.target),
        )
        rules = _boost(
            self._find_codes(learning),
            outcome,
            self.attributes,
            everyone=None if learning is cohort else self._find_codes(cohort),
            binary=self.outcome.binary,
            trees=trees,
            leaves=self.leaves,
            shrinkage=self.shrinkage,
            support=max(support, cohort.branch_floor, cohort.guard.minimum_cell),
            seed=self.seed,
            room=cohort.view.room,
        )
        return tuple(rules)

    def _find_codes(self, cohort: Cohort) -> list[NDArray[np.unsignedinteger]]:
        rows, room = None if cohort.everyone else cohort.rows, cohort.view.room
        return [find_codes(attribute, cohort.view, rows, room) for attribute in self.attributes]

    def read(self, data: bytes) -> Rules:
        reply = super().read(data)
        if len(reply.by_fold) not in (0, 0 if self.folds is None else len(self.folds)):
            raise MessageError("rules are of other folds than those that were asked for")
        for rules in (reply.rules, *reply.by_fold):
            check_rules(rules, self.attributes)
        return reply

    def unite(self, replies: Sequence[Rules]) -> Rules:
        """The different rules of all sites of a region."""
        folds = 0 if self.folds is None else len(self.folds)
        by_fold = [[r.by_fold[fold] for r in replies if r.by_fold] for fold in range(folds)]
        return Rules(_merge([reply.rules for reply in replies]), tuple(map(_merge, by_fold)))


def draw_some(cohort: Cohort, seed: int) -> Cohort:
    """These patients, or about `MOST_LEARNED_FROM` of them where they are more."""
    if len(cohort) <= MOST_LEARNED_FROM:
        return cohort
    share = np.uint64((MOST_LEARNED_FROM << 64) // len(cohort))
    drawn = np.empty(len(cohort), dtype=np.bool_)
    for block in list_blocks(len(cohort)):
        drawn[block] = mix(read_block(cohort.rows, block).astype(np.uint64), seed) < share
    return replace(cohort, rows=keep_rows(cohort, drawn))


def _merge(lists: Sequence[Sequence[Rule]]) -> tuple[Rule, ...]:
    # Each site's are in order already, so that they are merged rather than sorted.
    return tuple(dict.fromkeys(sorted(chain.from_iterable(lists))))


def _boost(
    codes: Sequence[NDArray[np.unsignedinteger]],
    outcome: NDArray[np.float64],
    attributes: Sequence[Attribute],
    *,
    binary: bool,
    trees: int,
    leaves: float,
    shrinkage: float,
    support: int,
    seed: int,
    sample: float = 0.5,
    everyone: Sequence[NDArray[np.unsignedinteger]] | None = None,
    room: Path | None = None,
) -> list[Rule]:
    """The different rules of a site's boosted trees, in canonical order; none where there is nothing to learn. Each is
    about enough of these patients, or of `everyone`. What is as long as a large table is put into `room`."""
    patients = len(outcome)
    if patients < 2 * support or outcome.min() == outcome.max() or not attributes:
        return []
    # Where too few patients would be left to make two groups of, every tree learns from all of them.
    grown = grow_trees(
        codes,
        [attribute.numeric for attribute in attributes],
        outcome,
        binary=binary,
        sizes=_count_all_leaves(leaves, seed, trees),
        shrinkage=shrinkage,
        support=support,
        sample=sample if sample * patients >= 2 * support else 1.0,
        seed=seed,
        room=room,
    )
    rules = _list_rules(grown, [attribute.size for attribute in attributes])
    counted = codes if everyone is None else everyone
    supports, most = _count_patients(rules, counted, attributes), len(counted[0]) - support
    return [rule for rule, count in zip(rules, supports, strict=True) if support <= count <= most]


def _estimate_boosting(attributes: Sequence[Attribute], patients: int, trees: int, leaves: float) -> Workload:
    """What boosting takes, and reading the rules off the trees."""
    cells = sum(attribute.size + 1 for attribute in attributes)
    # The number of leaves is drawn; 2^-64 is the least that its uniform number can be.
    most_leaves = min(2 + math.ceil(45 * (leaves - 2)), patients + 2)
    depth = math.ceil(leaves).bit_length() + 1
    rules = 2 * trees * math.ceil(leaves)
    learning = min(patients, MOST_LEARNED_FROM)
    tree = (depth * len(attributes) + 40) * learning + math.ceil(leaves) * (20 * cells + 4 * CALL)
    return Workload(
        trees * tree + (len(attributes) * 10 + rules * 2) * patients + rules * (2 * CALL + cells),
        (14 * len(attributes) + 128) * patients
        + (BLOCK + BLOCK // 8 + rules // 4) * min(patients, PATIENTS_AT_ONCE * (os.cpu_count() or 1))
        + 32 * cells * most_leaves
        + rules * (cells // 4 + 2_000),
    )


@functools.lru_cache(maxsize=8)
def _count_all_leaves(mean: float, seed: int, trees: int) -> tuple[int, ...]:
    """How many leaves each of so many trees has: the same at all sites that are asked the same."""
    return tuple(_count_leaves(mean, seed, tree) for tree in range(trees))


def _count_leaves(mean: float, seed: int, tree: int) -> int:
    """2 + floor(w), w exponential with mean `mean` - 2, the `tree`-th draw of this seed."""
    if mean <= 2:
        return 2
    digest = hashlib.sha256(f"{seed}\n{tree}".encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") + 0.5) / 2**64
    return 2 + math.floor(-math.log(uniform) * (mean - 2))


def _count_patients(
    rules: Sequence[Rule], codes: Sequence[NDArray[np.unsignedinteger]], attributes: Sequence[Attribute]
) -> NDArray[np.intp]:
    """How many patients fulfil each rule."""
    conditions = list_conditions(rules, [attribute.size for attribute in attributes])

    def count(block: slice) -> NDArray[np.intp]:
        size = block.stop - block.start
        bits = pack_rules(conditions, lambda index: read_block(codes[index], block), size)
        counts: NDArray[np.intp] = np.bitwise_count(bits).sum(axis=0, dtype=np.intp)
        return counts

    blocks = list_blocks(len(codes[0]), PATIENTS_AT_ONCE)
    return sum(each_block(blocks, count), np.zeros(len(rules), dtype=np.intp))


def _list_rules(trees: BoostedTrees, sizes: Sequence[int]) -> list[Rule]:
    """The different rules of all nodes but the roots, in canonical order, but none that nobody could fulfil; `sizes`
    says how many codes each attribute has."""
    starts = [0, *accumulate(sizes)]
    everything = (1 << starts[-1]) - 1
    sides_of: dict[tuple[int, ...], tuple[int, int]] = {}
    distinct: set[int] = set()
    splits = trees.splits
    nodes = [everything] * len(splits.attributes)
    columns = (splits.attributes, splits.at, splits.missing_left, splits.together, splits.left, splits.right)
    for split, (attribute, at, missing_left, together, to_left, to_right) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        asked = attribute, at, missing_left, *together
        sides = sides_of.get(asked)
        if sides is None:
            own, start = (1 << sizes[attribute]) - 1, starts[attribute]
            others = everything ^ own << start
            left, right = _split(trees, split, own)
            sides = sides_of[asked] = left << start | others, right << start | others
        here, (left, right) = nodes[split], sides
        left &= here
        right &= here
        distinct.add(left)
        distinct.add(right)
        if to_left >= 0:
            nodes[to_left] = left
        if to_right >= 0:
            nodes[to_right] = right
    return _write_rules(distinct - {everything}, sizes, starts)


def _split(trees: BoostedTrees, split: int, everything: int) -> tuple[int, int]:
    """The codes that go left and those that go right at a split. A number is cut in the middle between two codes that
    occur at the site; categories that do not occur there go where all go that are not named."""
    attribute, at = int(trees.splits.attributes[split]), int(trees.splits.at[split])
    codes, kind = trees.codes[attribute].tolist(), trees.layout.kinds[attribute]
    if kind not in (NUMBER, GAPPED):
        left = sum(1 << codes[place] for place in trees.splits.together[split].tolist() if place >= 0)
        return left, everything & ~left
    last = len(codes) - 1 - (kind == GAPPED)
    highest = 0 if at == 0 else (codes[at] + codes[at + 1]) // 2 if at < last else everything.bit_length()
    missing = 1 << MISSING
    left = (1 << (highest + 1)) - 1 & everything & ~missing
    right = everything & ~left & ~missing
    # Without missing values at this site it has not learned where they belong: they fulfil neither side.
    if kind == GAPPED:
        return (left | missing, right) if trees.splits.missing_left[split] else (left, right | missing)
    return left, right


def _write_rules(nodes: set[int], sizes: Sequence[int], starts: Sequence[int]) -> list[Rule]:
    """What each node says, attribute after attribute; nothing of those whose every code it allows."""
    owner = [index for index, size in enumerate(sizes) for _ in range(size)]
    everything = (1 << len(owner)) - 1
    own = [(1 << size) - 1 << start for size, start in zip(sizes, starts, strict=False)]
    written: dict[tuple[int, int], Condition] = {}
    rules = []
    for node in nodes:
        conditions = []
        excluded = everything ^ node
        while excluded:
            attribute = owner[(excluded & -excluded).bit_length() - 1]
            codes = node & own[attribute]
            if not codes:  # nobody
                break
            condition = written.get((attribute, codes))
            if condition is None:
                condition = written[attribute, codes] = _write_bits(attribute, codes >> starts[attribute])
            conditions.append(condition)
            excluded &= ~own[attribute]
        else:
            rules.append(tuple(conditions))
    return sorted(rules)


def _write_bits(attribute: int, codes: int) -> Condition:
    """The condition that the codes of these bits fulfil."""
    ends, at = [attribute], 0
    while codes:
        ends.append(at + (codes & -codes).bit_length() - 1)
        codes >>= ends[-1] - at
        length = (~codes & codes + 1).bit_length() - 1  # of the run that begins with the lowest bit
        ends.append(ends[-1] + length - 1)
        codes >>= length
        at = ends[-1] + 1
    return tuple(ends)
