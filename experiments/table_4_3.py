"""Table 4.3 of the thesis: what constraining an attribute at some sites does to the tree of all (docs/methods.md, 3.4).

python experiments/table_4_3.py DATA [--deals 30]      DATA is a folder with SPECT.train and SPECT.test (UCI)

As there: 267 instances, of which the 12 of the training file that are 0 throughout are kept once, leaves 256; dealt at
random to 16 sites of 16; query a3 and a5 and a8; a13, then a10, blocked at 4, 12 and 16 sites; 16 trees, each learnt
without one site and tried on what the query selects there (37 instances in all). Baseline: the column is not in the
blocking sites' tables at all. Constrained: it is in every table, and the blocking sites' policies eliminate it. Which
sites block is drawn with the deal. The thesis does not give its deal, so the table is for one, and the spread is over
many.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from pathlib import Path

import concilium as cc

SITES, PER_SITE = 16, 16
QUERY = "a3 = 1 and a5 = 1 and a8 = 1"
BLOCKING = (4, 12, 16)
PUBLISHED = {"a13": ("35/37", "36/37"), "a10": ("30/37", "32/37")}

Row = dict[str, int]


def read_instances(folder: Path) -> list[Row]:
    """The 256 instances: class first, then a1 to a22."""
    rows = []
    for name in ("SPECT.train", "SPECT.test"):
        seen_empty = False
        for line in (folder / name).read_text().split():
            values = [int(value) for value in line.split(",")]
            if not any(values) and name == "SPECT.train":
                if seen_empty:
                    continue
                seen_empty = True
            rows.append(
                {"diagnosis": values[0], **{f"a{number}": v for number, v in enumerate(values[1:], start=1)}}
            )
    assert len(rows) == SITES * PER_SITE, len(rows)
    return rows


def deal(rows: list[Row], number: int) -> tuple[dict[str, list[Row]], list[str]]:
    """The instances of each site, and the sites in the order in which they start to block."""
    dice = random.Random(number)
    shuffled = dice.sample(rows, len(rows))
    sites = {f"site {i + 1}": shuffled[i * PER_SITE : (i + 1) * PER_SITE] for i in range(SITES)}
    return sites, dice.sample(list(sites), SITES)


def open_site(name: str, rows: list[Row], blocked: str | None, by_graph: bool) -> cc.Site:
    """A site that keeps an attribute to itself: by a constraint graph, or by not having it."""
    policy = cc.Policy(minimum_patients=1)
    if blocked is not None and by_graph:
        rule = f"graph block {{ node x + eliminate x.{blocked}; }}"
        policy = cc.Policy(minimum_patients=1, constraints=rule)
    elif blocked is not None:
        rows = [{name: value for name, value in row.items() if name != blocked} for row in rows]
    return cc.Site(name, cc.Records.from_rows(rows), policy=policy)


def count_right(
    sites: dict[str, list[Row]], blocked: str | None, blocking: set[str], by_graph: bool
) -> tuple[int, int]:
    """Instances classified correctly over 16 trees, each tried at the site that had no part in it; and all tried."""
    opened = {
        name: open_site(name, rows, blocked if name in blocking else None, by_graph)
        for name, rows in sites.items()
    }
    query = cc.Query.parse(QUERY)
    right = tried = 0
    for left_out, rows in sites.items():
        records = cc.Records.from_rows(rows)
        patients = records.take(query.mask(records))
        if not len(patients):
            continue
        house = cc.House([site for name, site in opened.items() if name != left_out])
        tree = cc.DecisionTree("diagnosis", growth="id3", query=QUERY).fit(house)
        assert blocked not in tree.attributes_ or not blocking
        right += int((tree.predict(patients) == patients.values("diagnosis")).sum())
        tried += len(patients)
    return right, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--deals", type=int, default=30)
    options = parser.parse_args()
    rows = read_instances(options.data)
    sites, order = deal(rows, 1)
    right, tried = count_right(sites, None, set(), True)
    print(f"deal 1, nothing blocked: {right}/{tried} correct")
    print(f"{'blocked':<8} {'sites':>5} {'baseline':>9} {'constrained':>12}   thesis (baseline, constrained)")
    for blocked in PUBLISHED:
        for count in BLOCKING:
            found = [count_right(sites, blocked, set(order[:count]), by_graph) for by_graph in (False, True)]
            shown = [f"{good}/{all_}" for good, all_ in found]
            print(f"{blocked:<8} {count:>5} {shown[0]:>9} {shown[1]:>12}   {', '.join(PUBLISHED[blocked])}")
    print(f"\nover {options.deals} deals, constrained at 4 sites:")
    for blocked in (None, *PUBLISHED):
        spread = []
        for number in range(1, options.deals + 1):
            sites, order = deal(rows, number)
            spread.append(count_right(sites, blocked, set(order[:4]) if blocked else set(), True)[0])
        often = ", ".join(f"{good}: {times}" for good, times in sorted(Counter(spread).items()))
        print(
            f"{blocked or 'nothing':<8} median {statistics.median(spread):g}/{tried}   (correct: deals) {often}"
        )


if __name__ == "__main__":
    main()
