"""Two evaluations that differ by one patient: the house asks for a model's counts among all patients, and then among
all but one. The tables are read from text, as a hospital's file has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import concilium as cc
from concilium.errors import HouseError
from concilium.models.measuring import RiskTable
from concilium.models.validation import Validation
from concilium.privacy.randomness import zero_noise

NAMES = ("east", "north", "south")
VICTIM = 97
SCHEMA = {"age": "number", "sex": "code", "death": "code"}
STATED: dict[str, Any] = {"bins": {"age": [40, 60]}, "values": {"sex": ["f", "m"], "death": ["no", "yes"]}}


@pytest.fixture(autouse=True)
def noise_may_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCILIUM_FIX_NOISE", "tests-only")


def write_table(path: Path, seed: int, patients: int = 60) -> Path:
    """A hospital's file; only the one patient is older than ninety, and died."""
    draw = random.Random(seed)
    lines = ["age,sex,death"]
    for _ in range(patients):
        age = draw.randrange(20, 90)
        lines.append(f"{age},{draw.choice('fm')},{'yes' if draw.random() < age / 120 else 'no'}")
    if path.stem == "north":
        lines.append(f"{VICTIM},m,yes")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def open_sites(folder: Path) -> list[cc.Site]:
    sites = []
    for seed, name in enumerate(NAMES):
        records = cc.Records.read(write_table(folder / f"{name}.csv", seed), schema=SCHEMA)
        sites.append(cc.Site(name, cc.Patients(table=records, one_row_per_patient=True)))
    return sites


def make_models(sites: list[cc.Site]) -> tuple[Any, Any]:
    """One model, once for everybody and once for all but the patient: the same in everything but the query."""
    model = cc.DecisionTree("death", positive="yes", max_depth=2, release="private", epsilon=1, **STATED)
    with zero_noise():
        model.fit(cc.House(sites))
    other = cc.DecisionTree(**{**model.get_params(), "query": f"age < {VICTIM}"})
    other.take(model.body, model.card)
    return model, other


def measure(model: Any, sites: list[cc.Site], release: str) -> RiskTable:
    epsilon = 1 if release == "private" else None
    study = Validation.of(model, positive="yes", release=release, epsilon=epsilon).fit(cc.House(sites))
    return study.body


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_the_second_of_two_evaluations_that_differ_by_one_patient_is_refused(
    tmp_path: Path, release: str
) -> None:
    sites = open_sites(tmp_path)
    everybody, but_one = make_models(open_sites(tmp_path))
    first = measure(everybody, sites, release)
    try:
        second = measure(but_one, sites, release)
    except HouseError as error:
        assert "north: too few patients match this study, or too few tell it apart" in str(error)  # noqa: PT017
        return
    # Those who refuse have no part in the second: the difference is a whole hospital, or nothing.
    assert "north" not in second.sites
    assert np.sum(np.array(first.counts) - np.array(second.counts)) != 1


def test_under_noise_both_are_answered_and_each_is_charged(tmp_path: Path) -> None:
    sites = open_sites(tmp_path)
    everybody, but_one = make_models(open_sites(tmp_path))
    with zero_noise():
        first = measure(everybody, sites, "private")
        once = [site.ledger.spent() for site in sites]
        second = measure(but_one, sites, "private")
    apart = np.abs(np.array(first.counts) - np.array(second.counts))
    assert apart.sum() == 1  # what the noise of variance 1 / (2 rho) covers
    assert first.variance == second.variance >= float(1 / (2 * once[0]))
    assert [site.ledger.spent() for site in sites] == [2 * spent for spent in once]
