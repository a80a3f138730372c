"""Chapter 6 of the thesis on real hospitals: alone, together, pooled or borrowed (Tables 6.1, 6.4-6.7 and 6.9-6.11).

python experiments/collaboration.py DATA      DATA is a folder with aplore3/burn1000.csv (Hosmer et al., aplore3)

Two studies. Burns: who dies, 1,000 patients of 40 burn facilities. Dialysis: who dies within a year, 4,117 patients of
67 centres in Rio de Janeiro State (Sá Carvalho et al. 2003; comes with the package SurvSet). Each is learned twice: to
any depth, as the thesis does, and with at most three questions and twenty patients to a leaf. Numbers have public
cutoffs, written down here before any model was looked at. Local: ten-fold cross-validation inside each hospital.
Federated: leave-one-hospital-out, and by ten bands. Table 6.5 asks who gains: hospitals below a size learn with each
other only.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import concilium as cc
from concilium.evaluation.alone import cross_validate
from concilium.evaluation.comparison import compare, learn_in_every_way, tally
from concilium.evaluation.folds import learn_folds
from concilium.evaluation.leave_out import (
    Fold,
    Predictions,
    find_classes,
    leave_bands_out,
    leave_sites_out,
    predict_at,
)

Tables = Mapping[str, cc.Records]
Make = Callable[[], cc.DecisionTree]

BURNS = {"age": [20, 40, 60, 80], "tbsa": [10, 20, 40]}
DIALYSIS = {"age": [40, 50, 60, 70, 80]}
DEPTHS: dict[str, dict[str, int]] = {
    "any depth (the thesis)": {},
    "at most 3 questions, 20 patients to a leaf": {"max_depth": 3, "min_leaf": 20},
}
BANDS = 10
RANGES = ((0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))


@dataclass(frozen=True)
class Study:
    name: str
    tables: Tables
    target: str
    positive: Any
    bins: dict[str, list[float]]
    attributes: list[str]
    tiers: Sequence[int]


def read_burns(folder: Path) -> Study:
    places = [folder / "aplore3" / "burn1000.csv", folder / "burn1000.csv"]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise SystemExit(f"{folder}: there is no aplore3/burn1000.csv in it")
    whole = cc.Records.read(found, schema={"age": "number", "tbsa": "number"})
    names = ["age", "flame", "gender", "inh_inj", "race", "tbsa"]
    return Study("burns", whole.split("facility"), "death", "Dead", BURNS, names, (15, 25, 50, 1000))


def read_dialysis() -> Study:
    from SurvSet.data import SurvLoader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        patients = SurvLoader().load_dataset(ds_name="Dialysis")["df"]
    # A year must have passed since treatment began, seen to its end (observation ends in month 44).
    begun = patients[patients["num_begin"] <= 32]
    known = begun[(begun["event"] == 1) | (begun["time"] >= 12)]
    table = known[["num_age", "fac_disease"]].rename(columns={"num_age": "age", "fac_disease": "disease"})
    table["died"] = [
        "yes" if died and at < 12 else "no" for died, at in zip(known["event"], known["time"], strict=True)
    ]
    table["centre"] = known["fac_center"].astype(str)
    whole = cc.Records.read(table.reset_index(drop=True), schema={"age": "number", "centre": "code"})
    names = ["age", "disease"]
    return Study("dialysis", whole.split("centre"), "died", "yes", DIALYSIS, names, (50, 75, 100, 1000))


def leave_out(
    tables: Tables, folds: Sequence[Fold], make: Make, study: Study
) -> tuple[dict[str, Predictions], float]:
    """What the models of the others say at every site, and how long learning them took."""
    sites = {name: cc.Site(name, table) for name, table in tables.items()}
    classes = find_classes(study.tables.values(), study.target)
    start = time.perf_counter()
    learned = learn_folds(
        make, folds, lambda fold: cc.House([sites[n] for n in (sites if fold is None else fold.learn)])
    )
    seconds = time.perf_counter() - start
    said = {
        site: predict_at(site, model, tables[site], classes)
        for fold, model in zip(folds, learned.models, strict=True)
        for site in fold.left_out
    }
    return said, seconds


def show(study: Study, depth: str, limits: dict[str, int]) -> None:
    def make() -> cc.DecisionTree:
        return cc.DecisionTree(
            study.target, growth="id3", bins=study.bins, attributes=study.attributes, **limits
        )

    sizes = {name: len(table) for name, table in study.tables.items()}
    classes = find_classes(study.tables.values(), study.target)
    patients = sum(sizes.values())
    print(f"\n{study.name}: {len(sizes)} hospitals, {patients:,} patients; {depth}")
    federated, seconds = leave_out(study.tables, leave_sites_out(sizes), make, study)
    ways, donors = learn_in_every_way(
        make,
        study.tables,
        federated,
        positive=study.positive,
        classes=classes,
        division=study.name,
    )
    show_spread(ways["local"], study)
    show_ways(compare(ways, study.positive))
    print(f"  ({len(sizes)} folds in one conversation: {seconds:.1f} s)")
    by_band, seconds = leave_out(study.tables, leave_bands_out(sizes, BANDS), make, study)
    row = tally(list(by_band.values()), study.positive)
    shown = f"accuracy {row['accuracy']:.3f}, AUC {row['auc']:.3f}"
    print(f"  {BANDS} bands: {row['wrong']} of {row['patients']} wrong, {shown}")
    show_tiers(study, make)
    if isinstance(donors, str):
        print(f"  donors: {donors}")
        return
    print("  donors (6.9)   accuracy  positives   AUC   weight")
    for donor in donors[:5]:
        print(
            f"    {donor['site']:<12} {donor['accuracy']:7.1%} {donor['positives']:9} {donor['auc']:8.2f} "
            f"{donor['weight']:7.2f}"
        )


def show_spread(local: Mapping[str, Predictions | None], study: Study) -> None:
    """Table 6.1: how good hospitals are alone."""
    accuracies = [tally([said], study.positive)["accuracy"] for said in local.values() if said is not None]
    spread = [f"no model {sum(said is None for said in local.values())}"]
    for low, high in RANGES:
        count = sum(low <= accuracy < high for accuracy in accuracies)
        spread.append(f"{low:.0%}-{min(high, 1):.0%} {count}" if low else f"below {high:.0%} {count}")
    print("  local accuracies, hospitals (6.1): " + ", ".join(spread))


def show_ways(found: dict[str, Any]) -> None:
    """Tables 6.4, 6.7, 6.10 and 6.11."""
    same = found["ways"]["federated"]["same_patients"]["patients"]
    print(f"  on the {same:,} patients of hospitals with a model of their own (6.4, 6.7, 6.10, 6.11)")
    print("    learned      wrong  accuracy  balanced   AUC    error above federated, 95 %")
    for way, row in found["ways"].items():
        row, gap = row["same_patients"], found["intervals"].get(way)
        beside = f"{gap['mean']:+.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})" if gap else ""
        print(
            f"    {way:<11} {row['wrong']:6} {row['accuracy']:9.3f} {row['balanced_accuracy']:9.3f} {row['auc']:7.3f}"
            f"    {beside}"
        )
    row = found["ways"]["federated"]
    print(
        f"    federated, with the smallest: {row['wrong']} of {row['patients']} wrong, {row['accuracy']:.3f}"
    )


def show_tiers(study: Study, make: Make) -> None:
    """Table 6.5: what hospitals below a size gain when they learn with each other only."""
    classes = find_classes(study.tables.values(), study.target)
    parts = []
    for limit in study.tiers:
        group = {name: table for name, table in study.tables.items() if len(table) < limit}
        if len(group) < 3:
            continue
        together, _ = leave_out(group, leave_sites_out({n: len(t) for n, t in group.items()}), make, study)
        alone = {
            name: cross_validate(make, name, table, classes=classes, division=study.name)
            for name, table in group.items()
        }
        pairs = [(said, together[name]) for name, said in alone.items() if said is not None]
        if not pairs:
            continue
        local, federated = (tally([pair[side] for pair in pairs], study.positive) for side in (0, 1))
        gain = federated["accuracy"] - local["accuracy"]
        parts.append(f"below {limit}: {len(group)} hospitals, {gain:+.1%}")
    print("  gain in accuracy by learning together (6.5): " + "; ".join(parts))


def main(folder: Path) -> None:
    for study in (read_burns(folder), read_dialysis()):
        for depth, limits in DEPTHS.items():
            show(study, depth, limits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA")
    main(parser.parse_args().data)
