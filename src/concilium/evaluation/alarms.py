"""Alarms: what must be looked into before anybody believes a model.

They are read off the held-out figures (`find_alarms`) and, where the tables of the hospitals are at hand, off these
(`compare_hospitals`: codes that look swapped, the same patients twice, values that only one hospital lacks, other
units). An alarm stands on the model's card, first in its report and in the table of methods. `concilium run --strict`
ends with status 3 where there is one.

Who sees what: figures and tables of single hospitals give alarms on the card only where the release shows the house
each hospital's numbers. Otherwise they are for whoever runs the simulation, who has the tables: the terminal says them,
and `--strict` counts them. Across machines nobody can: under masks the house receives sums, and codes that one hospital
swapped may leave the same sums as honest hospitals do (tests/study/test_masked_differences.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from concilium.models.explanation import say_share
from concilium.models.intervals import share_interval
from concilium.models.prediction import NO_ENTRIES, Entries
from concilium.records.columns import Coded, label
from concilium.records.dictionary import DictionaryEntry, say_value
from concilium.records.query import read_as_numbers
from concilium.records.row_hashes import hash_rows
from concilium.records.table import Records
from concilium.records.units import OTHER_SIZE, find_quartiles, has_size

CHANCE = 0.5
USEFUL = (
    0.7  # an AUC that would be of use: where its interval reaches that far, the figures leave open what it is
)
STEEPEST, FLATTEST = 2.0, 0.5
OTHER_ODDS = 5.0
LEAST_PATIENTS = 10
ENOUGH = 30
FAR, NEAR = 0.3, 0.15  # shares of codes: half the sum of their differences
MOST_CODES = 12
GONE = 0.9
TWICE = 0.1
LEAST_TWICE = 5
LEAST_SPARED = 0.1  # the specificity at which a threshold hardly tells anybody apart
MORE_THAN_CHANCE = 3


def find_alarms(
    metrics: Mapping[str, Any], *, risks: bool = True, dictionary: Entries = NO_ENTRIES
) -> list[str]:
    """What the held-out figures of metrics.json must alarm about, a sentence each; `risks`: whether the model's chances
    are meant to come true."""
    if not metrics.get("patients") or "range" in metrics:
        return []
    return [
        *_judge_auc(metrics["overall"]),
        *_judge_sites(metrics["sites"]),
        *_judge_flags(metrics, dictionary.get(metrics["target"])),
        *(_judge_slope(metrics.get("risks") or {}) if risks else ()),
    ]


def tells_nothing(row: Mapping[str, Any]) -> bool:
    """Whether the interval of an AUC includes a half, or lies below it; without an interval, whether the AUC does."""
    if row.get("auc") is None:
        return False
    known = (row.get("intervals") or {}).get("auc")
    return bool((row["auc"] if known is None else known[0]) <= CHANCE)


def find_reversed(sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Hospitals, of several, where the interval of the AUC lies below a half: patients are ranked the wrong way."""
    known = {site: (row.get("intervals") or {}).get("auc") for site, row in sites.items()}
    return [site for site, one in known.items() if len(sites) > 1 and one is not None and one[1] < CHANCE]


def is_miscalibrated(risks: Mapping[str, Any]) -> bool:
    """Whether the calibration slope is outside 0.5 to 2, and its interval leaves 1 out."""
    slope, between = risks.get("slope"), risks.get("slope_interval")
    if slope is None or FLATTEST <= slope <= STEEPEST:
        return False
    return between is None or not between[0] <= 1 <= between[1]


def _judge_auc(row: Mapping[str, Any]) -> Iterator[str]:
    if not tells_nothing(row):
        return
    known = (row.get("intervals") or {}).get("auc")
    about = f"AUC {row['auc']:.2f}" + (
        "" if known is None else f" (95% interval {known[0]:.2f} to {known[1]:.2f})"
    )
    if known is not None and known[1] < CHANCE:
        yield f"{about}: it ranks patients the wrong way round; is the outcome inverted at a hospital? Do not use it"
    elif known is not None and known[1] >= USEFUL:
        yield (
            f"{about}: cannot be told from chance, because of too few patients or too much noise; do not rely on it"
        )
    else:
        yield f"{about}: no better than chance; do not use it"


