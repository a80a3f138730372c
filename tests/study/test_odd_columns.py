"""Columns that nobody would state: a fit goes on without them, or with them, and says so in one sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import concilium as cc

METHODS = {
    "tree": lambda release: cc.DecisionTree("died", release=release),
    "naive Bayes": lambda release: cc.NaiveBayes("died", release=release),
    # With a penalty that is stated: choosing one says nothing of columns.
    "RuleFit": lambda release: cc.RuleFit("died", release=release, trees=10, penalty=0.02),
    "voting trees": lambda release: cc.VotingTrees("died", positive=1, release=release),
}


def make(seed: int = 1, patients: int = 600) -> dict[str, pd.DataFrame]:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": draw.integers(20, 95, patients).astype(float), "crp": draw.lognormal(2, 1.2, patients)}
    )
    chance = 1 / (1 + np.exp(4 - 0.04 * (frame.age - 50) - 0.6 * np.log(frame.crp)))
    frame["died"] = (draw.random(patients) < chance).astype(int)
    return {name: frame.iloc[place::3].copy() for place, name in enumerate("abc")}


def with_column(values) -> dict[str, pd.DataFrame]:
    tables = make()
    for place, frame in enumerate(tables.values()):
        frame["k"] = values(place, len(frame))
    return tables


def infinite() -> dict[str, pd.DataFrame]:
    tables = make()
    tables["a"].iloc[:5, 1] = np.inf
    tables["b"].iloc[:1, 1] = -np.inf
    return tables


def written(change, site: str = "a") -> dict[str, pd.DataFrame]:
    tables = make()
    tables[site]["crp"] = [change(place, each) for place, each in enumerate(tables[site].crp)]
    return tables


CASES = {
    "infinities": (
        infinite,
        "left out: crp (infinite or beyond 1e9 for some; let a map call that missing, or give bins)",
    ),
    "numbers with their unit": (
        lambda: written(lambda place, each: f"{each:.1f} mg"),
        "left out: crp (a number at b, text at a, whose map can fix it)",
    ),
    "decimal commas": (
        lambda: written(lambda place, each: f"{each:.1f}".replace(".", ",")),
        "left out: crp (a number at b, text at a, whose map can fix it)",
    ),
    "a mark for missing": (
        lambda: written(lambda place, each: "?" if place < 3 else f"{each:.3f}"),
        "crp at a: text among its numbers counts as missing",
    ),
    "a constant": (lambda: with_column(lambda place, n: [7.5] * n), "left out: k ("),
    "one whole number": (
        lambda: with_column(lambda place, n: [7] * n),
        "left out: k (the same for everybody)",
    ),
    "one word": (lambda: with_column(lambda place, n: ["icu"] * n), "left out: k (the same for everybody)"),
    "all missing": (
        lambda: with_column(lambda place, n: [np.nan] * n),
        "left out: k (missing for everybody)",
    ),
    "another unit": (
        lambda: written(lambda place, each: 18.02 * each, "b"),
        "units: crp is much larger in b than in a: is it another unit there? A map converts it",
    ),
    "a date at one, a number at others": (
        lambda: with_column(
            lambda place, n: ["2020-01-01", "2021-05-05"] * (n // 2) if place else [1.5, 2.5] * (n // 2)
        ),
        "left out: k (a date at some sites, a number at others)",
    ),
}


def pair_with_methods(cases):
    """Every case with the tree and with one of the others in turn: what is said of a column is one step of all."""
    tree, *others = METHODS
    pairs = [(method, case) for n, case in enumerate(cases) for method in (tree, others[n % len(others)])]
    return pytest.mark.parametrize(("method", "case"), pairs)


@pair_with_methods(CASES)
def test_a_fit_goes_on_and_says_so(method: str, case: str) -> None:
    tables, said = CASES[case]
    model = METHODS[method]("exact").fit(tables())
    about = [warning for warning in model.card.warnings if said in warning]
    assert len(about) == 1, model.card.warnings
    assert "age" in model.attributes_
    if said.startswith(("left out", "units")):
        assert about[0] in model.text().splitlines()
    if said.startswith("left out"):
        assert said.split()[2] not in model.attributes_
        assert said.split()[2] not in METHODS[method]("masked").fit(tables()).attributes_


def in_two_units(factor: float, start: float = 0.0, spread: float = 0.3) -> dict[str, pd.DataFrame]:
    draw = np.random.default_rng(3)
    return with_column(
        lambda place, n: (
            (37 * draw.lognormal(0, spread, n)).round(2) * (factor if place == 1 else 1)
            + start * (place == 1)
        ).round(2)
    )


@pair_with_methods(
    [(10, 0, 0.3), (18.02, 0, 0.3), (38.67, 0, 0.3), (88.4, 0, 0.3), (2.54, 0, 0.1), (1.8, 32, 0.01)]
)
def test_a_column_in_two_units_is_left_out(method, case) -> None:
    model = METHODS[method]("exact").fit(in_two_units(*case))
    about = [line for line in model.text().splitlines() if line.startswith("left out: k (about ")]
    assert len(about) == 1
    assert "times as large at b as at" in about[0]
    assert "state its unit in a dictionary and in the hospital's map, or give bins" in about[0]
    assert "k" not in model.attributes_


@pytest.mark.parametrize("method", METHODS)
def test_under_masks_two_units_show_in_the_sum(method: str) -> None:
    """Which hospital has the other unit, the house may not know; that there are two groups of values it sees."""
    model = METHODS[method]("masked").fit(in_two_units(88.4))
    about = [line for line in model.text().splitlines() if line.startswith("left out: k (two groups")]
    assert len(about) == 1
    assert "about 88.4 times apart, as in two units" in about[0]
    assert "k" not in model.attributes_
    other = METHODS[method]("masked").fit(in_two_units(250))
    said = "units: k: two groups of values far apart: are they in two units? A hospital's map converts them"
    assert said in other.text().splitlines()


def test_bins_keep_a_column_in_two_units() -> None:
    tree = cc.DecisionTree("died", bins={"k": [50, 100, 3000]}).fit(in_two_units(88.4))
    assert not [line for line in tree.card.warnings if " k" in line]


@pytest.mark.parametrize("method", ["tree", "naive Bayes"])
def test_a_private_fit_leaves_out_what_noise_lets_tell(method: str) -> None:
    draw = np.random.default_rng(4)
    n = 2000
    tables = {}
    for place, name in enumerate("abc"):
        frame = pd.DataFrame({"age": draw.normal(60, 15, n).round(), "same": 7.5, "none": np.nan})
        frame["k"] = (draw.lognormal(1, 0.3, n) * (18.02 if place == 1 else 1)).round(2)
        frame["died"] = (draw.random(n) < frame.age / 120).astype(int)
        tables[name] = frame
    kind = cc.DecisionTree if method == "tree" else cc.NaiveBayes
    model = kind("died", release="private", epsilon=5).fit(tables)
    (said,) = [line for line in model.text().splitlines() if line.startswith("left out: ")]
    assert "k (two groups of values about 18.02 times apart, as in two units" in said
    assert "same (the same for nearly everybody, as far as noise lets tell" in said
    assert "none (text or missing, as far as noise lets tell" in said


def test_natural_numbers_are_in_one_group() -> None:
    draw = np.random.default_rng(3)
    for values in (
        lambda place, n: draw.lognormal(2, 1.5, n),  # wide
        lambda place, n: np.where(draw.random(n) < 0.5, 0.0, draw.normal(50, 5, n)),  # none, or some
        lambda place, n: draw.choice([1.0, 10.0, 100.0], n) + 0.5,  # doses
        lambda place, n: np.where(draw.random(n) < 0.02, 999.5, draw.normal(50, 5, n)),
    ):
        warnings = METHODS["naive Bayes"]("masked").fit(with_column(values)).card.warnings
        assert not [line for line in warnings if line.startswith("units")]


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "values",
    [
        lambda place, n: range(1000 * place, 1000 * place + n),
        lambda place, n: [f"c{(7 * i + 3331 * place) % 10_000}" for i in range(n)],
    ],
    ids=["a number for each patient", "ten thousand codes"],
)
def test_a_column_that_identifies_patients_is_named_and_not_asked_about(
    method: str, values, release: str
) -> None:
    model = METHODS[method](release).fit(with_column(values))
    assert "k" not in model.attributes_
    assert "age" in model.attributes_
    why = "about one value for each patient, which identifies them; a policy can allow it"
    assert model.text().splitlines()[-1] == f"left out: k ({why})"


def test_a_hospitals_unit_stays_its_own_under_masks() -> None:
    """The house may not know what a single hospital's numbers are like. Which columns a hospital lists, it knows."""
    tables = with_column(lambda place, n: range(1000 * place, 1000 * place + n))
    tables["b"]["crp"] *= 18.02
    model = METHODS["tree"]("masked").fit(tables)
    assert not [line for line in model.card.warnings if line.startswith("units")]


