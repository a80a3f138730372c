"""Counts of predicted risk by outcome: those of the patients held out, whom nothing is learned from; charged, and moved
by one patient in one cell only."""

from __future__ import annotations

import itertools
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import concilium as cc
from agreed import Asker
from concilium.errors import HouseError, MessageError, ModelError
from concilium.models.measuring import Evaluation, RiskTable, _choose_bins, learn_and_measure
from concilium.models.risk_counts import MOST_BYTES, AskRiskCounts
from concilium.models.validation import Validation
from concilium.privacy.accounting import rho_for_epsilon
from concilium.privacy.randomness import zero_noise
from concilium.protocol.cohort import View
from concilium.protocol.held_out import Holdout
from concilium.protocol.messages import Refusal
from concilium.protocol.questions import Gaussian, open_question
from concilium.protocol.subgroups import Subgroup

KEY = b"the division key of these tests"
SCHEMA = {"age": "number", "sex": "code", "admitted": "code", "death": "code"}
STATED: dict[str, Any] = {
    "bins": {"age": [40, 50, 60, 70]},
    "values": {"sex": ["f", "m"], "death": ["no", "yes"]},
}
THIRD = Holdout(percent=30)


@pytest.fixture(autouse=True)
def noise_may_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCILIUM_FIX_NOISE", "tests-only")


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)
    rows = []
    for place in range(count):
        age, sex = int(chance.integers(20, 90)), "fm"[chance.integers(2)]
        risk = 1 / (1 + np.exp(-(age - 62) / 9 - 0.5 * (sex == "m")))
        day = f"20{20 + place % 5}-0{1 + place % 9}-15"
        rows.append(
            {"age": age, "sex": sex, "admitted": day, "death": "yes" if chance.random() < risk else "no"}
        )
    return rows


TABLES = {
    name: make_rows(count, seed) for seed, (name, count) in enumerate([("a", 240), ("b", 180), ("c", 300)])
}


def open_sites(
    tables: dict[str, list[dict[str, Any]]] | None = None, policy: cc.Policy | None = None
) -> list[cc.Site]:
    return [
        cc.Site(name, cc.Records.from_rows(rows, schema=SCHEMA), policy, division_key=KEY)
        for name, rows in (tables or TABLES).items()
    ]


def is_held(rows: list[dict[str, Any]], holdout: Holdout = THIRD, *, by_itself: bool = False) -> np.ndarray:
    view = View(cc.Records.from_rows(rows, schema=SCHEMA), cc.Policy(), division_key=KEY)
    return holdout.find_held((view.each_by_itself if by_itself else view).select("", "death"))


def count_by_hand(model: Any, rows: list[dict[str, Any]], edges: list[float]) -> np.ndarray:
    table = np.zeros((len(edges) + 1, 2), dtype=int)
    place = model.classes_.index("yes")
    for risk, row in zip(model.predict_proba(rows)[:, place] if rows else [], rows, strict=True):
        table[sum(edge <= risk for edge in edges), int(row["death"] == "yes")] += 1
    return table


def make(method: str, release: str) -> Any:
    private = {"epsilon": 2, **STATED} if release == "private" else {}
    attributes = {} if private else {"attributes": ["age", "sex"]}
    kinds = {"tree": cc.DecisionTree, "rulefit": cc.RuleFit, "naive-bayes": cc.NaiveBayes}
    return kinds[method](target="death", positive="yes", release=release, **private, **attributes)


@pytest.mark.parametrize("method", ["tree", "rulefit"])
def test_the_table_is_that_of_the_patients_held_out_and_the_model_that_of_the_others(method: str) -> None:
    learner = make(method, "exact")
    table = learn_and_measure(learner, cc.House(open_sites()), Evaluation(THIRD))
    held = {
        name: [row for row, out in zip(rows, is_held(rows), strict=True) if out]
        for name, rows in TABLES.items()
    }
    for name, rows in held.items():
        assert 0 < len(rows) < len(TABLES[name]) / 2
        assert table.sites[name] == count_by_hand(learner, rows, table.edges).tolist()
    assert np.array(table.counts).tolist() == np.sum(list(table.sites.values()), axis=0).tolist()
    rest = {name: [row for row in rows if row not in held[name]] for name, rows in TABLES.items()}
    if all(len(rest[name]) + len(held[name]) == len(rows) for name, rows in TABLES.items()):
        assert make(method, "exact").fit(cc.House(open_sites(rest))).body == learner.body


def test_masked_sums_are_those_of_exact_tables_and_show_no_site() -> None:
    exact, masked = (
        learn_and_measure(make("tree", release), cc.House(open_sites()), Evaluation(THIRD))
        for release in ("exact", "masked")
    )
    assert masked.counts == exact.counts
    assert (masked.sites, set(exact.sites)) == ({}, set(TABLES))


