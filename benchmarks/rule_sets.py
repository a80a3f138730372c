"""Rule sets of 40,336 clients with 100 rules each: reading them, the index, one template, all structures at once, and a
whole discovery at epsilon = 1 by three gateways of the same process.

python benchmarks/rule_sets.py [--clients 40336] [--rules 100] [--distinct 50000]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

import numpy as np

import concilium as cc
from concilium.temporal import stl
from concilium.temporal.rule_grammar import STRUCTURE
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.search_space import Breeder, SearchSpace
from concilium.temporal.template_index import TemplateIndex

VITALS = ["HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp"]
TEMPLATES = [
    "?",
    "? and ?",
    "G[0,?] ?",
    "G[?](HR >= ? and ? < ?)",
    "? and G[?] HR >= 90",
    "G[0,5](HR >= 60 and HR < 100)",
]
Made = TypeVar("Made")


def measure(name: str, make: Callable[[], Made], times: int = 1) -> Made:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        made = make()
        seconds.append(time.perf_counter() - start)
    print(f"{name:45} {min(seconds) * 1e3:12,.2f} ms", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=40_336)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--distinct", type=int, default=50_000)
    options = parser.parse_args()
    space = SearchSpace.from_ranges(VITALS, 6)
    breeder = Breeder(space, Random(1))
    texts = [str(space.unscale_formula(breeder.draw().canonical())) for _ in range(options.distinct)]
    chosen = np.random.default_rng(1).integers(0, len(texts), (options.clients, options.rules)).tolist()
    clients = [[texts[rule] for rule in row] for row in chosen]
    rule_sets = measure("reading", lambda: RuleSets(clients))
    print(rule_sets)
    index = measure("index", lambda: TemplateIndex(rule_sets))
    measure("levels", lambda: index.find_templates(STRUCTURE))
    index.match(stl.parse("?"))
    for text in TEMPLATES:
        template = stl.parse(text)
        measure(f"one template, {text}", lambda template=template: index.match(template), 5)  # type: ignore[misc]
    structures = index.find_templates(STRUCTURE)
    measure(f"all {len(structures):,} structures, capped", lambda: index.count(structures, 100))
    shares = [rule_sets.take(np.arange(len(rule_sets)) % 3 == gateway) for gateway in range(3)]
    bins = {name: list(numbers) for name, numbers in space.limits.items()}

    def discover() -> cc.RuleDiscovery:
        sites = [cc.Site(f"gateway {number}", share) for number, share in enumerate(shares)]
        return cc.RuleDiscovery("sepsis", bins=bins, horizon=6).fit(cc.House(sites))

    print(f"{len(measure('a whole discovery, epsilon = 1', discover).rules_)} rules")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