def test_labs_of_a_small_hospital_are_no_identifiers() -> None:
    """Whole numbers that differ for nearly all of sixty patients: leukocytes are measured, record numbers are not."""
    draw = np.random.default_rng(8)
    tables = make(patients=180)
    for frame in tables.values():
        frame["leukocytes"] = draw.lognormal(9, 0.5, len(frame)).round()
        frame["platelets"] = draw.permutation(np.arange(150, 400))[: len(frame)]  # within its clinical range
        frame["record"] = draw.permutation(len(frame)) + 40_000
        frame["long"] = draw.integers(10**6, 10**8, len(frame))
        frame["visit"] = np.cumsum(draw.integers(1, 40, len(frame)))
        frame["case_id"] = draw.lognormal(9, 0.5, len(frame)).round()
    model = cc.NaiveBayes("died").fit(tables)
    assert {"leukocytes", "platelets"} <= set(model.attributes_)
    assert (
        model.text()
        .splitlines()[-1]
        .startswith("left out: case_id, long, record and 1 more (about one value")
    )


def test_stated_bins_keep_a_column_with_infinities() -> None:
    model = cc.NaiveBayes("died", bins={"crp": [5.0, 20.0]}).fit(infinite())
    assert "crp" in model.attributes_
    assert "left out" not in model.text()


