"""The report: everything a reader must know, nothing fetched, nothing that a name could break."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from concilium.consult.report import (
    FIGURES,
    NUMBER_FIGURES,
    _figure,
    _releases_by_site,
    _thousands,
    render_report,
)
from concilium.evaluation.metrics import FIGURES as MEASURED
from concilium.evaluation.metrics import NUMBER_FIGURES as MEASURED_NUMBERS


def card(**changes: Any) -> dict[str, Any]:
    return {
        "purpose": "to plan beds",
        "study": "f00d",
        "method": "tree",
        "release": "exact",
        "meaning": "exact: epsilon is unlimited",
        "sites": [{"name": "north", "patients": 100}, {"name": "south", "patients": None}],
        "rounds": 4,
        "bytes": 12345,
        "releases": [
            {
                "site": "north",
                "kind": "tree.schema",
                "release": "exact",
                "answers": 1,
                "numbers": 9,
                "cost": None,
            },
            {
                "site": "north",
                "kind": "tree.cross",
                "release": "exact",
                "answers": 3,
                "numbers": 31,
                "cost": None,
            },
            {
                "site": "south",
                "kind": "tree.schema",
                "release": "exact",
                "answers": 1,
                "numbers": 9,
                "cost": None,
            },
        ],
        "refusals": [],
        "dropouts": [],
        "warnings": [],
        "version": "0.1.0",
        **changes,
    }


def metrics(**changes: Any) -> dict[str, Any]:
    row = {"patients": 50, **dict.fromkeys(FIGURES, 0.75)}
    other = {"patients": 3, **dict.fromkeys(FIGURES, 0.5), "auc": None}
    return {
        "study": "burns",
        "method": "tree",
        "target": "death",
        "positive": 1,
        "evaluation": "every site left out in turn",
        **row,
        "seconds": 1.25,
        "epsilon": None,
        "overall": row,
        "sites": {"north": row, "south": other},
        "folds": [],
        **changes,
    }


class Outline(HTMLParser):
    """What a page refers to, its headings, and its text; complains about tags that do not match."""

    VOID = frozenset({"meta", "br", "hr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href", "action", "style")
        ]
        self.links += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(query: str = "", drawing: str = "death (100 patients)", **parts: Any) -> str:
    return render_report(parts.get("metrics") or metrics(), parts.get("card") or card(), drawing, query)


def test_the_page_stands_alone() -> None:
    text = page()
    outline = Outline(text)
    assert outline.links == []
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
    assert "@media print" in text
    assert 'name="viewport"' in text


def test_everything_a_reader_must_know_is_there() -> None:
    text = Outline(page(query="age > 20", drawing="death\n├─ sex = f: 1 (3 of 4)")).text
    for words in (
        "burns",
        "age > 20",
        "the positive class is 1",
        "4 rounds of questions, 12,345 bytes, 1.2 s",
        "Measured on 50 patients: every site left out in turn.",
        "├─ sex = f: 1 (3 of 4)",
        "“Epsilon = unlimited” means that there is no bound",
        "In all, 49 numbers were released about 100 patients.",
        "None: every site answered every question.",
        "What this does not protect",
        "Concilium 0.1.0",
    ):
        assert words in text


def test_figures_have_the_names_of_metrics_json() -> None:
    assert set(FIGURES) == set(MEASURED)
    text = Outline(page()).text
    assert "north 50 0.750" in text
    assert "south 3 – 0.500 0.500" in text


def number_metrics(**changes: Any) -> dict[str, Any]:
    row = {
        "patients": 50,
        "rmse": 1812.7,
        "mae": 12.345,
        "r2": 0.87,
        "spearman": None,
        "mean": 1e4,
        "median": 2,
    }
    groups = [{"patients": 25, "predicted": 900.0, "observed": 1100.0}] * 2
    plain = {key: value for key, value in metrics().items() if key not in ("positive", *FIGURES)}
    sites = {"north": row, "south": {**row, "patients": 3, "r2": None}}
    numbers = {"range": [0.0, 50_000.0], "overall": row, "sites": sites, "calibration": groups}
    return {**plain, **row, "target": "cost", **numbers, **changes}


def test_a_number_has_its_errors_in_its_own_unit_and_a_picture() -> None:
    assert tuple(NUMBER_FIGURES) == MEASURED_NUMBERS
    outline = Outline(page(metrics=number_metrics()))
    for words in (
        "cost , a number between 0 and 50,000",
        "1,813 RMSE",
        "north 50 1,813 12.35 0.870 – 10,000 2",
        "south 3 1,813 12.35 – – 10,000 2",
        "Patients in tenths by their prediction",
        "1 25 900 1,100",
    ):
        assert words in outline.text, words
    assert "circle" in outline.tags
    assert "AUC" not in outline.text


def test_a_number_that_was_not_measured_has_no_picture() -> None:
    bare = number_metrics(patients=0, sites={}, calibration=[], evaluation="not evaluated: no [evaluate]")
    outline = Outline(page(metrics=bare))
    assert "Not evaluated" in outline.text
    assert "circle" not in outline.tags


def test_names_cannot_write_html() -> None:
    nasty = "<script>alert(1)</script>&\"'"
    text = page(
        query=nasty,
        drawing=nasty,
        metrics=metrics(
            study=nasty,
            target=nasty,
            positive=nasty,
            sites={nasty: metrics()["overall"], "b": metrics()["overall"]},
        ),
        card=card(
            sites=[{"name": nasty, "patients": 3}],
            warnings=[nasty],
            refusals=[{"site": nasty, "kind": nasty, "rule": nasty, "reason": nasty}],
            dropouts=[{"site": nasty, "round": 2, "reason": nasty}],
        ),
    )
    outline = Outline(text)
    assert "script" not in outline.tags
    assert outline.text.count("<script>alert(1)</script>") >= 10


def test_more_than_one_number_for_two_patients_stands_out() -> None:
    crowded = card(sites=[{"name": "north", "patients": 79}, {"name": "south", "patients": 100}])
    assert 'class="high">0.51</td>' in page(card=crowded)


def test_half_a_number_a_patient_is_not_yet_a_warning() -> None:
    assert 'class="high">0.50' not in page(card=card(sites=[{"name": "north", "patients": 80}]))


def test_refusals_and_losses_are_told() -> None:
    text = Outline(
        page(
            card=card(
                refusals=[{"site": "coast", "kind": "tree.schema", "rule": "patients", "reason": "too few"}],
                dropouts=[{"site": "hill", "round": 2, "reason": "no answer within 60 s"}],
            )
        )
    ).text
    assert "coast refused a question of kind tree.schema (rule: patients): too few." in text
    assert "hill was lost in round 2: no answer within 60 s." in text


def test_a_run_without_evaluation_says_so() -> None:
    bare = metrics(patients=0, sites={}, evaluation="not evaluated: the study file has no [evaluate]")
    text = Outline(page(metrics=bare)).text
    assert "Not evaluated" in text
    assert "Measured on" not in text


@pytest.mark.parametrize("sites", [1, 25, 26, 80])
def test_long_tables_are_folded(sites: int) -> None:
    names = [f"site {number}" for number in range(sites)]
    text = page(
        metrics=metrics(sites=dict.fromkeys(names, metrics()["overall"])),
        card=card(sites=[{"name": name, "patients": 9} for name in names], releases=[]),
    )
    Outline(text)
    assert ('<details class="table" open>' in text) == (sites <= 25)


def test_releases_are_added_up_by_site() -> None:
    north, south = _releases_by_site(card())
    assert north == {
        "site": "north",
        "patients": 100,
        "answers": 4,
        "numbers": 40,
        "per_patient": 0.4,
        "cost": "unlimited",
    }
    assert south["per_patient"] is None


def test_what_a_site_released_that_is_not_in_the_model_is_shown() -> None:
    extra = {
        "site": "away",
        "kind": "tree.classes",
        "release": "exact",
        "answers": 1,
        "numbers": 2,
        "cost": None,
    }
    rows = _releases_by_site(card(releases=[*card()["releases"], extra]))
    assert [row["site"] for row in rows] == ["north", "south", "away (not in the model)"]
    assert (rows[-1]["numbers"], rows[-1]["patients"], rows[-1]["per_patient"]) == (2, None, None)
    text = page(card=card(releases=[*card()["releases"], extra]))
    assert "away (not in the model)" in Outline(text).text


@pytest.mark.parametrize("kind", ["tree.schema", "rulefit.rules"])
def test_the_page_says_what_masks_did_not_cover(kind: str) -> None:
    told = {"site": "north", "kind": kind, "release": "masked", "answers": 1, "numbers": 2, "cost": None}
    text = " ".join(Outline(page(card=card(release="masked", releases=[told]))).text.split())
    assert "saw only sums over sites" in text
    assert "which values occur there" in text
    assert ("the rules of its own trees" in text) == (kind == "rulefit.rules")


def test_numbers_for_people() -> None:
    assert (_figure(None), _figure(0.12345), _figure(-1.0)) == ("–", "0.123", "-1.000")
    assert (_figure(1234.5, "rmse"), _figure(None, "rmse"), _figure(0.5, "r2")) == ("1,234", "–", "0.500")
    assert (_thousands(None), _thousands(1234567)) == ("–", "1,234,567")


def test_exact_costs_are_added_up_and_shown_as_people_read_them() -> None:
    parts = [
        {"site": "north", "kind": kind, "release": "private", "answers": 1, "numbers": 2, "cost": cost}
        for kind, cost in (("counts", "1/3"), ("mask.open", "1/6"))
    ]
    text = page(card=card(sites=[{"name": "north", "patients": None}], releases=parts))
    assert "rho 0.5" in Outline(text).text
    assert "1/3" not in Outline(text).text