def _judge_sites(sites: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Hospitals where the outcome looks inverted, or as if it were defined otherwise."""
    wrong = find_reversed(sites)
    for site, row in sites.items():
        if site in wrong:
            low, high = row["intervals"]["auc"]
            between = f"95% interval {low:.2f} to {high:.2f}"
            yield (
                f"{site}: AUC {row['auc']:.2f} ({between}): patients are ranked the wrong way round there; is the "
                "outcome inverted?"
            )
    counts = {
        site: (row["events"], row["patients"]) for site, row in sites.items() if row.get("events") is not None
    }
    while len(counts) > 1:
        elsewhere = {
            site: tuple(
                sum(one) for one in zip(*(row for name, row in counts.items() if name != site), strict=True)
            )
            for site in counts
        }
        apart = {site: _find_apart(counts[site], elsewhere[site]) for site in counts}
        furthest = max(apart.values())
        if furthest < OTHER_ODDS:
            return
        # The furthest one makes the others look odd beside it; of two either may be the odd one.
        odd = [site for site in counts if len(counts) == 2 or apart[site] == furthest]
        for site in odd:
            (events, patients), (other_events, others) = counts.pop(site), elsewhere[site]
            yield (
                f"{site}: the outcome occurs in {say_share(events / patients)} of {patients} patients, elsewhere in "
                f"{say_share(other_events / others)}: is it defined otherwise there, or inverted?"
            )


def _find_apart(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """By which factor the odds of two shares, (events, patients) each, differ; 1 where that may be chance."""
    if min(one[1], other[1]) < ENOUGH:
        return 1.0
    odds = [(events + 0.5) / (patients - events + 0.5) for events, patients in (one, other)]
    (low, high), (other_low, other_high) = (share_interval(*each) for each in (one, other))
    return max(odds) / min(odds) if high < other_low or other_high < low else 1.0


def _judge_flags(metrics: Mapping[str, Any], entry: DictionaryEntry | None) -> Iterator[str]:
    overall = metrics["overall"]
    spared = overall.get("specificity")
    if overall.get("sensitivity") is None or spared is None or spared >= LEAST_SPARED:
        return
    predicted = f"{metrics['target']} = {say_value(metrics['positive'], entry)}"
    if overall["sensitivity"] == 1 and spared == 0:
        yield f"everybody is predicted {predicted}: it tells nobody apart at this threshold"
    else:
        yield (
            f"of the patients who are not, {say_share(1 - spared)} are predicted {predicted}: it hardly tells anybody "
            "apart at this threshold"
        )


def _judge_slope(risks: Mapping[str, Any]) -> Iterator[str]:
    if not is_miscalibrated(risks):
        return
    slope = risks["slope"]
    wrong = "too extreme" if slope < 1 else "not extreme enough"
    if slope < 0:
        wrong = "the wrong way round"
    yield f"calibration slope {slope:.2f} (1 is right, 0.5 to 2 is tolerable): its risks are {wrong}"


def compare_hospitals(
    tables: Mapping[str, Records],
    columns: Sequence[str],
    numbers: Sequence[str],
    dictionary: Entries = NO_ENTRIES,
) -> Iterator[str]:
    """Hospitals whose tables differ from the others' as mistakes do, a sentence each; `columns` are those of the study,
    `numbers` those of them that are measured."""
    for column in numbers:
        yield from _find_other_sizes(column, tables)
    for column in columns:
        yield from _find_missing(column, tables)
        if column not in numbers:
            yield from _find_swapped(column, tables, dictionary.get(column))
    yield from _find_twice(tables, columns)


def _find_other_sizes(column: str, tables: Mapping[str, Records]) -> Iterator[str]:
    medians = {}
    for name, table in tables.items():
        if column in table:
            numbers = read_as_numbers(table[column])
            known = numbers[np.isfinite(numbers)]
            if known.size >= LEAST_PATIENTS and has_size(quartiles := find_quartiles(known)):
                medians[name] = quartiles[1]
    for name, median in medians.items():
        # Of three or more the middle one is right, if most are; of two either may be the odd one.
        beside = [other for site, other in medians.items() if len(medians) > 2 or site != name]
        others = float(np.median(beside or [median]))
        if max(median, others) >= OTHER_SIZE * min(median, others):
            yield (
                f"{name}: {column}: the median is {median:.4g}, and {others:.4g} at the others: is it another unit "
                "there? Its map converts it (docs/dictionary.md)"
            )


def _find_missing(column: str, tables: Mapping[str, Records]) -> Iterator[str]:
    """A hospital that alone lacks a column's values, or alone has them: a model may learn the hospital from that."""
    held = {name: table for name, table in tables.items() if column in table and len(table) >= ENOUGH}
    absent = {name: _count_missing(table, column) for name, table in held.items()}
    for name in held if len(held) > 1 else ():
        patients = len(held[name])
        others = [other for other in held if other != name]
        here = absent[name] / patients
        there = sum(absent[other] for other in others) / sum(len(held[other]) for other in others)
        if abs(here - there) >= GONE:
            yield (
                f"{name}: {column} is missing for {say_share(here)} of patients, elsewhere for {say_share(there)}: "
                "whether it is missing tells the hospital"
            )


def _count_missing(table: Records, column: str) -> int:
    held = table[column]
    if isinstance(held, Coded):
        return int(np.count_nonzero(held.codes == 0))
    return int(np.count_nonzero(np.isnan(held.numbers)))


def _find_swapped(column: str, tables: Mapping[str, Records], entry: DictionaryEntry | None) -> Iterator[str]:
    """A hospital at which the shares of two codes look exchanged."""
    counts = {name: _count_codes(table, column) for name, table in tables.items() if column in table}
    counts = {name: one for name, one in counts.items() if sum(one.values()) >= ENOUGH}
    codes = sorted({code for one in counts.values() for code in one})
    if len(counts) < 2 or not 2 <= len(codes) <= MOST_CODES:
        return
    for name, own in counts.items():
        rest = sum((one for other, one in counts.items() if other != name), Counter[str]())
        here, there = (np.array([one[code] / sum(one.values()) for code in codes]) for one in (own, rest))
        apart = float(np.abs(here - there).sum() / 2)
        if apart < FAR:
            continue
        best = min(
            combinations(range(len(codes)), 2),
            key=lambda pair: float(np.abs(_exchange(here, pair) - there).sum()),
        )
        if float(np.abs(_exchange(here, best) - there).sum() / 2) <= min(NEAR, apart / 2):
            one, other = (say_value(codes[place], entry) for place in best)
            yield (
                f"{name}: {column}: {one} for {say_share(float(here[best[0]]))} of patients, elsewhere for "
                f"{say_share(float(there[best[0]]))}: are {one} and {other} exchanged there?"
            )


def _count_codes(table: Records, column: str) -> Counter[str]:
    return Counter(label(value) for value in table.values(column) if value is not None)


def _exchange(shares: Any, pair: tuple[int, int]) -> Any:
    exchanged = shares.copy()
    exchanged[list(pair)] = shares[list(reversed(pair))]
    return exchanged


def _find_twice(tables: Mapping[str, Records], columns: Sequence[str]) -> Iterator[str]:
    """Two hospitals that hold the same rows, and far more of them than two patients are the same by chance: by how many
    pairs there are within each hospital."""
    rows: dict[str, Counter[int]] = {}
    for name, table in tables.items():
        shared = [column for column in columns if column in table]
        if len(table) >= ENOUGH and len(shared) == len(columns):
            rows[name] = Counter(
                hash_rows({column: table[column] for column in shared}, len(table))[0].tolist()
            )
    for one, other in combinations(rows, 2):
        sizes = [sum(rows[name].values()) for name in (one, other)]
        pairs = sum(count * (count - 1) // 2 for name in (one, other) for count in rows[name].values())
        chance = pairs / sum(size * (size - 1) / 2 for size in sizes)
        both = sum((rows[one] & rows[other]).values())
        by_chance = chance * sizes[0] * sizes[1]
        if both >= max(LEAST_TWICE + MORE_THAN_CHANCE * by_chance, TWICE * min(sizes)):
            yield f"{one} and {other}: {both} patients are the same in all columns: do they stand in both tables?"
