"""Boosted trees on codes, grown leaf by leaf from histograms (docs/methods.md, 2.3): those that LightGBM grows.

A hospital's table is small beside what libraries of boosting are made for: of the time that LightGBM takes for 333
trees over two hundred patients, most is calls and text. Here all trees are one compiled loop. Every sum is added up in
the order of LightGBM 4 (Ke et al. 2017, NeurIPS), ties are broken as it breaks them, and samples are drawn as it draws
them, so that a test can hold these trees to be the same, split by split: no model depends on which of the two boosted.

What follows from that. How many patients are on a side of a cut is taken from its share of the curvature, not counted
(generation.py counts them before a rule is sent). The rarest category may have no bin of its own. Patients are drawn by
a linear congruential generator: it protects nobody, since everything here follows from the question's seed. One thing
differs: where curvature misleads so far that a side of a cut has no patient, LightGBM fails; here the leaf stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from concilium.compiling import compiled
from concilium.protocol.attributes import MISSING
from concilium.records.blocks import count_codes, fill_room, list_blocks, make_room, read_block

# How an attribute is cut: at a number; at a number, with missing values on either side; one category from the others;
# some categories from the others.
NUMBER, GAPPED, ONE, SOME = 0, 1, 2, 3

TINY = float(np.float32(1e-15))
MOST_SINGLE = 4  # bins, up to which categories are taken one by one
MOST_TOGETHER = 32  # categories that go left at most
SMOOTH = 1.0
FREQUENT = 0.7  # a bin with so many of the patients is not added up, but is what the others leave
COMMON = np.float32(0.99)
BLOCK = 1024  # patients who share a generator

# Columns of what is known of the best cut of a leaf.
GAIN, LEFT_GRADIENT, LEFT_CURVE, RIGHT_GRADIENT, RIGHT_CURVE, LEFT_VALUE, RIGHT_VALUE = range(7)
ATTRIBUTE, THRESHOLD, MISSING_LEFT, TOGETHER = range(4)
NOTHING = -np.inf

Reals = NDArray[np.float64]
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Rows = NDArray[np.int32]
Codes = NDArray[np.unsignedinteger]
# What kernels take of named tuples below: a kernel that was compiled before would be lost with a name that changes.
Arrays = tuple[Any, ...]


class AttributeBins(NamedTuple):
    """The bins of all attributes. `starts` says where those of an attribute begin, `kinds` how it is cut, `frequent`
    which of its bins is what the others leave (0: one that is never asked about)."""

    starts: Integers
    kinds: Integers
    frequent: Integers


class Splits(NamedTuple):
    """The splits of all trees, tree after tree, parents before children. `left` and `right` lead to other splits (below
    0: to a leaf), `at` is the last bin that goes left. Of categories those in `together` do, up to the first -1."""

    attributes: Integers
    at: Integers
    missing_left: Integers
    left: Integers
    right: Integers
    together: Rows


@dataclass(frozen=True)
class BoostedTrees:
    """Trees over the bins of a site's patients, [patient, attribute]; `ends` says where the splits of each tree end,
    after a 0. `codes` has for each bin of an attribute its code (-1: none of its own)."""

    splits: Splits
    ends: Integers
    bins: Codes
    layout: AttributeBins
    codes: list[Integers]


def grow_trees(
    codes: Sequence[Codes],
    numeric: Sequence[bool],
    outcome: NDArray[np.float64],
    *,
    binary: bool,
    sizes: Sequence[int],
    shrinkage: float,
    support: int,
    sample: float,
    seed: int,
    room: Path | None = None,
) -> BoostedTrees:
    """Trees with so many leaves each, at most, every one over a random `sample` of the patients. What is as long as a
    large table is put into `room`: the same numbers in the same order, in pages that the kernel takes back."""

    def make(dtype: DTypeLike, fill: Callable[[slice], NDArray[Any]] | None = None) -> NDArray[Any]:
        made = make_room(patients, dtype, room) if fill is None else fill_room(patients, dtype, room, fill)
        return np.asarray(made)  # a mapped array as any other, for the compiler

    patients = len(outcome)
    bins, layout, order = _find_bins(codes, numeric, room)
    most = sum(sizes) - len(sizes)
    together = np.full((most, 0 if all(numeric) else MOST_TOGETHER), -1, dtype=np.int32)
    splits = Splits._make([*(np.empty(most, dtype=np.int64) for _ in range(5)), together])
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    labels = make(np.float32, lambda block: read_block(outcome, block).astype(np.float32))
    score = _find_first_score(labels, binary)
    _boost(
        bins,
        tuple(layout),
        labels,
        make(np.float64, lambda block: np.full(block.stop - block.start, score)),
        (make(np.float32), make(np.float32), make(np.int32), make(np.int32), make(np.int32)),
        binary,
        np.array(sizes, dtype=np.int64),
        min(max(sizes), patients),  # a leaf has a patient
        shrinkage,
        support,
        sample,
        _find_generators(seed, patients),
        tuple(splits),
        ends,
    )
    return BoostedTrees(Splits._make(column[: ends[-1]] for column in splits), ends, bins, layout, order)


def _find_first_score(outcome: NDArray[np.float32], binary: bool) -> float:
    """The score that all patients begin with: the mean outcome, or its log odds."""
    total = 0.0
    for block in list_blocks(len(outcome)):  # from the first to the last
        known = outcome[block] > 0 if binary else outcome[block]
        total = float(np.add.accumulate(np.concatenate([[total], known]))[-1])
    mean = total / len(outcome)
    score = math.log(mean / (1.0 - mean)) if binary else mean
    return score if abs(score) > TINY else 0.0


def _find_generators(seed: int, patients: int) -> Integers:
    """Where the generator of each block of patients begins, two steps of it from the seed."""
    state = seed % 2**31
    for _ in range(2):
        state = (214013 * state + 2531011) % 2**32
    first = (state >> 16 & 0x7FFF) % 0x7FFF
    return first + np.arange((patients + BLOCK - 1) // BLOCK, dtype=np.int64)


def _find_bins(
    codes: Sequence[Codes], numeric: Sequence[bool], room: Path | None = None
) -> tuple[Codes, AttributeBins, list[Integers]]:
    """The bin of each patient in each attribute, and the codes of bins. Of a number there is one for each code that
    occurs, after an empty one, and a last one for what is missing; of a category one for each that occurs, the
    commonest first, after one for others."""
    found = [_order_codes(own, is_number) for own, is_number in zip(codes, numeric, strict=True)]
    order = [codes_of for codes_of, _, _ in found]
    kind = np.uint8 if max(map(len, order)) <= 256 else np.uint32
    bins = np.asarray(make_room((len(codes[0]), len(codes)), kind, room))
    for block in list_blocks(len(codes[0])):
        for column, (own, (_, place, _)) in enumerate(zip(codes, found, strict=True)):
            bins[block, column] = place.astype(kind)[read_block(own, block)]
    layout = AttributeBins(
        np.cumsum([0, *map(len, order)], dtype=np.int64),
        np.array([_choose_kind(*one) for one in zip(order, numeric, strict=True)], dtype=np.int64),
        np.array([frequent for _, _, frequent in found], dtype=np.int64),
    )
    return bins, layout, order


def _order_codes(codes: Codes, numeric: bool) -> tuple[Integers, Integers, int]:
    """Of one attribute the code of each bin, the bin of each code, and which bin is what the others leave."""
    counts = count_codes(codes, int(codes.max()) + 1)
    present = np.flatnonzero(counts)
    if numeric:
        inner = present[present != MISSING]
        order = np.concatenate([[-1], inner, [MISSING] if counts[MISSING] else []]).astype(np.int64)
        default = 0
    else:
        inner = present[np.argsort(-counts[present], kind="stable")]
        # The rarest has no bin of its own where the others are 99 of 100 patients.
        others = len(codes) - counts[inner[-1]]
        inner = inner[:-1] if others >= int(float(np.float32(len(codes)) * COMMON) + 0.5) else inner
        order = np.concatenate([[-1], inner]).astype(np.int64)
        default = int(np.flatnonzero(order == MISSING)[0]) if MISSING in inner else 0
    place = np.zeros(len(counts), dtype=np.int64)
    place[order[1:]] = np.arange(1, len(order))
    inside = np.bincount(place, counts, minlength=len(order))
    commonest = int(np.argmax(inside))
    return order, place, commonest if inside[commonest] / len(codes) >= FREQUENT else default


def _choose_kind(order: Integers, numeric: bool) -> int:
    if numeric:
        return GAPPED if len(order) > 2 and order[-1] == MISSING else NUMBER
    return ONE if len(order) <= MOST_SINGLE else SOME


@compiled(boundscheck=False, error_model="numpy")
def _boost(
    bins: Codes,
    layout: Arrays,
    outcome: Floats,
    score: Reals,
    space: Arrays,
    binary: bool,
    sizes: Integers,
    most: int,
    shrinkage: float,
    support: int,
    sample: float,
    generators: Integers,
    splits: Arrays,
    ends: Integers,
) -> None:
    """All trees, one after the other, each over what those before it have left to learn."""
    attributes, at, missing_left, to_left, to_right, together_of = splits
    starts, _, _ = layout
    patients, width = bins.shape
    cells = starts[width]
    # The patients of the sample, and those outside of it, are moved along: leaf after leaf.
    gradients, curves, rows, rest, spare = space
    inside = np.zeros(cells, np.bool_)
    # Of each leaf: where its patients begin and how many they are, in the sample and outside, its sums, the attributes
    # that may cut it, its best cut, the split that it is a side of (0: left), and what it adds to the score.
    first, count = np.zeros(most, np.int64), np.zeros(most, np.int64)
    first_rest, count_rest = np.zeros(most, np.int64), np.zeros(most, np.int64)
    histograms = np.empty((most, cells, 2))
    open_to = np.empty((most, width), np.bool_)
    best, chosen = np.empty((most, 7)), np.zeros((most, 4), np.int64)
    sets = np.empty((most, MOST_TOGETHER), np.int32)
    parents, sides, values = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    split = 0
    for tree in range(len(sizes)):
        root, leaves = split, 1
        count[0] = _draw(generators, sample, patients, rows, rest)
        count_rest[0] = patients - count[0]
        _derive(outcome, score, binary, rows[: count[0]], gradients, curves)
        open_to[0, :] = True
        best[0, GAIN] = NOTHING
        if count[0] >= 2 * support:
            gradient, curve = 0.0, 0.0
            for row in rows[: count[0]]:
                gradient += gradients[row]
                curve += curves[row]
            _add_up(bins, starts, rows[: count[0]], gradients, curves, histograms[0])
            _fill(layout, gradient, curve, histograms[0])
            _search(
                layout,
                histograms[0],
                gradient,
                curve,
                count[0],
                support,
                open_to[0],
                best[0],
                chosen[0],
                sets[0],
            )
        while leaves < sizes[tree]:
            leaf, fresh = _choose(best, chosen, leaves), leaves
            if best[leaf, GAIN] <= 0.0:
                break
            attribute = chosen[leaf, ATTRIBUTE]
            together = sets[leaf, : chosen[leaf, TOGETHER]]
            _mark(layout, attribute, chosen[leaf, THRESHOLD], chosen[leaf, MISSING_LEFT], together, inside)
            own = rows[first[leaf] : first[leaf] + count[leaf]]
            gone = _divide(bins, attribute, inside, own, spare)
            if gone == 0 or gone == count[leaf]:
                best[leaf, GAIN] = NOTHING
                continue
            leaves += 1
            first[fresh], count[fresh] = first[leaf] + gone, count[leaf] - gone
            count[leaf] = gone
            own = rest[first_rest[leaf] : first_rest[leaf] + count_rest[leaf]]
            gone = _divide(bins, attribute, inside, own, spare)
            first_rest[fresh], count_rest[fresh] = first_rest[leaf] + gone, count_rest[leaf] - gone
            count_rest[leaf] = gone
            attributes[split], at[split] = attribute, chosen[leaf, THRESHOLD]
            missing_left[split] = chosen[leaf, MISSING_LEFT]
            to_left[split] = to_right[split] = -1
            for place in range(len(together)):
                together_of[split, place] = together[place]
            if split > root:
                if sides[leaf] == 0:
                    to_left[parents[leaf]] = split
                else:
                    to_right[parents[leaf]] = split
            parents[leaf], sides[leaf], parents[fresh], sides[fresh] = split, 0, split, 1
            values[leaf], values[fresh] = best[leaf, LEFT_VALUE], best[leaf, RIGHT_VALUE]
            split += 1
            left_gradient, left_curve = best[leaf, LEFT_GRADIENT], best[leaf, LEFT_CURVE]
            right_gradient, right_curve = best[leaf, RIGHT_GRADIENT], best[leaf, RIGHT_CURVE]
            best[leaf, GAIN] = best[fresh, GAIN] = NOTHING
            if leaves == sizes[tree] or (count[leaf] < 2 * support and count[fresh] < 2 * support):
                continue
            # The smaller side is added up; the larger one is what the parent has, whose sums are in the place of the
            # side that goes left, less that.
            small, large = (leaf, fresh) if count[leaf] < count[fresh] else (fresh, leaf)
            for attribute in range(width):
                open_to[fresh, attribute] = open_to[leaf, attribute]
            if large == fresh:
                for cell in range(cells):
                    histograms[fresh, cell, 0] = histograms[leaf, cell, 0]
                    histograms[fresh, cell, 1] = histograms[leaf, cell, 1]
            own = rows[first[small] : first[small] + count[small]]
            _add_up(bins, starts, own, gradients, curves, histograms[small])
            for side in (small, large):
                gradient = left_gradient if side == leaf else right_gradient
                curve = left_curve if side == leaf else right_curve
                sums = histograms[side]
                if side == small:
                    _fill(layout, gradient, curve, sums)
                else:
                    for cell in range(cells):
                        sums[cell, 0] -= histograms[small, cell, 0]
                        sums[cell, 1] -= histograms[small, cell, 1]
                _search(
                    layout,
                    sums,
                    gradient,
                    curve,
                    count[side],
                    support,
                    open_to[side],
                    best[side],
                    chosen[side],
                    sets[side],
                )
        ends[tree + 1] = split
        if split > root:
            for leaf in range(leaves):
                value = values[leaf] * shrinkage
                for row in rows[first[leaf] : first[leaf] + count[leaf]]:
                    score[row] += value
                for row in rest[first_rest[leaf] : first_rest[leaf] + count_rest[leaf]]:
                    score[row] += value


@compiled(boundscheck=False, error_model="numpy")
def _draw(generators: Integers, sample: float, patients: int, rows: Rows, rest: Rows) -> int:
    """The patients of the next sample, and the rest, each in their order; how many are in the sample."""
    if sample >= 1.0:
        for row in range(patients):
            rows[row] = row
        return patients
    drawn = 0
    for row in range(patients):
        block = row // BLOCK
        state = (214013 * generators[block] + 2531011) & 0xFFFFFFFF
        generators[block] = state
        if (state >> 16 & 0x7FFF) / 32768.0 < sample:
            rows[drawn] = row
            drawn += 1
        else:
            rest[row - drawn] = row
    return drawn


@compiled(boundscheck=False, error_model="numpy")
def _derive(
    outcome: Floats, score: Reals, binary: bool, rows: Rows, gradients: Floats, curves: Floats
) -> None:
    """The first and second derivative of each patient's loss."""
    for row in rows:
        if binary:
            sign = 1.0 if outcome[row] > 0 else -1.0
            response = -sign / (1.0 + np.exp(sign * score[row]))
            gradients[row] = response
            curves[row] = abs(response) * (1.0 - abs(response))
        else:
            gradients[row] = score[row] - outcome[row]
            curves[row] = 1.0


