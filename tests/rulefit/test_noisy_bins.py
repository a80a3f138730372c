"""What noise lets tell of where patients are: bounds on noise, held against its distribution; attributes that are left
out, in every release whose histograms have noise; and that nothing more is asked for it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from rule_patients import BINS, COLUMNS, deal, draw, open_house, small_rulefit
from scipy import stats

import concilium as cc
from agreed import Asker
from concilium.errors import HouseError, StudyError
from concilium.models.outcome import WIDE_EDGES
from concilium.privacy.mechanisms import add_gaussian, add_laplace
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.privacy.shares import draw_laplace_share
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Refusal
from concilium.rulefit.cutoffs import (
    LEFT_OUT_WRONGLY,
    TAKEN_FOR_PATIENTS,
    Noise,
    _cannot_tell_spread,
    _find_lone_bin,
    _say_hidden,
    _say_lone_bin,
    judge_bins,
)
from side_door import find_side_doors

FAR = [float(edge) for edge in range(1000, 1070)]  # everybody is below
UNLIMITED = cc.Policy(budget=cc.Budget("unlimited"))
NOISY = [
    ("masked", {"epsilon": 1}),
    ("masked", {"noise": "laplace", "epsilon": 1}),
    ("exact", {"noise": "laplace", "epsilon": 1}),
    ("private", {"values": {"y": [0, 1]}, "epsilon": 3}),
]


def make_study(release, bins, **options):
    asked = {"bins": bins, "release": release, "positive": 1, **options}
    return cc.RuleFit("y", **asked) if release == "private" else small_rulefit(**asked)


def said(model):
    return "\n".join(model.card.warnings)


@pytest.mark.parametrize("counts", [1, 7, 70])
@pytest.mark.parametrize("chance", [0.1, 0.01, 1e-6])
def test_noise_is_above_its_bound_no_more_often_than_stated(counts, chance):
    """Gaussian noise by its distribution function; one Laplace count in closed form, sums of many as gammas."""
    gaussian = Noise(30.0)
    assert stats.norm.sf(gaussian.bound(counts, chance), scale=gaussian.deviation(counts)) <= chance
    for scale in (0.3, 4.0, 50.0):
        # The difference of two gammas is above t at most as often as its first is, given each value of the second.
        laplace = Noise(2 * scale**2, scale)
        above = np.floor(laplace.bound(counts, chance))
        draws = np.linspace(0.0005, 0.9995, 1000)
        second = stats.nbinom.ppf(draws, counts, 1 - np.exp(-1 / scale))
        exceeds = stats.nbinom.sf(above + second, counts, 1 - np.exp(-1 / scale)).mean()
        assert exceeds <= chance * 1.01


def test_a_bound_is_no_larger_than_it_must_be():
    assert Noise(4.0).bound(9, 0.01) < 3.1 * 6
    assert Noise(0.0).bound(9, 0.01) == 0.0
    assert Noise(2.0, 1.0).bound(70, 0.01) < 3.5 * Noise(2.0, 1.0).deviation(70)


@pytest.mark.parametrize("family", ["gaussian", "laplace", "shares", "hospitals"])
@pytest.mark.parametrize("place", [1, 30, 71])
def test_patients_in_one_bin_are_found_there_as_often_as_stated(family, place):
    """900 patients in one of 71 bins: the rest is taken for patients in one of twenty at most, and mostly in fewer."""
    rounds, scale, sites = 300, 5.0, 4
    table = np.zeros((rounds, 72), dtype=np.int64)
    table[:, place] = 900
    if family == "gaussian":
        table, noise = add_gaussian(table, 81), Noise(81.0)
    elif family == "laplace":
        table, noise = add_laplace(table, "1/5"), Noise(2 * scale**2, scale)
    elif family == "shares":
        noise = Noise(2 * scale**2 * sites / (sites - 1), scale)
        for _ in range(sites):
            table = table + draw_laplace_share(table.size, "1/5", 1, sites).reshape(table.shape)
    else:
        noise = Noise(2 * scale**2 * sites, scale)
        for _ in range(sites):
            table = add_laplace(table, "1/5")
    found = [_find_lone_bin(histogram, noise) for histogram in table]
    assert set(found) <= {place - 1, None}
    # A binomial of the stated chance is above this once in a million runs.
    assert found.count(None) <= stats.binom.isf(1e-6, rounds, TAKEN_FOR_PATIENTS)


def test_an_attribute_with_no_more_than_half_in_a_bin_is_left_out_as_seldom_as_stated():
    """The worst: a half beyond the last edge, and the other half thinly over all bins, with noise that hides it."""
    rounds, noise = 2000, Noise(81.0)
    for patients in (140, 300, 900):
        histogram = np.zeros(72, dtype=np.int64)
        histogram[1:71] = patients // 140
        histogram[71] = histogram[1:71].sum()
        table = add_gaussian(np.tile(histogram, (rounds, 1)), 81)
        out = sum(_find_lone_bin(noisy, noise) is not None for noisy in table)
        assert out <= stats.binom.isf(1e-6, rounds, LEFT_OUT_WRONGLY)


def test_many_patients_in_few_bins_are_seen_where_the_noise_of_all_bins_would_hide_them():
    """A count such as earlier stays: most have none, below the first edge, and some have one or two."""
    histogram = np.zeros(72, dtype=np.int64)
    histogram[1:4] = 760, 100, 40
    table = add_gaussian(np.tile(histogram, (300, 1)), 81)
    assert histogram[2:].sum() < 2 * Noise(81.0).deviation(70)
    assert not any(_cannot_tell_spread(noisy, Noise(81.0)) for noisy in table)


@pytest.mark.parametrize(
    ("histogram", "lone"),
    [
        ([0, 900, 0, 0, 0], 0),
        ([500, 0, 0, 0, 900], 3),
        ([0, 3, 900, -5, 2], 1),
        ([0, 900, 0, 0, 100], None),  # at both ends
        ([0, 20, 1, 0, 3], None),  # noise could hide more than that
        ([900, 0, 0, 0, 0], None),  # all are missing
        ([0, 900, 0], None),  # one edge
    ],
)
def test_which_bin_is_alone(histogram, lone):
    assert _find_lone_bin(np.array(histogram), Noise(25.0)) == lone


def test_what_is_said_of_one_bin_is_honest_about_noise():
    edges, noise = (20.0, 40.0, 60.0), Noise(25.0)
    above = _say_lone_bin(edges, np.array([3, -2, 4, 1, 897]), 3, noise)
    assert above == (
        "its bins, 20 to 60, seem to miss all patients: by a histogram with noise about 897 patients are at 60 or "
        "above, and no more than noise in its other bins (together 3, with a standard deviation of 8.66). Is it "
        "the same for everybody? If not, give bins within its range"
    )
    assert "about 897 patients are below 20, and" in _say_lone_bin(
        edges, np.array([3, 897, 4, 1, 2]), 0, noise
    )
    inner = _say_lone_bin(edges, np.array([3, 1, 897, 1, 2]), 1, noise)
    assert inner.startswith("by a histogram with noise about 897 patients are between 20 and 40, and no more")
    left_out, hidden = judge_bins(
        [(Attribute(name, edges), np.array([0, 6, -4, 9, 2])) for name in "abcde"], noise
    )
    assert left_out == {}
    assert hidden == [_say_hidden(list("abcde"), noise)]
    assert "over the bins of a, b, c and 2 more: cutoffs" in hidden[0]


@pytest.mark.parametrize(("release", "options"), NOISY, ids=str)
@pytest.mark.parametrize(
    ("far", "side"), [(FAR, "below 1000"), ([-e for e in FAR[::-1]], "at -1000 or above")]
)
def test_an_attribute_whose_bins_miss_everybody_is_left_out_under_noise_too(release, options, far, side):
    bins = {"a": BINS["a"], "b": BINS["b"], "c": far}
    attributes = [*bins]
    table, outcome = draw(1200, 1)
    sites = [cc.Site(f"s{i}", part, UNLIMITED) for i, part in enumerate(deal(table, outcome, 4))]
    # Noise is taken for patients now and then, once in twenty at most: four times in a row is no accident.
    tries = (make_study(release, bins, attributes=attributes, **options) for _ in range(4))
    model = next(one for one in tries if "left out: c" in said(one.fit(cc.House(sites))))
    assert (
        f"left out: c (its bins, {far[0]:g} to {far[-1]:g}, seem to miss all patients: by a histogram"
        in said(model)
    )
    assert f"patients are {side}, and no more than noise in its other bins" in said(model)
    assert [attribute.name for attribute in model.body.terms.attributes] == ["a", "b"]
    assert set(model.importances()) <= {"a", "b"}
    assert "left out: a" not in said(model)
    assert "left out: b" not in said(model)


def test_a_constant_within_the_bins_is_left_out_of_a_private_model(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    table, outcome = draw(1200, 2)
    table[:, 2] = 0.35
    sites = [cc.Site(f"s{i}", part, UNLIMITED) for i, part in enumerate(deal(table, outcome, 4))]
    edges = [-1.0, -0.5, 0.0, 0.5, 1.0]
    bins = dict.fromkeys(("a", "b", "c"), edges)
    with zero_noise():
        model = make_study("private", bins, values={"y": [0, 1]}, epsilon=3).fit(cc.House(sites))
    assert "patients are between 0 and 0.5, and no more than noise" in said(model)
    assert "c" not in [attribute.name for attribute in model.body.terms.attributes]


def test_where_no_attribute_is_left_a_private_study_says_so(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    sites = [cc.Site(f"s{i}", part, UNLIMITED) for i, part in enumerate(deal(*draw(1200, 1), 4))]
    study = make_study("private", {"c": FAR[:8]}, values={"y": [0, 1]}, epsilon=3)
    why = r"no attribute is left .* c: its bins, 1000 to 1007, seem to miss"
    with zero_noise(), pytest.raises(HouseError, match=why):
        study.fit(cc.House(sites))


@pytest.mark.parametrize(("release", "options"), NOISY[:3], ids=str)
def test_what_had_noise_is_not_asked_again_exactly(release, options, monkeypatch):
    """With the noise held at zero the bins miss everybody for sure, and there is no exact second look."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    asked = []
    compute = AskCounts.compute

    def watch(self, cohort):
        if self.noise is None:
            asked.extend(attribute.name for attribute in self.attributes)
        return compute(self, cohort)

    monkeypatch.setattr(AskCounts, "compute", watch)
    few = [-1.0, 0.0, 1.0]
    bins = {"a": few, "b": [1000.0, 2000.0, 3000.0], "c": FAR}
    with zero_noise():
        model = make_study(release, bins, attributes=[*bins], **options).fit(open_house(*draw(1200, 1), 4))
    assert set(asked) == {"a", "b"}
    assert asked.count("b") == 8  # at each of four hospitals, and a second look
    assert (
        "left out: b (its bins, 1000 to 3000, miss all patients: edges between -10 and 10 would do)"
        in said(model)
    )
    assert "); c (its bins, 1000 to 1069, seem to miss all patients: " in said(model)