def test_private_measuring_is_charged_beside_learning_and_no_more() -> None:
    learner, rho = make("naive-bayes", "private"), rho_for_epsilon("1/2", "1e-6")
    sites = open_sites()
    with zero_noise():
        table = learn_and_measure(learner, cc.House(sites), Evaluation(THIRD, rho))
    held = [
        row
        for rows in TABLES.values()
        for row, out in zip(rows, is_held(rows, by_itself=True), strict=True)
        if out
    ]
    assert table.counts == count_by_hand(learner, held, table.edges).tolist()
    assert table.variance >= float(1 / (2 * rho))
    for site in sites:
        assert learner.plan().total < site.ledger.spent() <= learner.plan().total + rho
    assert not table.sites


def test_what_was_agreed_without_measuring_is_not_measured_and_the_price_is_that_of_the_terms() -> None:
    site = open_sites()[0]
    model = make("tree", "exact").fit([site])
    question = write_question(model)
    refused = Asker([site], target="death", method="tree", parameters={"positive": "yes"}).put(site, question)
    assert isinstance(refused, Refusal)
    assert (refused.rule, "asks no question of kind 'model.risks'" in refused.reason) == ("agreed", True)
    other = Validation.of(make("tree", "exact").set_params(max_depth=1).fit([site]))
    parameters = {name: value for name, value in other.get_params().items() if value is not None}
    refused = Asker([site], target="death", method="validation", parameters=parameters).put(site, question)
    assert isinstance(refused, Refusal)
    assert "another model" in refused.reason


def write_question(model: Any, **changes: Any) -> AskRiskCounts:
    edges, *_ = _choose_bins(model, 1, noisy=False)
    fields = {
        "query": "",
        "target": "death",
        "method": model.method,
        "body": msgspec.json.encode(model.body),
        "positive": "yes",
        "edges": tuple(edges),
    }
    return AskRiskCounts(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"body": b"{}"}, "not the model of a 'tree' study"),
        ({"body": b"\xff" * 10}, "not the model of a 'tree' study"),
        ({"body": b"[" * 100_000}, "not the model of a 'tree' study"),
        ({"body": b" " * (MOST_BYTES + 1)}, "at most 4 MB"),
        ({"method": "os.system"}, "there is no method"),
        ({"method": "rulefit"}, "not the model of a 'rulefit' study"),
        ({"positive": "maybe"}, "none of the model's classes"),
        ({"edges": ()}, "1 to 512 edges"),
        ({"edges": (0.5, 0.5)}, "must rise"),
        ({"edges": (0.0, 0.5)}, "1 to 512 edges"),
        ({"edges": (float("nan"),)}, "1 to 512 edges"),
        ({"noise": Gaussian("1")}, "other noise"),
        ({"by": (Subgroup("sex"),)}, "values of a category, or by the cutoffs"),
        ({"by": (Subgroup("sex", ("f",)), Subgroup("sex", ("m",)))}, "each once"),
        ({"by": (Subgroup("age", cutoffs=(60.0, 50.0)),)}, "must rise"),
        ({"by": (Subgroup("age", cutoffs=tuple(range(40))),)}, "at most 24 groups"),
    ],
)
def test_a_hostile_model_is_refused_before_any_patient_is_looked_at(
    changes: dict[str, Any], words: str
) -> None:
    model = make("tree", "exact").fit(open_sites())
    envelope = Asker([], method="tree").wrap(write_question(model, **changes))
    with pytest.raises(MessageError, match=words):
        open_question(envelope)


def test_patients_since_a_day_are_measured_and_not_learned_from() -> None:
    since = Holdout(column="admitted", since="2023-06-01")
    learner = make("tree", "exact")
    table = learn_and_measure(learner, cc.House(open_sites()), Evaluation(since))
    later = [row for rows in TABLES.values() for row in rows if row["admitted"] >= "2023-06-01"]
    assert np.sum(table.counts) == len(later)
    assert table.counts == count_by_hand(learner, later, table.edges).tolist()
    before = {name: [row for row in rows if row["admitted"] < "2023-06-01"] for name, rows in TABLES.items()}
    assert make("tree", "exact").fit(cc.House(open_sites(before))).body == learner.body


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_days_that_nearly_every_patient_has_another_of_are_compared_and_not_listed(release: str) -> None:
    """A hospital of a few hundred patients hardly has two who came on one day; what its policy withholds stays so."""
    first = date(2022, 1, 1)
    tables = {
        name: [{**row, "admitted": str(first + timedelta(days=3 * at))} for at, row in enumerate(rows)]
        for name, rows in TABLES.items()
    }
    since = Holdout(column="admitted", since="2022-09-01")
    model = make("tree", "exact").fit(open_sites(tables))
    assert "admitted" not in model.attributes_
    epsilon = 1 if release == "private" else None
    asked = Validation.of(model, release=release, epsilon=epsilon, since=since)
    table = asked.fit(cc.House(open_sites(tables))).body
    later = [row for rows in tables.values() for row in rows if row["admitted"] >= "2022-09-01"]
    if release != "private":
        assert table.counts == count_by_hand(model, later, table.edges).tolist()
    withheld = open_sites(tables, cc.Policy(withhold=("admitted",)))
    with pytest.raises(HouseError, match="there is no column 'admitted'"):
        Validation.of(model, release=release, epsilon=epsilon, since=since).fit(cc.House(withheld))
    assert [site.ledger.spent() for site in withheld] == [0] * len(withheld)