@compiled(boundscheck=False, error_model="numpy")
def _add_up(
    bins: Codes, starts: Integers, rows: Rows, gradients: Floats, curves: Floats, histogram: Reals
) -> None:
    """For each bin of each attribute the sums over the patients in it."""
    histogram[:] = 0.0
    for row in rows:
        gradient, curve = float(gradients[row]), float(curves[row])
        for attribute in range(bins.shape[1]):
            cell = histogram[starts[attribute] + bins[row, attribute]]
            cell[0] += gradient
            cell[1] += curve


@compiled(boundscheck=False, error_model="numpy")
def _fill(layout: Arrays, gradient: float, curve: float, histogram: Reals) -> None:
    """What the frequent bin of an attribute has: all, less what the other bins have."""
    starts, _, frequent = layout
    for attribute in range(len(frequent)):
        if frequent[attribute] > 0:
            place = starts[attribute] + frequent[attribute]
            rest, bent = gradient, curve
            for cell in range(starts[attribute], starts[attribute + 1]):
                if cell != place:
                    rest -= histogram[cell, 0]
                    bent -= histogram[cell, 1]
            histogram[place, 0], histogram[place, 1] = rest, bent


@compiled(boundscheck=False, error_model="numpy")
def _choose(best: Reals, chosen: Integers, leaves: int) -> int:
    """The leaf whose cut gains most; of equals the one that is cut at the attribute that comes first."""
    found = 0
    for leaf in range(1, leaves):
        if best[leaf, GAIN] > best[found, GAIN] or (
            best[leaf, GAIN] == best[found, GAIN] and chosen[leaf, ATTRIBUTE] < chosen[found, ATTRIBUTE]
        ):
            found = leaf
    return found


