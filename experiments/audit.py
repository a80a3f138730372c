"""What models give away of the patients they learned from: trees, rules and private models of the same intensive care.

python experiments/audit.py [--shadows 64] [--page audit.html]

SurvSet's rhc (5,735 critically ill adults; who dies within 30 days), dealt to five hospitals by a hash. Half of each
hospital's patients are held back: models learn from the others, and both halves are audited as this does:
    concilium audit MODEL --study STUDY --attribute cancer --shadows 64
Eight models of the same half: trees of four questions, with and without a least number of patients to a branch,
trees of any depth on clinical bins and on bins so fine that they group hardly anybody, RuleFit, and trees and naive
Bayes with differential privacy. The page is that of the tree of any depth.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from concilium.cli.demo import STUDIES
from concilium.cli.demo_patients import deal_patients, find_patients
from concilium.consult.audit_report import render_audit
from concilium.evaluation.attacks import Estimate
from concilium.evaluation.audit import Audit, say_meaning
from concilium.study import Study
from concilium.study.finished_models import AuditOrder

STUDY = """\
[study]
name = "who gives away whom"
method = "{method}"
target = "died"
positive = "yes"
[privacy]
{privacy}
[sites]
records = "patients.csv"
by = "hospital"
[schema]
{schema}
{values}
[evaluate]
holdout = 0.5
"""
HOSPITALS = 5
PRIVATE = 'release = "private"\nepsilon = {epsilon}'
EXACT = 'release = "exact"'
# Every attribute cut at so many even steps of its range: bins that hardly group anybody.
FINE = 100
ATTRIBUTE = "cancer"
BINS: dict[str, list[float]] = tomllib.loads((STUDIES / "intensive-care" / "study.toml").read_text())["bins"]


def describe_bins(table: Any, fine: bool) -> str:
    lines = []
    for name, edges in BINS.items():
        if fine:
            low, high = float(table[name].min()), float(table[name].max())
            edges = [round(low + (high - low) * step / FINE, 6) for step in range(1, FINE)]
        lines.append(f'"{name}" = {edges}')
    return "\n".join(lines)


def list_values(table: Any) -> str:
    """Values of all attributes that are not measured, as a private study must state them."""
    listed = {
        name: sorted(table[name].dropna().astype(str).unique())
        for name in table
        if name not in BINS and name != "hospital"
    }
    return "[values]\n" + "\n".join(f'"{name}" = {values}' for name, values in listed.items())


def make_studies() -> dict[str, tuple[str, str, str, bool]]:
    """Method, epsilon where it is private, the method's section, whether bins are fine, by what tables call it."""
    return {
        "tree, depth 4": ("tree", "", '[tree]\ngrowth = "id3"\nmax_depth = 4\n', False),
        "tree, depth 4, 20 to a branch": (
            "tree",
            "",
            '[tree]\ngrowth = "id3"\nmax_depth = 4\nmin_leaf = 20\n',
            False,
        ),
        "tree, any depth": ("tree", "", '[tree]\ngrowth = "id3"\n', False),
        "tree, any depth, fine bins": ("tree", "", '[tree]\ngrowth = "id3"\n', True),
        "RuleFit": ("rulefit", "", "[rulefit]\ntrees = 100\n", False),
        "private tree, epsilon 1": ("tree", "1.0", "[tree]\nmax_depth = 4\n", False),
        "private tree, epsilon 8": ("tree", "8.0", "[tree]\nmax_depth = 4\n", False),
        "private naive Bayes, epsilon 1": ("naive-bayes", "1.0", "", False),
    }


def audit(name: str, table: Any, folder: Path, shadows: int) -> tuple[Audit, float]:
    """A study of the patients run and audited: its audit, and the AUC of its model on those held back."""
    method, epsilon, section, fine = make_studies()[name]
    text = STUDY.format(
        method=method,
        schema="\n".join(f'"{name}" = "number"' for name in BINS),
        privacy=PRIVATE.format(epsilon=epsilon) if epsilon else EXACT,
        values=list_values(table) if epsilon else "",
    )
    # An epsilon of 8 is more than hospitals without a budget of their own allow.
    (folder / "policy.toml").write_text('[budget]\ntotal = "unlimited"\n')
    text = text.replace('by = "hospital"', 'by = "hospital"\npolicy = "policy.toml"')
    text += "\n[bins]\n" + describe_bins(table, fine) + "\n" + section
    table.to_csv(folder / "patients.csv", index=False)
    (folder / "study.toml").write_text(text)
    study = Study.read(folder / "study.toml")
    results = study.run(folder / name.replace(" ", "-"))
    order = AuditOrder(results.files["model.json"], study=study, attribute=ATTRIBUTE, shadows=shadows)
    return order.run(), results.metrics["auc"]


def show(estimate: Estimate | None, percent: bool = False) -> str:
    if estimate is None:
        return "–"
    form = ".1%" if percent else ".3f"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    options = parser.parse_args()
    table = deal_patients(find_patients()("rhc"), days=30)
    table["hospital"] = [f"hospital {1 + int(name[-2:]) % HOSPITALS}" for name in table["hospital"]]
    audits: dict[str, Audit] = {}
    with tempfile.TemporaryDirectory() as place:
        print("| model | AUC | attack | TPR - FPR | AUC | found at 1 % | at 0.1 % | bound |")
        print("|---|---|---|---|---|---|---|---|")
        for name in make_studies():
            if options.only not in name:
                continue
            audits[name], auc = audit(name, table, Path(place), options.shadows)
            bound = audits[name].bound
            allowed = "–" if bound is None else f"{bound.by_epsilon:.3f}, by rho {bound.least:.3f}"
            for attack, figures in audits[name].membership.items():
                found = [show(one, percent=True) for one in figures.found.values()]
                print(
                    f"| {name} | {auc:.3f} | {attack} | {show(figures.advantage)} | {show(figures.auc)} | "
                    f"{' | '.join(found)} | {allowed} |",
                    flush=True,
                )
    print()
    print(
        f"| {ATTRIBUTE}, members / others | marginal | imputation | model | both | model: difference | both |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, one in audits.items():
        assert one.attribute is not None
        guesses = one.attribute.guesses
        rates = [f"{g.members.value:.1%} / {g.others.value:.1%}" for g in guesses.values()]
        gains = [show(guesses[way].advantage) for way in ("model", "both")]
        print(f"| {name} | {' | '.join(rates)} | {' | '.join(gains)} |")
    for name, one in audits.items():
        print()
        print(f"{name}:")
        for sentence in say_meaning(one):
            print(f"  {sentence}")
    if options.page is not None and audits:
        chosen = "tree, any depth" if "tree, any depth" in audits else next(iter(audits))
        options.page.write_text(render_audit(audits[chosen], chosen))


if __name__ == "__main__":
    main()
