"""Tables 1 to 3 and Figure 12 of the paper on rule discovery, on patients that are openly available.

    python experiments/rule_tables.py DATA [--whole] [--rules all.rules]

Patients: the sepsis challenge of 2019 (the paper's), the stays of 2012 (death), and the glucose sensors of Shanghai,
where the paper has registries that cannot be had. Table 2 describes the patients, Table 3 the rules that the local
learner finds for each; Figure 12 says how many structures at least a share of the patients has. Table 1 is the paper's
own: which of its nine rules each grammar can come to, and what a wider grammar costs, as coverage and precision of a
search at epsilon = 1 under `secure-sum` for the sepsis patients.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from concilium.privacy.accounting import rho_for_epsilon
from concilium.records.series_description import OddValues
from concilium.temporal.discovery_search import LevelSearch
from concilium.temporal.formula import Limit
from concilium.temporal.learning import LabelledWindows, RuleLearner
from concilium.temporal.parsing import parse
from concilium.temporal.rule_grammar import STRUCTURE, RuleGrammar
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.rule_task import ALL_RELATIONS
from concilium.temporal.search_space import SearchSpace
from concilium.temporal.template_index import TemplateIndex
from rule_discovery import DELTA, Gateway, find_truth, judge, keep_rules, learn_rules, load_rules, run
from rule_discovery_figures import ICU
from temporal_rules import VITALS, read_glucose, read_mortality, read_sepsis

SHARES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# The paper's examples. Where it writes "= 1.0", both limits are written.
TABLE_1 = {
    "ICU": (
        "G[0,0](HR >= 80.369 and Pulse >= 74.034)",
        "MET >= 0.007 U[0,1] (DeathProb >= 0.032 and DeathProb <= 0.032)",
        "F[0,1](BUN <= 12.889 and Creatinine >= 0.723)",
    ),
    "Sepsis": (
        "Temp >= 9.059 U[1,1] BaseExcess >= 0.048",
        "G[0,1](((HGB >= 0.385 and MAP <= 110.015) or BilirubinDirect <= 107.835) and AST >= 47.955)",
        "F[1,2](((PaCO2 >= 0.171 or Chloride <= 8.029) -> Potassium >= 0.014) and SepsisProb >= 0.85)",
    ),
    "T1D": (
        "HbA1c >= 7.571 U[1,2] (Hypoglycemia >= 1 and Hypoglycemia <= 1)",
        "G[0,1]((InsulinPerKg <= 0.305 -> A1cGoal >= 0.518) and GFR <= 89)",
        "F[1,1](((BMI >= 27.066 or Height >= 180.022) -> HbA1c <= 6) and Bolus >= 57.424)",
    ),
}


def describe(name: str, windows: LabelledWindows) -> None:
    """A line of Table 2."""
    patients = np.unique(windows.owners)
    positive = np.unique(windows.owners[windows.labels > 0])
    print(
        f"| {name} | {len(patients):,} | {len(windows.series.names)} | {windows.series.step} | {len(windows.labels):,} "
        f"| {len(windows.labels) / len(patients):.1f} | {len(positive) / len(patients):.1%} "
        f"| {windows.labels.mean():.1%} |"
    )


def characterise(name: str, rule_sets: RuleSets) -> None:
    """A line of Table 3; operators are G, F, U, and, or and ->."""
    operators = np.array(
        [sum(not isinstance(part, Limit) for part in rule.walk()) for rule in rule_sets.rules], dtype=np.int64
    )
    print(
        f"| {name} | {len(rule_sets.members):,} | {len(rule_sets.rules):,} | {rule_sets.counts.mean():.1f} "
        f"| {operators[rule_sets.members].mean():.2f} |"
    )


def break_down(name: str, index: TemplateIndex) -> None:
    """A line of Figure 12: structures that at least a share of the patients has."""
    counts = index.count(index.find_templates(STRUCTURE)) / len(index.rule_sets)
    print(f"| {name} | {' | '.join(f'{int((counts >= share).sum()):,}' for share in SHARES)} |")


def compare_grammars(index: TemplateIndex, space: SearchSpace, runs: int) -> None:
    truth, gateway = find_truth(index, Fraction(1, 100)), Gateway(index, 1)
    rho = rho_for_epsilon("1", DELTA)
    learned = RuleGrammar.from_space(space)
    wide = replace(learned, wide=True, relations=ALL_RELATIONS)
    grammars: Mapping[str, RuleGrammar] = {
        "as learned, 3 limits": learned,
        "wide, 3 limits": wide,
        "wide, 4 limits": replace(wide, limits=4),
    }
    print("\n| grammar | rules of Table 1 | skeletons | coverage, precision |\n|---|---|---|---|")
    for name, grammar in grammars.items():
        held = sum(_reaches(grammar, text) for texts in TABLE_1.values() for text in texts)
        found = [
            judge(
                [
                    rule.structure
                    for rule in run(LevelSearch(grammar, Fraction(1, 100), rho, 100).run(), gateway).rules
                ],
                truth,
            )
            for _ in range(runs)
        ]
        coverage, precision = np.mean(found, axis=0)
        print(
            f"| {name} | {held} of 9 | {len(grammar.skeletons):,} | {coverage:.2f}, {precision:.2f} |",
            flush=True,
        )


def _reaches(grammar: RuleGrammar, text: str) -> bool:
    rule = parse(text)
    return replace(grammar, edges=dict.fromkeys(rule.variables, (0.0,))).produces(rule)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--whole", action="store_true", help="all 40,336 sepsis patients; without it 2,000")
    parser.add_argument("--rules", type=Path, help="where the rules of the sepsis patients are kept")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", OddValues)
    space = SearchSpace.from_ranges(VITALS, 6)
    if options.rules is not None and options.rules.exists():
        sepsis = load_rules(options.rules)
    else:
        sepsis = learn_rules(options.data, space, options.whole, 1)
        if options.rules is not None:
            keep_rules(options.rules, sepsis)
    windows = {"death": read_mortality(options.data), "glucose": read_glucose(options.data)}
    spaces = {
        "death": SearchSpace.from_ranges(ICU, 11),
        "glucose": SearchSpace({"CGM": (54, 70, 100, 140, 180, 250)}, 8),
    }
    rule_sets = {"sepsis": sepsis}
    for name, own in windows.items():
        learned = RuleLearner(space=spaces[name], rules=100, seed=1).learn_each(own)
        rule_sets[name] = RuleSets([[rule.formula for rule in learned[row]] for row in sorted(learned)])
    print("| Table 2 | patients | variables | step | windows | a patient | with the outcome | of windows |")
    print("|---|---|---|---|---|---|---|---|")
    describe("sepsis", read_sepsis(options.data, options.whole))
    for name, own in windows.items():
        describe(name, own)
    print(
        "\n| Table 3 | rules of patients | different rules | rules a patient | operators a rule |"
        "\n|---|---|---|---|---|"
    )
    for name, sets in rule_sets.items():
        characterise(name, sets)
    print(f"\n| Figure 12: structures of at least | {' | '.join(f'{share:.1%}' for share in SHARES)} |")
    print(f"|---|{'---|' * len(SHARES)}")
    indices = {name: TemplateIndex(sets) for name, sets in rule_sets.items()}
    for name, index in indices.items():
        break_down(name, index)
    compare_grammars(indices["sepsis"], space, options.runs)


if __name__ == "__main__":
    main()