@compiled(boundscheck=False, error_model="numpy")
def _search(
    layout: Arrays,
    histogram: Reals,
    gradient: float,
    curve: float,
    patients: int,
    support: int,
    open_to: NDArray[np.bool_],
    best: Reals,
    chosen: Integers,
    together: Rows,
) -> None:
    """The best cut of a leaf with these sums; attributes that cannot cut it cannot cut what is below it either."""
    starts, kinds, frequent = layout
    best[GAIN] = NOTHING
    curve = curve + 2.0 * TINY
    without = gradient * gradient / curve
    for attribute in range(len(kinds)):
        if not open_to[attribute]:
            continue
        cells = histogram[starts[attribute] : starts[attribute + 1]]
        kind = kinds[attribute]
        if kind in (NUMBER, GAPPED):
            gain, threshold, to_left, left_gradient, left_curve, can = _search_number(
                cells,
                kind == GAPPED,
                frequent[attribute] == 0,
                gradient,
                curve,
                patients,
                support,
                without,
            )
            size = 0
        else:
            gain, threshold, size, left_gradient, left_curve, can = _search_category(
                cells, kind == ONE, gradient, curve, patients, support, without
            )
            to_left = False
        open_to[attribute] = can
        if gain > best[GAIN]:
            best[GAIN] = gain
            best[LEFT_GRADIENT], best[LEFT_CURVE] = left_gradient, left_curve - TINY
            best[RIGHT_GRADIENT], best[RIGHT_CURVE] = gradient - left_gradient, curve - left_curve - TINY
            best[LEFT_VALUE] = -left_gradient / left_curve
            best[RIGHT_VALUE] = -(gradient - left_gradient) / (curve - left_curve)
            chosen[ATTRIBUTE], chosen[THRESHOLD] = attribute, threshold
            chosen[MISSING_LEFT], chosen[TOGETHER] = to_left, abs(size)
            if kind == ONE:
                together[0] = threshold
            elif kind == SOME:
                order = _order_categories(cells, patients / curve)
                for place in range(abs(size)):
                    together[place] = order[place] if size > 0 else order[len(order) - 1 - place]