@pytest.mark.parametrize(
    "holdout",
    [
        Holdout(),
        Holdout(percent=95),
        Holdout(column="x"),
        Holdout(column="x", since="soon"),
        Holdout(percent=10, column="x", since="2020-01-01"),
    ],
)
def test_terms_hold_out_a_share_or_a_time(holdout: Holdout) -> None:
    with pytest.raises(MessageError):
        holdout.check()


ODD = ["", "?", "1e400", "2020-13-45"]


def test_one_patient_of_a_raw_file_moves_one_count_by_one_and_nothing_else(tmp_path: Path) -> None:
    """Two files that differ by a line whose cells are odd: the same messages, refusals and charges, and tables that
    differ in one cell at most, whoever is held out."""
    lines = ["age,sex,admitted,death", *(",".join(map(str, row.values())) for row in TABLES["a"])]
    usual = ["61", "m", "2024-01-15", "yes"]
    extra = [[*usual[:at], f'"{odd}"', *usual[at + 1 :]] for at, odd in itertools.product(range(4), ODD)]
    model = make("tree", "private")
    moved = 0
    with zero_noise():
        model.fit(cc.House(open_sites()))
        for holdout, cells in ((None, extra), (Holdout(column="admitted", since="2023-06-01"), extra[::3])):
            plain = measure_file(tmp_path, lines, model, holdout)
            for line in cells:
                more = measure_file(tmp_path, [*lines, ",".join(line)], model, holdout)
                apart = np.abs(np.array(more[0].counts) - np.array(plain[0].counts)).sum()
                assert apart <= 1
                assert all(one == apart for one in count_apart(more[0], plain[0]).values())
                assert more[1:] == plain[1:]
                moved += apart
    assert moved > len(extra) / 2  # the patient does count


def measure_file(
    folder: Path, lines: list[str], model: Any, holdout: Holdout | None
) -> tuple[RiskTable, list[Fraction], list[Any]]:
    path = folder / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    stated = dict.fromkeys(("sex", "admitted", "death"), "code")  # of age each cell is read by itself
    first = cc.Patients(table=cc.Records.read(path, schema=stated), one_row_per_patient=True)
    sites = [cc.Site("a", first, division_key=KEY), *open_sites()[1:]]
    how = {"release": "private", "epsilon": 1, "subgroups": BY if holdout is None else ()}
    study = Validation.of(model, since=holdout, **how).fit(cc.House(sites))
    releases = [(one.site, one.kind, one.answers, one.numbers, one.cost) for one in study.card.releases]
    return (
        study.body,
        [site.ledger.spent() for site in sites],
        [*releases, study.card.refusals, study.card.rounds],
    )


@pytest.mark.parametrize("method", ["tree", "rulefit"])
def test_bad_input_is_a_sentence_that_names_the_site_and_charges_nothing(method: str, tmp_path: Path) -> None:
    model = make(method, "exact").fit(open_sites())
    lacking = [{key: value for key, value in row.items() if key != "age"} for row in TABLES["b"]]
    coded = [{**row, "death": int(row["death"] == "yes")} for row in TABLES["b"]]
    for rows, words in (
        (lacking, "b: there is no column 'age'"),
        (coded, "b: the outcome 'death' is coded otherwise"),
    ):
        sites = [
            cc.Site("a", cc.Records.from_rows(TABLES["a"])),
            cc.Site("b", cc.Records.from_rows(rows)),
        ]
        with pytest.raises(HouseError, match=words):
            model.evaluate(cc.House(sites))
        assert [site.ledger.spent() for site in sites] == [0, 0]
    for release in ("masked", "private"):
        rows = {"a": TABLES["a"], "b": lacking, "c": TABLES["c"]}
        sites = [
            cc.Site(name, cc.Records.from_rows(one, schema={n: k for n, k in SCHEMA.items() if n in one[0]}))
            for name, one in rows.items()
        ]
        with pytest.raises(HouseError, match="b: there is no column 'age'"):
            Validation.of(model, release=release, epsilon=1 if release == "private" else None).fit(sites)
        assert [site.ledger.unbounded_numbers() for site in sites] == [0, 0, 0]
        assert [site.ledger.spent() for site in sites] == [0, 0, 0]
    sites = open_sites({"a": TABLES["a"], "few": TABLES["b"][:3]})
    sites += open_sites({"none": [row for row in TABLES["c"] if row["death"] == "no"]})
    notes = model.evaluate(cc.House(sites)).metrics["notes"]
    assert any(note.startswith("few: too few patients") for note in notes)
    assert any(note.startswith("none: no patient of") for note in notes)
    path = tmp_path / "model.json"
    model.save(path)
    path.write_text(path.read_text().replace("concilium/model@1", "concilium/model@9"))
    with pytest.raises(ModelError, match="its format is 'concilium/model@9'"):
        cc.load(path)