def test_many_infinities_are_left_out_under_noise() -> None:
    tables = make(patients=3000)
    for frame in tables.values():
        frame.iloc[::3, 1] = np.inf
    model = cc.NaiveBayes("died", release="private", epsilon="4").fit(tables)
    assert "left out: crp (infinite or beyond 1e9 for some" in model.text()
    assert model.attributes_ == ["age"]


def test_many_columns_are_named_once_and_not_all() -> None:
    tables = make()
    for name in (f"lab{number}" for number in range(30)):
        for frame in tables.values():
            frame[name] = 1.5
    model = cc.DecisionTree("died").fit(tables)
    (said,) = [warning for warning in model.card.warnings if warning.startswith("left out")]
    assert said.startswith("left out: lab0, lab1, lab10 and 27 more (the same")


@pytest.mark.parametrize(
    ("method", "how"),
    [
        (cc.NaiveBayes, {"release": "private", "epsilon": "4"}),
        (cc.DecisionTree, {"release": "private", "epsilon": "4"}),
        (cc.RuleFit, {"release": "private", "epsilon": "4"}),
        (cc.RuleFit, {"release": "masked", "epsilon": "4", "trees": 20}),
    ],
    ids=["naive Bayes", "tree", "RuleFit", "noisy cutoffs"],
)
def test_dates_are_cut_at_days_under_noise(method, how) -> None:
    """The risk rises in the last of three years; the years are cut at days that stand for themselves."""
    tables = make(patients=3000)
    draw = np.random.default_rng(4)
    for frame in tables.values():
        days = draw.integers(0, 1000, len(frame))
        frame["admitted"] = (pd.Timestamp("2019-01-01") + pd.to_timedelta(days, unit="D")).strftime(
            "%Y-%m-%d"
        )
        frame["died"] = (draw.random(len(frame)) < np.where(days > 700, 0.7, 0.1)).astype(int)
    model = method("died", **how).fit(tables)
    assert "admitted" in model.attributes_
    assert any(f"admitted {sign} 20" in model.text() for sign in ("<", ">="))
    early, late = (
        tables["a"].assign(admitted=day).drop(columns="died") for day in ("2019-02-03", "2021-08-02")
    )
    assert model.predict_proba(late)[:, 1].mean() > model.predict_proba(early)[:, 1].mean() + 0.2


@pytest.mark.parametrize("method", [cc.NaiveBayes, cc.DecisionTree, cc.RuleFit])
def test_a_private_fit_names_text_and_the_line_that_brings_it_in(method) -> None:
    tables = make(patients=3000)
    draw = np.random.default_rng(4)
    for frame in tables.values():
        frame["ward"] = draw.choice(["icu", "ward"], len(frame))
    how = {"release": "private", "epsilon": "4"}
    model = method("died", **how).fit(tables)
    said = (
        "left out: ward (text or missing, as far as noise lets tell; state values, which `concilium dictionary` "
        "drafts)"
    )
    assert said in model.card.warnings
    assert said in model.text().splitlines()
    stated = method(
        "died", **how, values={"ward": ["icu", "ward"], "died": [0, 1]}, attributes=["ward", "age"]
    )
    assert "left out: ward" not in stated.fit(tables).text()