@compiled(boundscheck=False, error_model="numpy")
def _search_number(
    cells: Reals,
    gapped: bool,
    first_open: bool,
    gradient: float,
    curve: float,
    patients: int,
    support: int,
    without: float,
) -> tuple[float, int, bool, float, float, bool]:
    """The best cut between two bins: its gain, the last bin on the left, whether what is missing goes there, the sums
    on the left, and whether any cut gains. Missing values are in the last bin; first they are taken to the left, then
    to the right."""
    factor = patients / curve
    size = len(cells)
    found, threshold, left_gradient, left_curve = NOTHING, 0, 0.0, 0.0
    own_gradient, own_curve, own = 0.0, TINY, 0
    for cell in range(size - 1 - gapped, 0, -1):
        own_gradient += cells[cell, 0]
        own_curve += cells[cell, 1]
        own += int(cells[cell, 1] * factor + 0.5)
        if own < support or own_curve < 0.0:
            continue
        if patients - own < support or curve - own_curve < 0.0:
            break
        other_gradient, other_curve = gradient - own_gradient, curve - own_curve
        gain = other_gradient * other_gradient / other_curve + own_gradient * own_gradient / own_curve
        if gain > without and gain > found:
            found, threshold, left_gradient, left_curve = gain, cell - 1, other_gradient, other_curve
    can = found > NOTHING
    gained, to_left = found - without, True
    if not gapped:
        return gained, threshold, to_left, left_gradient, left_curve, can
    begin, own_gradient, own_curve, own = 0, 0.0, TINY, 0
    if first_open:
        begin, own_gradient, own_curve, own = 1, gradient, curve - TINY, patients
        for cell in range(1, size):
            own_gradient -= cells[cell, 0]
            own_curve -= cells[cell, 1]
            own -= int(cells[cell, 1] * factor + 0.5)
    found = NOTHING
    for cell in range(begin, size - 1):
        own_gradient += cells[cell, 0]
        own_curve += cells[cell, 1]
        own += int(cells[cell, 1] * factor + 0.5)
        if own < support or own_curve < 0.0:
            continue
        if patients - own < support or curve - own_curve < 0.0:
            break
        other_gradient, other_curve = gradient - own_gradient, curve - own_curve
        gain = own_gradient * own_gradient / own_curve + other_gradient * other_gradient / other_curve
        if gain > without:
            can = True
            if gain > found:
                found = gain
                if gain > gained + without:
                    threshold, to_left, left_gradient, left_curve = cell, False, own_gradient, own_curve
    if found > gained + without:
        gained = found - without
    return gained, threshold, to_left, left_gradient, left_curve, can


