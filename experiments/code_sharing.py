"""Figures 2 and 4 to 7 of Bonomi, Gousheh and Fan (2023) remade: what attacks find, what sharing loses.

python experiments/code_sharing.py DATA [--runs 25] [--figures 2 4-5 6 7 five] [--epsilons 0.1 ... 5] [--pictures DIR]
                                   [--histories]

DATA is the folder of data sets: Diabetes 130-US hospitals at three digits, and for five digits the MIMIC-III demo,
whose 100 patients are the auxiliary ones. In each run 80 % of the patients are auxiliary and the codes of the rest
are shared; the intervals are 95 % over runs. `loss` is the clinical information loss on sensitive codes, `patients`
that of patients who have one (the paper's), `all` that over all codes; `MAP` the largest precision of the attack on
a sensitive code ("-": in no run was one guessed 30 times; in brackets the runs in which one was, if not all); `KL`
the divergence of frequencies. `blocks` is ClinSimRR, `umaxrr` and `suppression` protect the sensitive codes alone,
as in the paper, and `umaxrr, same codes` protects what blocks must protect; `hidden never shown` is blocks in which
codes that are hidden for what they say never come out.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from concilium.codes.sensitive_codes import sensitive_codes
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import (
    BLOT,
    NEVER,
    OURS,
    PLAIN,
    SAME,
    CurvePoint,
    SharingTest,
    draw_curves,
    find_expected_loss,
    measure_point,
)
from concilium.codes.taxonomy import Taxonomy
from concilium.records.sequences import Sequences
from concilium.statistics.distributions import student_quantile
from diabetes_codes import list_diagnoses, read_stays, split

EPSILONS = ["0.1", "0.5", "1", "1.5", "2", "2.5", "3", "4", "5"]
FIGURES = ["2", "4-5", "6", "7", "five"]
GAMMAS = [0.01, 0.05, 0.1]
BARE = {"gamma": None, "gamma_max": None}
SERIES: dict[str, dict[str, object]] = {
    OURS: {"mechanism": "blocks"},
    NEVER: {"mechanism": "blocks", "show_hidden": False},
    SAME: {"mechanism": "umaxrr"},
    PLAIN: {"mechanism": "umaxrr", **BARE},
    BLOT: {"mechanism": "suppression", **BARE},
}
MEASURES: dict[str, Callable[[CurvePoint], float | None]] = {
    "loss": lambda point: point.measured.loss.sensitive,
    "patients": lambda point: point.measured.loss.sensitive_patients,
    "all": lambda point: point.measured.loss.everything,
    "MAP": lambda point: point.measured.largest,
    "KL": lambda point: point.measured.divergence,
    "MAP, histories": lambda point: point.measured.largest_by_history,
}
Key = tuple[str, str]


def say(values: Iterable[float | None]) -> str:
    """The mean and half the interval."""
    listed = list(values)
    known = np.array([value for value in listed if value is not None])
    if not len(known):
        return "-"
    some = "" if len(known) == len(listed) else f" [{len(known)}]"
    if len(known) < 2:
        return f"{known.mean():.3f}{some}"
    half = student_quantile(0.975, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
    return f"{known.mean():.3f} ±{half:.3f}{some}"


def tabulate(title: str, first: str, points: dict[Key, list[CurvePoint]]) -> None:
    print(
        f"\n{title}\n{first:>8} {'':28}"
        + "".join(f"{name:>18}" for name in MEASURES)
        + f"{'codes':>8}{'block':>7}"
    )
    for (key, series), found in points.items():
        cells = "".join(f"{say(map(measure, found)):>18}" for measure in MEASURES.values())
        codes = np.mean([point.protected for point in found])
        block = np.mean([point.block_size for point in found])
        print(f"{key:>8} {series:28}{cells}{codes:8.1f}{block:7.1f}", flush=True)


def remake_2(pictures: Path | None) -> None:
    """The dissimilarity of all categories: how far apart codes of one section, of one chapter and of two are."""
    taxonomy = Taxonomy.icd9(digits=3)
    names = taxonomy.tree.leaves
    distances = taxonomy.distances(names)
    above = np.array(
        [taxonomy.ancestors(code)[:2] + ("",) * (2 - len(taxonomy.ancestors(code))) for code in names]
    )
    chapters, sections = above[:, 0], above[:, 1]
    together, near = chapters[:, None] == chapters, sections[:, None] == sections
    others = ~np.eye(len(names), dtype=bool)
    print(f"\nFigure 2: dissimilarity of {len(names)} categories")
    for label, chosen in (
        ("one section", together & near & others),
        ("one chapter, two sections", together & ~near),
        ("two chapters", ~together),
    ):
        found = distances[chosen]
        print(f"{label:28}{found.mean():8.3f} ({found.min():.3f} to {found.max():.3f})")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        step, size = 4, 2
        cells = distances[::step, ::step]
        squares = [
            f'<rect x="{size * x}" y="{size * y}" width="{size}" height="{size}" '
            f'fill="hsl(200,60%,{20 + 75 * value:.0f}%)"/>'
            for y, row in enumerate(cells)
            for x, value in enumerate(row)
        ]
        side = size * len(cells)
        text = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}">{"".join(squares)}</svg>'
        (pictures / "figure_2.svg").write_text(text, encoding="utf-8")


def remake_4_and_5(
    sequences: Sequences, epsilons: Sequence[str], runs: int, pictures: Path | None, histories: bool
) -> None:
    four: dict[Key, list[CurvePoint]] = defaultdict(list)
    five: dict[Key, list[CurvePoint]] = defaultdict(list)
    for run in range(runs):
        auxiliary, shared = split(sequences, run)
        fitted = CodeSharing(within=math.inf).fit(auxiliary)
        test = SharingTest(fitted, shared)
        blot = measure_point(BLOT, fitted.refit(**SERIES[BLOT]), test, histories)  # epsilon has no say in it
        for epsilon in epsilons:
            for series in (OURS, NEVER, SAME, PLAIN):
                other = fitted.refit(epsilon=epsilon, **SERIES[series])
                four[epsilon, series].append(measure_point(series, other, test, histories))
            four[epsilon, BLOT].append(replace(blot, epsilon=Fraction(epsilon)))
            for gamma in GAMMAS:
                series = f"gamma = {gamma}"
                other = fitted.refit(epsilon=epsilon, gamma=gamma)
                known = four[epsilon, OURS][-1] if other.gamma == fitted.gamma else None
                five[epsilon, series].append(
                    replace(known, series=series) if known else measure_point(series, other, test)
                )
    tabulate(f"Figure 4: three digits, 8 sensitive codes, gamma = 0.05, {runs} runs", "epsilon", four)
    judge(four)
    tabulate(f"Figure 5: blocks, {runs} runs", "epsilon", five)
    for number, points in (("4", four), ("5", five)):
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            flat = [point for found in points.values() for point in found]
            for name, measure in MEASURES.items():
                text = draw_curves(flat, measure, name)
                (pictures / f"figure_{number}_{name}.svg").write_text(text, encoding="utf-8")


def judge(points: dict[Key, list[CurvePoint]]) -> None:
    """The aims, as they came out."""

    def mean(epsilon: str, series: str) -> float:
        return float(np.mean([point.measured.loss.sensitive for point in points[epsilon, series]]))

    print("\nloss on sensitive codes against UMAXRR's (below 1: less is lost)")
    for epsilon in dict.fromkeys(epsilon for epsilon, _ in points):
        ours, never, plain = (mean(epsilon, series) for series in (OURS, NEVER, PLAIN))
        print(
            f"{epsilon:>8} blocks: {ours / mean(epsilon, SAME):.2f} of umaxrr's on the same codes, {ours / plain:.2f} "
            f"of that on the sensitive alone; hidden never shown: {never / plain:.2f}"
        )


def remake_6(sequences: Sequences, runs: int) -> None:
    points: dict[Key, list[CurvePoint]] = defaultdict(list)
    codes = sensitive_codes(Taxonomy.icd9(digits=3))
    for run in range(runs):
        order = np.random.default_rng(run).permutation(len(codes))
        auxiliary, shared = split(sequences, run)
        for count in (2, 4, 6, 8):
            chosen = [codes[place] for place in order[:count]]
            fitted = CodeSharing(sensitive=chosen, within=math.inf).fit(auxiliary)
            test = SharingTest(fitted, shared)
            for series, changes in SERIES.items():
                points[str(count), series].append(measure_point(series, fitted.refit(**changes), test))
    tabulate(f"Figure 6: epsilon = 1, sensitive codes drawn from 8, {runs} runs", "number", points)


def remake_7(title: str, fitted: CodeSharing, epsilons: Sequence[str]) -> None:
    """The loss that is expected for each code, exactly, without a draw."""
    print(f"\n{title}: loss expected over sensitive codes")
    print(
        f"{'epsilon':>8}{'blocks':>9}{'all prot.':>11}{'size':>6}{'codes':>7}{'same codes':>12}{'less':>6}"
        f"{'hidden never shown':>20}{'size':>6}{'umaxrr':>8}{'less':>6}"
    )
    for epsilon in epsilons:
        ours = fitted.refit(epsilon=epsilon)
        never = fitted.refit(epsilon=epsilon, show_hidden=False)
        loss, kept, same, plain = (
            find_expected_loss(other)
            for other in (
                ours,
                never,
                fitted.refit(epsilon=epsilon, mechanism="umaxrr"),
                fitted.refit(epsilon=epsilon, mechanism="umaxrr", **BARE),
            )
        )
        whole = find_expected_loss(ours, everything=True)
        print(
            f"{epsilon:>8}{loss:9.3f}{whole:11.3f}{ours.blocking_.size:6}{len(ours.protected_):7}{same:12.3f}"
            f"{1 - loss / same:6.0%}{kept:20.3f}{never.blocking_.size:6}{plain:8.3f}{1 - kept / plain:6.0%}"
        )


def read_mimic(data: Path) -> Sequences:
    """The diagnoses of the MIMIC-III demo with the day of admission, in their order of importance."""
    folder = data / "mimic3-demo"
    diagnoses = pd.read_csv(folder / "DIAGNOSES_ICD.csv.gz", dtype=str)
    admissions = pd.read_csv(folder / "ADMISSIONS.csv.gz", dtype=str)
    diagnoses.columns, admissions.columns = diagnoses.columns.str.lower(), admissions.columns.str.lower()
    table = diagnoses.dropna(subset="icd9_code").merge(admissions[["hadm_id", "admittime"]], on="hadm_id")
    table = table.assign(place=table["seq_num"].astype(int), day=pd.to_datetime(table["admittime"]))
    table = table.sort_values(["subject_id", "day", "place"])
    origin = pd.Timestamp("2100-01-01")
    lists: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for patient, day, code in zip(table["subject_id"], table["day"], table["icd9_code"], strict=True):
        lists[patient].append(((day - origin) / pd.Timedelta(days=1), code))
    return Sequences(lists.values(), patients=list(lists))


def remake_five(data: Path, epsilons: Sequence[str]) -> None:
    sequences, taxonomy = read_mimic(data), Taxonomy.icd9(digits=5, headings="keep")
    fitted = CodeSharing(taxonomy).fit(sequences)
    bare = CodeSharing(taxonomy, gamma=None, gamma_max=None).fit(sequences)
    hidden = len(fitted.extension_.added)
    print(
        f"\nfive digits, {sequences}: {len(fitted.sensitive)} sensitive codes, {hidden} hidden for what they say"
    )
    remake_7("Figure 7, five digits, gamma = 0.05", fitted, epsilons)
    remake_7("Figure 7, five digits, no code hidden for what it says", bare, epsilons)
    leaves = [
        code for code in fitted.sensitive if taxonomy.under(code) == (code,)
    ]  # a heading brings all below
    print(f"\nFigure 6, five digits, epsilon = 1: sensitive codes drawn from {len(leaves)}, loss expected")
    for count in (15, 30, 45, 60, 90, 117):
        losses = []
        for run in range(5):
            chosen = np.random.default_rng(run).permutation(leaves)[:count].tolist()
            other = CodeSharing(taxonomy, sensitive=chosen).fit(sequences)
            plain = other.refit(mechanism="umaxrr", **BARE)
            losses.append((find_expected_loss(other), find_expected_loss(plain), len(other.protected_)))
        blocks, umaxrr, codes = np.mean(losses, axis=0)
        print(
            f"{count:>8} blocks {blocks:.3f} ({codes:.0f} codes), umaxrr {umaxrr:.3f}, {1 - blocks / umaxrr:.0%} less"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--epsilons", nargs="+", default=EPSILONS)
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--histories", action="store_true", help="attack whole histories as well (slow)")
    options = parser.parse_args()
    if "2" in options.figures:
        remake_2(options.pictures)
    if set(options.figures) - {"2", "five"}:
        sequences = list_diagnoses(read_stays(options.data))
        print(sequences)
        if "4-5" in options.figures:
            remake_4_and_5(sequences, options.epsilons, options.runs, options.pictures, options.histories)
        if "6" in options.figures:
            remake_6(sequences, options.runs)
        if "7" in options.figures:
            auxiliary = split(sequences, 0)[0]
            fitted = CodeSharing(within=math.inf).fit(auxiliary)
            raw = CodeSharing(within=math.inf, prior=0).fit(auxiliary)
            print(
                f"\nhidden for what they say about a sensitive code: {len(fitted.extension_.added)} codes; "
                f"{len(raw.extension_.added)} where shares are taken as counted (prior = 0)"
            )
            remake_7("Figure 7, three digits, gamma = 0.05", fitted, options.epsilons)
    if "five" in options.figures:
        remake_five(options.data, options.epsilons)


if __name__ == "__main__":
    main()