@pytest.mark.parametrize("method", [cc.NaiveBayes, cc.DecisionTree, cc.RuleFit, cc.ShapeModel])
def test_a_private_fit_that_states_its_positive_class_finds_the_other(method) -> None:
    """The other class is a public word, which hospitals agree to as to the positive one."""
    tables = make(patients=3000)
    for frame in tables.values():
        frame["died"] = np.where(frame["died"].astype(int) == 1, "yes", "no")
    model = method("died", positive="yes", release="private", epsilon="4").fit(tables)
    assert "yes" in map(str, model.classes_)


@pytest.mark.parametrize("method", [cc.NaiveBayes, cc.DecisionTree, cc.RuleFit])
def test_a_private_fit_finds_common_words_in_columns_of_text(method) -> None:
    """`sex` decides; who lacks it counts as any other. A column of one word parts nobody."""
    tables = make(patients=3000)
    draw = np.random.default_rng(4)
    for frame in tables.values():
        men = draw.random(len(frame)) < 0.5
        frame["sex"] = np.where(draw.random(len(frame)) < 0.05, None, np.where(men, "M", "F"))
        frame["died"] = (draw.random(len(frame)) < np.where(men, 0.8, 0.2)).astype(int)
        frame["unit"] = "Medical"
    model = method("died", release="private", epsilon="4").fit(tables)
    said = "unit (the same for nearly everybody, as far as noise lets tell; values would bring it in)"
    assert said in model.text().splitlines()[-1]
    assert "sex" not in model.text().splitlines()[-1]
    man, woman = model.predict_proba([{"sex": "M", "age": 50, "crp": 8}, {"sex": "F", "age": 50, "crp": 8}])
    assert man[1] > 0.65
    assert woman[1] < 0.35


@pytest.mark.parametrize("release", ["exact", "private"])
def test_a_tree_that_predicts_one_class_says_so(release: str) -> None:
    draw = np.random.default_rng(5)
    frame = pd.DataFrame({"age": draw.normal(60, 15, 3000).round()})
    frame["died"] = (draw.random(3000) < 0.05 + 0.1 * (frame.age > 60)).astype(int)
    tables = {name: frame.iloc[place::3].copy() for place, name in enumerate("abc")}
    how = {"epsilon": 2, "bins": {"age": [60]}, "values": {"died": [0, 1]}} if release == "private" else {}
    tree = cc.DecisionTree("died", release=release, **how).fit(tables)
    said = "everybody is predicted died = 0: only the risks of its leaves tell patients apart; threshold = "
    assert [line for line in tree.card.warnings if line.startswith(said)]
    flagging = cc.DecisionTree("died", threshold="prevalence", release=release, **how).fit(tables)
    assert not [line for line in flagging.card.warnings if line.startswith("everybody is predicted")]


def test_a_private_tree_without_a_split_says_what_to_try() -> None:
    draw = np.random.default_rng(6)
    frame = pd.DataFrame({"age": draw.normal(60, 15, 300).round(), "died": draw.integers(0, 2, 300)})
    tables = {name: frame.iloc[place::3].copy() for place, name in enumerate("abc")}
    how = {"bins": {"age": [500]}, "values": {"died": [0, 1]}}  # nobody is as old
    tree = cc.DecisionTree("died", release="private", epsilon=0.5, **how).fit(tables)
    assert len(tree.body.leaves) == 1
    (said,) = [line for line in tree.card.warnings if line.startswith("the tree is a single leaf")]
    assert "raise epsilon, state bins and values, or try naive-bayes" in said


def test_private_voting_trees_name_what_can_be_private() -> None:
    with pytest.raises(cc.errors.StudyError, match="naive-bayes, rulefit and tree can be private"):
        cc.VotingTrees("died", positive=1, release="private")


@pytest.mark.parametrize("method", METHODS)
def test_answers_print_four_digits(method: str) -> None:
    model = METHODS[method]("exact").fit(make())
    said = str(model.explain({"crp": 0.426999807}))
    assert "0.426999" not in said