@compiled(boundscheck=False, error_model="numpy")
def _order_categories(cells: Reals, factor: float) -> Integers:
    """The bins with patients, by their mean gradient, smoothed."""
    order, means = np.empty(len(cells), np.int64), np.empty(len(cells))
    count = 0
    for cell in range(1, len(cells)):
        if int(cells[cell, 1] * factor + 0.5) >= SMOOTH:
            means[cell] = cells[cell, 0] / (cells[cell, 1] + SMOOTH)
            order[count] = cell
            count += 1
    return _sort(order[:count], means)


@compiled(boundscheck=False, error_model="numpy")
def _sort(order: Integers, means: Reals) -> Integers:
    """By rising means, equal ones as they stand: runs are merged, each time twice as long ones. (NumPy's own takes a
    second to compile.)"""
    other, size = np.empty(len(order), np.int64), 1
    while size < len(order):
        for begin in range(0, len(order), 2 * size):
            one, middle = begin, min(begin + size, len(order))
            two, end = middle, min(begin + 2 * size, len(order))
            for place in range(begin, end):
                if two >= end or (one < middle and means[order[one]] <= means[order[two]]):
                    other[place] = order[one]
                    one += 1
                else:
                    other[place] = order[two]
                    two += 1
        order, other = other, order
        size *= 2
    return order


