"""The page of a vote of rules: figures of these windows, whom they are of, and courses only where they are wanted."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from concilium.consult.rule_report import render_rule_report
from concilium.errors import ModelError
from concilium.evaluation.rule_judgement import judge_vote
from concilium.records.series import Series
from concilium.temporal.formula import Always, Limit
from concilium.temporal.learning import LabelledWindows, RuleVote
from concilium.temporal.parsing import parse

ODD = "<b>&"
VOTE = RuleVote(
    (parse("G[0,2] HR >= 90"), Always((0, 2), Limit(ODD, ">=", 7.0)), parse("F[0,2] HR < 60")),
    (0.25, 1.5, 0.5),
    -0.125,
)


def make_windows(heart=(100.0, 95.0, 80.0, 70.0), odd=(8.0, 8.0, 6.0, 8.0), labels=(1, 0, 0, 1)):
    series = Series(
        {"HR": np.tile(np.array(heart), (3, 1)), ODD: np.tile(np.array(odd), (3, 1))},
        lengths=[3] * len(heart),
    )
    return LabelledWindows(series, np.array(labels) == 1, np.arange(len(heart)) // 2)


class _Rows(HTMLParser):
    """The cells of the page's table, and every tag that stays open."""

    def __init__(self):
        super().__init__()
        self.rows, self.open, self._cell = [], [], None

    def handle_starttag(self, tag, attrs):
        if tag in ("meta", "br", "img"):
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


def read_rows(page):
    parser = _Rows()
    parser.feed(page)
    assert parser.open == []
    return parser.rows[1:]


def test_the_table_says_where_each_rule_holds():
    rows = read_rows(render_rule_report(VOTE, make_windows(odd=(8.0, np.nan, 6.0, 8.0)), "Sepsis"))
    assert rows == [
        [f"G[0,2] `{ODD}` >= 7", "+1.500", "1.000", "0.000", "0.250"],
        ["F[0,2] HR < 60", "+0.500", "0.000", "0.000", "0.000"],
        ["G[0,2] HR >= 90", "+0.250", "0.500", "0.500", "0.000"],
        ["always", "-0.125", "", "", ""],
    ]


def test_figures_are_those_of_the_judgement_and_windows_are_counted():
    windows = make_windows()
    page = render_rule_report(VOTE, windows, "Sepsis")
    figures = judge_vote(VOTE, windows)
    assert f"<b>{figures['balanced_accuracy']:.3f}</b><span>Balanced accuracy</span>" in page
    text = " ".join(page.split())
    assert "3 rules that vote on windows of 3 steps of 1h, judged on 4 windows of 2 patients" in text
    assert "2 of the windows are positive (50.0 %)" in text


@pytest.mark.parametrize(
    ("unseen", "words"), [(True, "neither the rules nor their weights"), (False, "flatter")]
)
def test_the_page_says_whether_the_patients_were_learned_from(unseen, words):
    text = " ".join(render_rule_report(VOTE, make_windows(), "Sepsis", unseen=unseen).split())
    assert words in text
    assert ("flatter" in text) is not unseen


def test_nothing_in_a_name_is_markup():
    page = render_rule_report(VOTE, make_windows(), "<script>alert(1)</script>")
    assert "<script" not in page
    assert ODD not in page
    assert "&lt;b&gt;&amp;" in page
    assert not re.search("(?:src|href)=", page)


@pytest.mark.parametrize(("pictures", "shown"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_so_many_pictures_of_the_rules_that_weigh_most(pictures, shown):
    page = render_rule_report(VOTE, make_windows(), "Sepsis", pictures=pictures)
    assert page.count("<svg") == shown
    titles = re.findall("<title>Courses that fulfil and that break (.*?)</title>", page)
    assert titles == ["G[0,2] `&lt;b&gt;&amp;` &gt;= 7", "F[0,2] HR &lt; 60", "G[0,2] HR &gt;= 90"][:shown]
    assert ("not for release" in page) is (shown > 0)


def test_without_pictures_no_value_of_a_patient_is_in_the_page():
    """Other values on the same side of every limit give the same page."""
    windows, others = make_windows(), make_windows((117.3, 91.7, 83.9, 61.1), (7.77, 9.31, 5.13, 8.59))
    assert render_rule_report(VOTE, windows, "t", pictures=0) == render_rule_report(
        VOTE, others, "t", pictures=0
    )
    assert render_rule_report(VOTE, windows, "t") != render_rule_report(VOTE, others, "t")


def test_windows_of_one_outcome_and_variables_without_a_value_leave_figures_out():
    page = render_rule_report(VOTE, make_windows(odd=(np.nan,) * 4, labels=(1, 1, 1, 1)), "t")
    rows = read_rows(page)
    assert rows[0][2:] == ["0.000", "–", "1.000"]
    assert "<b>–</b><span>AUC</span>" in page


@pytest.mark.parametrize("pictures", [-1, True, 1.5])
def test_bad_counts_of_pictures(pictures):
    with pytest.raises(ModelError, match="whole number from 0"):
        render_rule_report(VOTE, make_windows(), "t", pictures=pictures)


def test_no_windows():
    windows = make_windows()
    with pytest.raises(ModelError, match="no windows"):
        render_rule_report(VOTE, windows.take(np.zeros(4, dtype=bool)), "t")