def test_a_site_that_leaves_small_counts_out_holds_nobody_out() -> None:
    sites = [*open_sites({"a": TABLES["a"]}, cc.Policy(minimum_cell=3)), *open_sites({"b": TABLES["b"]})]
    table = learn_and_measure(make("tree", "exact"), cc.House(sites), Evaluation(THIRD))
    assert set(table.sites) == {"b"}


BY = (Subgroup("sex", ("f", "m")), Subgroup("age", cutoffs=(50.0, 65.0)))


def count_apart(one: RiskTable, other: RiskTable) -> dict[str, int]:
    """By how many patients the groups of each attribute differ."""
    found: dict[str, int] = {}
    for here, there in zip(one.groups, other.groups, strict=True):
        apart = int(np.abs(np.array(here.counts) - np.array(there.counts)).sum())
        found[here.attribute] = found.get(here.attribute, 0) + apart
    return found


def is_in(row: dict[str, Any], attribute: str, group: str) -> bool:
    """Whether a patient is in a group, by its name."""
    if attribute == "sex":
        return bool(row["sex"] == group)
    age = row["age"]
    return {"below 50": age < 50, "50 to 65": 50 <= age < 65, "65 or more": age >= 65}.get(group, False)


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
def test_subgroups_are_tables_of_the_same_patients_group_by_group(release: str) -> None:
    learner, rho = make("tree", release), rho_for_epsilon(1, "1e-6") if release == "private" else None
    sites = open_sites()
    with zero_noise():
        table = learn_and_measure(learner, cc.House(sites), Evaluation(THIRD, rho, subgroups=BY))
    held = [
        row
        for rows in TABLES.values()
        for row, out in zip(rows, is_held(rows, by_itself=release == "private"), strict=True)
        if out
    ]
    assert table.counts == count_by_hand(learner, held, table.edges).tolist()
    assert len(table.groups) == 4 + 4
    for one in table.groups:
        own = [row for row in held if is_in(row, one.attribute, one.group)]
        assert one.counts == count_by_hand(learner, own, table.edges).tolist()
        assert len(one.sites) == (3 if release == "exact" else 0)
    if rho is not None:  # the same price for all of it: noise is that of three tables
        assert table.variance >= float(3 / (2 * rho))
        assert all(site.ledger.spent() <= learner.plan().total + rho for site in sites)


def test_a_site_answers_the_subgroups_of_the_terms_and_no_others() -> None:
    site = open_sites()[0]
    model = make("tree", "exact").fit([site])
    agreed = {k: v for k, v in Validation.of(model).get_params().items() if v is not None}
    question = write_question(model, by=BY)
    refused = Asker([site], target="death", method="validation", parameters=agreed).put(site, question)
    assert isinstance(refused, Refusal)
    assert "other subgroups" in refused.reason


def test_a_hospital_without_the_attribute_refuses_before_anything_is_charged() -> None:
    sites = open_sites()
    model = make("tree", "exact").set_params(attributes=["age"]).fit(sites)
    lacking = {"b": [{key: row[key] for key in ("age", "death")} for row in TABLES["b"]]}
    stranger = cc.Site("b", cc.Records.from_rows(lacking["b"]))
    with pytest.raises(HouseError, match="b: there is no column 'sex'"):
        model.evaluate(cc.House([*open_sites({"a": TABLES["a"]}), stranger]), by=[BY[0]])
    assert not stranger.ledger.spent()


def test_small_counts_take_all_groups_of_their_attribute_with_them() -> None:
    rows = [*TABLES["a"], {**TABLES["a"][0], "sex": "x"}]
    model = make("tree", "exact").set_params(max_depth=1).fit(open_sites())
    sites = open_sites({"a": rows}, cc.Policy(minimum_cell=2, differencing=False))
    found = model.evaluate(cc.House(sites), by=BY).metrics
    assert found["overall"]["patients"] == len(rows)
    assert set(found["subgroups"]) == {"age"}
    sites = open_sites({"a": rows}, cc.Policy(minimum_cell=100, differencing=False))
    assert model.evaluate(cc.House(sites), by=BY).metrics["overall"]["patients"] == 0