@compiled(boundscheck=False, error_model="numpy")
def _search_category(
    cells: Reals, single: bool, gradient: float, curve: float, patients: int, support: int, without: float
) -> tuple[float, int, int, float, float, bool]:
    """The best set of categories to go left: its gain, the one (where they go one by one), how many of those with the
    least mean gradient they are (below 0: of those with the largest), the sums on the left, whether any set gains."""
    factor = patients / curve
    found, threshold, size, left_gradient, left_curve = NOTHING, 0, 0, 0.0, 0.0
    if single:
        for cell in range(1, len(cells)):
            own = int(cells[cell, 1] * factor + 0.5)
            other_curve = curve - cells[cell, 1] - TINY
            if own < support or patients - own < support or cells[cell, 1] < 0.0 or other_curve < 0.0:
                continue
            other_gradient = gradient - cells[cell, 0]
            bent = cells[cell, 1] + TINY
            gain = other_gradient * other_gradient / other_curve + cells[cell, 0] * cells[cell, 0] / bent
            if gain > without and gain > found:
                found, threshold, size, left_gradient, left_curve = gain, cell, 1, cells[cell, 0], bent
        return found - without, threshold, size, left_gradient, left_curve, found > NOTHING
    order = _order_categories(cells, factor)
    most = min(MOST_TOGETHER, (len(order) + 1) // 2)
    for direction in (1, -1):
        own_gradient, own_curve, own, group = 0.0, TINY, 0, 0
        for place in range(most):
            cell = order[place] if direction == 1 else order[len(order) - 1 - place]
            patients_of = int(cells[cell, 1] * factor + 0.5)
            own_gradient += cells[cell, 0]
            own_curve += cells[cell, 1]
            own += patients_of
            group += patients_of
            if own < support or own_curve < 0.0:
                continue
            if patients - own < support or curve - own_curve < 0.0:
                break
            if group < support:
                continue
            group = 0
            other_gradient, other_curve = gradient - own_gradient, curve - own_curve
            gain = own_gradient * own_gradient / own_curve + other_gradient * other_gradient / other_curve
            if gain > without and gain > found:
                found, size, left_gradient, left_curve = (
                    gain,
                    direction * (place + 1),
                    own_gradient,
                    own_curve,
                )
    return found - without, threshold, size, left_gradient, left_curve, found > NOTHING


@compiled(boundscheck=False, error_model="numpy")
def _mark(
    layout: Arrays,
    attribute: int,
    threshold: int,
    to_left: int,
    together: Rows,
    inside: NDArray[np.bool_],
) -> None:
    """Which bins of an attribute go left at a split."""
    starts, kinds, _ = layout
    kind, size = kinds[attribute], starts[attribute + 1] - starts[attribute]
    inside[:size] = False
    if kind in (NUMBER, GAPPED):
        inside[: threshold + 1] = True
        if kind == GAPPED:
            inside[size - 1] = to_left != 0
    else:
        for cell in together:
            inside[cell] = True


@compiled(boundscheck=False, error_model="numpy")
def _divide(bins: Codes, attribute: int, inside: NDArray[np.bool_], rows: Rows, spare: Rows) -> int:
    """Put the patients who go left before the others, each side in its order; how many go left."""
    gone, rest = 0, 0
    for row in rows:
        if inside[bins[row, attribute]]:
            rows[gone] = row
            gone += 1
        else:
            spare[rest] = row
            rest += 1
    for place in range(rest):
        rows[gone + place] = spare[place]
    return gone
