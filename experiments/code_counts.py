"""A randomised copy beside noisy counts at the same price, and what an attack on patients finds in the copy.

python experiments/code_counts.py DATA [--runs 5] [--patients 20000] [--prices 1.5 5 15 50]

DATA is the folder of data sets (Diabetes 130-US hospitals, ICD-9 at three digits, the 8 categories of section 7332, the
public list hidden). Of each patient the latest 5 entries are shared, so a price is 5 times the epsilon of an entry.
The same questions go to both: the share of patients who have each of 20 codes (the 8 sensitive ones and the 12 most
frequent), and who have 303 together with each of 5 others. `error` is the root of the mean squared difference from what
was recorded in those entries, in percent of patients. `AUC` tells patients who have a sensitive code from the others.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np

from concilium.codes.code_counts import CodeCounts
from concilium.codes.recipient import SharedCodes
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import SharingTest
from concilium.errors import StudyError
from concilium.policy.policy import Budget, Policy
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.sequences import Sequences
from diabetes_codes import list_diagnoses, read_stays

EVENTS = 5
PARTNERS = ["571", "577", "070", "276", "250"]


def measure(sequences: Sequences, price: str, found: dict[str, list[float]]) -> None:
    """One draw and one count at a price."""
    epsilon = Fraction(price) / EVENTS
    sharing = CodeSharing(epsilon=epsilon, max_events=EVENTS, block_size=1).fit()
    latest = sharing.take_latest(sequences)
    names = latest.rename(sharing.taxonomy.normalise_all(latest.labels))
    sets: dict[str, set[int]] = defaultdict(set)
    for owner, code in zip(names.owners.tolist(), names.codes.tolist(), strict=True):
        sets[names.labels[code]].add(owner)
    frequent = sorted(sets, key=lambda code: -len(sets[code]))
    asked = list(dict.fromkeys([*sharing.sensitive, *frequent]))[:20]
    shared = SharedCodes(sharing.share(latest), sharing.propose().design)
    site = Site("north", latest, Policy(budget=Budget("unlimited")))
    most = {"most_codes": EVENTS, "most_pairs": EVENTS - 1}
    counts = CodeCounts(epsilon=price, pairs_with=["303"], **most).fit(House([site]))
    errors: dict[str, list[float]] = defaultdict(list)
    for code in asked:
        true = len(sets[code]) / len(latest)
        errors["copy, codes"].append(shared.prevalence(code)[0].value - true)
        errors["counts, codes"].append(counts.prevalence(code).value - true)
    for code in PARTNERS:
        true = len(sets[code] & sets["303"]) / len(latest)
        try:
            errors["copy, pairs"].append(shared.together("303", code).both.value - true)
        except StudyError:
            continue
        errors["counts, pairs"].append(counts.together("303", code).value - true)
    for name, listed in errors.items():
        found[name].append(100 * float(np.sqrt(np.mean(np.square(listed)))))


def attack(sequences: Sequences, price: str, found: dict[str, list[float]]) -> None:
    """Who has a sensitive code, from a draw with blocks of the best size."""
    sharing = CodeSharing(epsilon=Fraction(price) / EVENTS, max_events=EVENTS).fit()
    measured = SharingTest(sharing, sequences).measure()
    people = measured.patients
    for name, one in (("AUC", people.any_code), ("AUC, number alone", people.by_length)):
        if one.auc is not None and one.top is not None:
            found[name].append(one.auc)
            found[name.replace("AUC", "top 25")].append(one.top)
    found["false entries"].append(measured.loss.changed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--patients", type=int, default=20_000)
    parser.add_argument("--prices", nargs="+", default=["1.5", "5", "15", "50"])
    options = parser.parse_args()
    everyone = list_diagnoses(read_stays(options.data))
    for price in options.prices:
        found: dict[str, list[float]] = defaultdict(list)
        for run in range(options.runs):
            rows = np.random.default_rng(run).permutation(len(everyone))[: options.patients]
            sequences = everyone.take(np.sort(rows))
            measure(sequences, price, found)
            attack(sequences, price, found)
        each = float(Fraction(price) / EVENTS)
        print(f"\nepsilon of each patient {price}, of each entry {each:g}; {options.runs} runs")
        for name, values in found.items():
            print(f"{name:24}{np.mean(values):12.4g}", flush=True)


if __name__ == "__main__":
    main()