@pytest.mark.parametrize("edges", [FAR, WIDE_EDGES, FAR[:1]], ids=["its own", "wide ones", "one of them"])
def test_hospitals_do_not_tell_exactly_what_the_study_has_told_with_noise(edges):
    """Whatever the edges: a house could ask for a second look that the study does not have."""
    bins = {"a": [-1.0, 0.0, 1.0], "c": FAR}
    for noise, refused in (("laplace", True), ("gaussian", False)):
        site = cc.Site("s", deal(*draw(300, 5), 1)[0])
        parameters = {"positive": 1, "bins": bins, "noise": noise, "epsilon": 1, "attributes": ["a", "c"]}
        asker = Asker([site], method="rulefit", release="exact", parameters=parameters)
        question = AskCounts(totals=False, query="", target="y", attributes=(Attribute("c", tuple(edges)),))
        reply = asker.put(site, question)
        assert isinstance(reply, Refusal) == refused
        if refused:
            assert "the histogram of 'c' is told with noise in this study" in reply.reason
        few = AskCounts(totals=False, query="", target="y", attributes=(Attribute("a", (-1.0, 0.0, 1.0)),))
        assert not isinstance(asker.put(site, few), Refusal)


def test_leaving_an_attribute_out_is_no_side_door(monkeypatch):
    """Messages, sizes and charges are the same with one patient fewer; each question costs what it did before."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    table, outcome = draw(600, 4)
    rows = [{"a": a, "c": c, "y": int(y)} for (a, _, c, _), y in zip(table.tolist(), outcome, strict=True)]
    sites = {"one": rows[:300], "two": rows[300:500], "three": rows[500:]}
    bins = {"a": [-1.0, 0.0, 1.0], "c": FAR[:8]}
    seen = []

    def study(house):
        model = make_study("private", bins, values={"y": [0, 1]}, epsilon=3).fit(house)
        seen.append(said(model))
        assert {release.cost for release in model.card.releases} == {model.card.releases[0].cost}

    schema = {"a": "number", "c": "number", "y": "code"}
    assert find_side_doors(sites, ("two", 7), study, schema=schema, policy=UNLIMITED) == []
    assert len(seen) == 2
    assert all("left out: c" in each for each in seen)


@pytest.mark.parametrize(
    ("release", "options", "price"),
    [
        (
            "exact",
            {"noise": "laplace", "epsilon": "0.75"},
            "which each hospital added by itself, at epsilon = 0.75 for",
        ),
        (
            "masked",
            {"noise": "laplace", "epsilon": 1},
            "which the hospitals added in shares, at epsilon = 1 for all",
        ),
        (
            "masked",
            {"epsilon": 1},
            "which the hospitals added in shares, at epsilon = 1 and delta = 1/1000000 for all",
        ),
    ],
)
def test_the_card_says_what_had_noise_and_at_which_price(release, options, price):
    house = open_house(*draw(400, 3), 4)
    model = small_rulefit(release=release, **options).fit(house)
    (line,) = [one for one in model.card.warnings if "have noise" in one]
    assert line.startswith(
        "of all that was told only the histograms that chose the cutoffs of a, b, c and 1 more"
    )
    assert price in line
    assert line.endswith("everything else is exact")


@pytest.mark.parametrize(
    "options", [{"release": "exact"}, {"release": "exact", "epsilon": 1}, {"release": "masked"}], ids=str
)
def test_a_card_without_noise_says_nothing_of_it(options):
    assert "noise" not in said(small_rulefit(**options).fit(open_house(*draw(400, 3), 4)))


def test_noise_that_hides_where_patients_are_is_said():
    model = small_rulefit(noise="laplace", epsilon="1e-9").fit(open_house(*draw(400, 3), 3))
    line = f"noise (a standard deviation of {Noise(2 * 3 * (4e9) ** 2).deviation():.3g} in each bin) hides how the"
    assert f"{line} patients lie over the bins of a, b, c and 1 more" in said(model)
    assert "left out" not in said(model)
    clear = small_rulefit(noise="laplace", epsilon="1.2").fit(open_house(*draw(400, 3), 3))
    assert "hides" not in said(clear)


@pytest.mark.parametrize(
    ("options", "too_small", "enough"),
    [
        ({"release": "masked"}, "7e-5", "1e-4"),
        ({"release": "masked", "noise": "laplace"}, "4e-5", "1e-3"),
        ({"release": "exact", "noise": "laplace"}, "5e-16", "1e-12"),
    ],
    ids=str,
)
def test_an_epsilon_that_no_hospital_could_answer_is_refused_before_anything_is_asked(
    options, too_small, enough
):
    for epsilon in ("1e-20", too_small):
        with pytest.raises(StudyError, match=f"an 'epsilon' of {epsilon} is too small for any question"):
            small_rulefit(epsilon=epsilon, **options)
    small_rulefit(epsilon=enough, trees=3, **options).fit(open_house(*draw(400, 3), 3))
    # Where there are all edges for cutoffs, nothing is chosen, and nothing has noise.
    small_rulefit(epsilon="1e-20", cutoffs="all", **options)


def test_noise_of_many_attributes_that_cannot_be_drawn_is_refused_before_it_is_paid_for():
    sites = [cc.Site(f"s{i}", part, UNLIMITED) for i, part in enumerate(deal(*draw(400, 3), 3))]
    study = small_rulefit(epsilon="1/10000", release="masked", noise="laplace")
    assert len(COLUMNS) == 4
    with pytest.raises(StudyError, match="an 'epsilon' of 1/10000 is too small"):
        study.fit(cc.House(sites))
    assert all(site.ledger.spent() == 0 for site in sites)


@pytest.mark.parametrize(("release", "options"), NOISY[:3], ids=str)
@pytest.mark.parametrize("numbers", [{}, {"c": lambda c: 1e-9 * c}, {"c": lambda c: np.round(c) / 4}])
def test_numbers_without_bins_cost_no_more_than_was_planned(release, options, numbers):
    """Decades and digits share the price, also of a number that has few edges on the grid."""
    table, outcome = draw(1200, 6)
    for name, change in numbers.items():
        table[:, COLUMNS.index(name)] = change(table[:, COLUMNS.index(name)])
    sites = [cc.Site(f"s{i}", part, UNLIMITED) for i, part in enumerate(deal(table, outcome, 4))]
    for bins in ({}, {"a": BINS["a"]}):
        model = make_study(release, bins, attributes=["a", "c"], **options).fit(cc.House(sites))
        paid = {site.name: 0 for site in sites}
        for one in model.card.releases:
            paid[one.site] += Fraction(one.cost or 0)
        assert 0 < max(paid.values()) <= model.plan().total


def test_numbers_without_bins_cost_nothing_where_all_edges_are_cutoffs():
    study = small_rulefit(release="masked", bins={}, attributes=["a"], cutoffs="all", epsilon=1)
    model = study.fit(open_house(*draw(400, 3), 3))
    assert model.plan().total == 0
    assert not any(one.cost for one in model.card.releases)
