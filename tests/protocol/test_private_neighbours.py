"""Every private question against brute force: any that a house can write, on a table with and without a patient.

The two answers differ by no more than what the site works out and charges for, or both are the same refusal.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import ConciliumError, MessageError
from concilium.experts.expert_answers import AskExpertCounts, AskExpertLabels
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange
from concilium.experts.patient_windows import lay_course, lay_public
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.followed_outcome import FollowedOutcome
from concilium.protocol.held_out import Part
from concilium.protocol.messages import encode
from concilium.protocol.questions import Gaussian, Laplace, Summed, _read_question
from concilium.protocol.releases import find_release
from concilium.protocol.splits import Split
from concilium.protocol.terms import MEASURED
from concilium.records.columns import label
from concilium.registry import KINDS, load
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.gradient import AskGradient
from concilium.rulefit.terms import Line, RuleTerms, Steps, write_terms
from concilium.shapes.cells import Cells
from concilium.shapes.private_sums import AskDirections, Direction
from concilium.statistics.columns import Column, Factor
from concilium.statistics.moments import AskMoments
from concilium.statistics.private_hazards import AskHazards
from concilium.statistics.regression_sums import AskRegression
from concilium.temporal.outcome_questions import (
    EVENLY,
    HOUR_BINS,
    AskOutcomeHours,
    AskRuleGradient,
    AskRuleOutcomes,
)
from concilium.temporal.rule_questions import AskRuleCounts
from concilium.temporal.rule_task import RulePart
from contract.patients import make_series

# Values that are alike, odd, or of several kinds in one column.
POOL = {
    "whole": [0, 1, 2, 5, -3, 10**6, "12", "unknown"],
    "real": [0.5, 1.0, -0.0, 0.0, 1e308, -1e308, float("inf"), 2.5, 1e-300],
    "text": [
        "a",
        "A",
        " a",
        "",
        "5",
        "5.0",
        "05",
        "1e3",
        "true",
        "nan",
        "(missing)",
        "é",
        "e\u0301",
        ".5",
        "+5",
    ],
    "truth": [True, False, "TRUE", "unknown"],
    "mixed": [1, 2, "x", "1", 0.5, "0.50"],
}
ENDS = [-1e14, -5.0, 0.0, 1.0, 1.0 + 2**-52, 2.5, 1e14]
EDGES = [-5.0, -0.0, 0.5, 1.0, 2.0, 5.0, 1e300]
POLICIES = [
    cc.Policy(),
    cc.Policy(
        constraints="graph a { node p + where p.text = 'a' eliminate p.mixed; }"
        " graph b { node p + substitute p.whole =~ /round(5)/; }"
        " graph c { node p where p.real > 2 exists p.text; }"
    ),
]


def draw_rows(dice: Random, count: int) -> list[dict]:
    rows: list[dict] = []
    for _ in range(count):
        alike = rows and dice.random() < 0.3
        fresh = {name: None if dice.random() < 0.15 else dice.choice(pool) for name, pool in POOL.items()}
        rows.append(dict(dice.choice(rows)) if alike else fresh)
    return rows


def draw_schema(dice: Random) -> dict[str, str]:
    """Every column is stated, now and then one is not, and then refused for everybody."""
    schema = {name: "number" if name == "real" and dice.random() < 0.7 else "code" for name in POOL}
    if dice.random() < 0.1:
        schema.pop(dice.choice(list(POOL)))
    return schema


def draw_values(dice: Random, name: str) -> list:
    listed = [value for value in POOL[name] if value != float("inf")]
    chosen = [dice.choice([*listed, "zz", 7, True, 1, "1"]) for _ in range(dice.randrange(4))]
    return list({label(value): value for value in chosen}.values())


def draw_edges(dice: Random) -> list[float]:
    return sorted({dice.choice(EDGES) for _ in range(dice.randrange(1, 5))})


def draw_query(dice: Random) -> str:
    def say(value) -> str:
        if isinstance(value, bool | str):
            return label(value) if isinstance(value, bool) else f"'{value}'"
        return repr(value) if abs(value) < 1e300 else "1e300"

    said = []
    for _ in range(dice.randrange(3)):
        name = dice.choice(list(POOL))
        one, other = (say(dice.choice(POOL[name])) for _ in range(2))
        forms = [
            "{} = {}",
            "{} != {}",
            "{} < {}",
            "{} in {{{}, {}}}",
            "{} is missing",
            "{} between {} and {}",
        ]
        said.append(dice.choice(["", "not "]) + dice.choice(forms).format(name, one, other))
    return dice.choice([" and ", " or "]).join(said)


def draw_attribute(dice: Random, name: str) -> Attribute:
    """An attribute of any form; now and then one in which somebody has no cell, which is to be refused."""
    odd = dice.random() < 0.05
    if dice.random() < 0.5:
        return Attribute(name, tuple(draw_edges(dice)), (), not odd, dice.random() < 0.5)
    return Attribute(name, (), tuple(draw_values(dice, name)), dice.random() < 0.5, not odd)


def draw_attributes(dice: Random, least: int) -> tuple[Attribute, ...]:
    names = dice.sample(list(POOL), dice.randrange(least, 4))
    return tuple(draw_attribute(dice, name) for name in names)


def draw_histograms(dice: Random) -> AskCounts:
    target = dice.choice(list(POOL))
    classes = Attribute(target, (), tuple(draw_values(dice, target)), missing=False)
    return AskCounts(
        totals=False,
        query=draw_query(dice),
        target=target,
        attributes=draw_attributes(dice, 1),
        classes=dice.choice([None, classes, classes]),
        noise=Gaussian("9"),
    )


def draw_crosstables(dice: Random) -> AskCounts:
    target, attributes = dice.choice(list(POOL)), draw_attributes(dice, 0)
    # Often all classes, so that most patients are counted; otherwise whoever is of another is left out.
    everybody = {label(value): value for value in POOL[target] if value != float("inf")}
    classes = dice.choice([list(everybody.values()), draw_values(dice, target)])
    tree, leaves, born = [], [0], 1
    for _ in range(dice.randrange(4) if attributes else 0):
        node, index, children = leaves.pop(dice.randrange(len(leaves))), dice.randrange(len(attributes)), []
        for _ in range(attributes[index].size):
            children.append(dice.choice([-1, born, *(c for c in children if c > 0)]))
            born = max(born, *children) + 1 if max(children) == born else born
        tree.append(Split(node, index, children))
        leaves += sorted({child for child in children if child > 0})
        if not leaves:
            break
    return AskCounts(
        query=draw_query(dice),
        target=target,
        classes=Attribute(target, (), tuple(classes), missing=False, other=False),
        attributes=attributes,
        tree=tree,
        nodes=dice.sample(leaves, dice.randrange(1, len(leaves) + 1)) if leaves else [0],
        counted=dice.sample(range(len(attributes)), dice.randrange(len(attributes) + 1)),
        noise=Gaussian("9"),
        part=dice.choice([None, Part(percent=30, held=True), Part(percent=90, held=False)]),
    )


def draw_directions(dice: Random) -> AskDirections:
    attributes = [
        Attribute(name, tuple(draw_edges(dice)))
        if dice.random() < 0.6
        else Attribute(name, (), tuple(draw_values(dice, name)))
        for name in dice.sample(list(POOL), dice.randrange(1, 4))
    ]
    numbers = [-1e6, 0.0, 1.0, 0.3, 1e-9, -2.0]
    drawn = dice.choices(range(len(attributes)), k=dice.randrange(1, 5))
    target, products = dice.choice(list(POOL)), dice.random() < 0.4
    pairs: tuple[Cells, ...] = ()
    if len(attributes) > 1 and not products:
        pairs = (Cells((1, 0), tuple(tuple(c % 3 for c in range(attributes[a].size)) for a in (1, 0))),)
    return AskDirections(
        query=draw_query(dice),
        target=target,
        attributes=tuple(attributes),
        outcome=dice.choice(
            [
                Outcome(low=-2.0, high=dice.choice([3.0, 1e9])),
                *(Outcome(positive=value) for value in POOL[target] if value != float("inf")),
            ]
        ),
        directions=tuple(
            Direction(place, tuple(dice.choices(numbers, k=attributes[place].size))) for place in drawn
        ),
        cap=dice.choice([0.001, 0.9, 7.0]),
        lead=dice.choice([0.0, 0.3, 1.0]),
        intercept=dice.choice(numbers),
        shapes=tuple(tuple(dice.choices(numbers, k=a.size)) for a in attributes)
        if dice.random() < 0.7
        else (),
        products=products,
        pairs=pairs,
        share=dice.choice([0.35, 1.0]) if pairs else 0.0,
        noise=Gaussian("9"),
    )


def draw_gradient(dice: Random) -> AskGradient:
    attributes = [
        Attribute(name, tuple(draw_edges(dice)))
        if dice.random() < 0.6
        else Attribute(name, (), tuple(draw_values(dice, name)))
        for name in dice.sample(list(POOL), dice.randrange(1, 4))
    ]
    rules = []
    for _ in range(dice.randrange(5)):
        runs = [(i, *sorted(dice.choices(range(a.size), k=2))) for i, a in enumerate(attributes)]
        rule = tuple(run for run in runs if run[1:] != (0, attributes[run[0]].size - 1))
        rules += [rule] if rule else []
    bounds = [
        (-1.0, 3.0, 0.5, 200.0),
        (-1e308, 1e308, 0.0, 1e-306),
        (0.0, 0.0, 0.0, 1e308),
        (-0.5, 0.5, 0.5, 3.0),
    ]
    lines = [Line(i, *dice.choice(bounds)) for i, a in enumerate(attributes) if a.numeric]
    heights = [-1000.0, 0.0, 1.0, 0.3, 1e-9, 999.9]
    steps = [Steps(i, tuple(dice.choices(heights, k=a.size))) for i, a in enumerate(attributes)]
    norm = dice.choice([0.001, 1.0, 5.0, 1000.0])
    terms = RuleTerms(tuple(attributes), tuple(rules), tuple(lines), tuple(steps[: dice.randrange(4)]), norm)
    target, columns = dice.choice(list(POOL)), tuple(range(dice.randrange(len(terms) + 1)))
    values = tuple(dice.choices([0.0, 1.0, -1e6, 1e6, 0.3], k=len(columns)))
    return AskGradient(
        query=draw_query(dice),
        target=target,
        outcome=Outcome(positive=dice.choice([value for value in POOL[target] if value != float("inf")])),
        terms=write_terms(terms),
        at=Coefficients(dice.choice([0.0, 1e6, -1.0]), columns, values),
        places=dice.choice([0, 1, 10, 24]),
        noise=Gaussian("9"),
    )


RULES = ["real >= 0.5", "real < 0.5", "G real < 5.0", "F[0,2] real >= 1.0", "G[0,1] whole >= 2.0"]
TASK = cc.RuleDiscovery("truth", bins={"real": [0, 0.5, 1, 5], "whole": [2]}, limits=1, horizon=2).task
LEARNED = cc.RuleDiscovery("truth", bins={"real": [0, 0.5, 1, 5]}, window="2h", limits=1, most_rules=3).task
ABOUT = {
    "structures": "G[?] ? ? ?",
    "variables": "F[?] ? ? ?",
    "parameters": "real < ?",
    "rules": "G real < 5.0",
}


def draw_rule_counts(dice: Random) -> AskRuleCounts:
    task = dice.choice([TASK, TASK, LEARNED])
    stage = dice.choice(["clients", "names", "skeletons", *ABOUT])
    about = (ABOUT[stage],) if stage in ABOUT else ()
    part = RulePart(task, stage, dice.choice([(), ("real",)]), about)
    return AskRuleCounts(
        query=draw_query(dice), target="", part=part, most=dice.randrange(1, 4), noise=Gaussian("9")
    )


JUDGED = ("F[0,1] real < 5", "G[0,1] real >= 1", "real >= 0.5")


def draw_hour_weights(dice: Random) -> tuple[float, ...]:
    return dice.choice([(), EVENLY, tuple(dice.random() for _ in range(HOUR_BINS))])


def draw_rule_outcomes(dice: Random) -> AskRuleOutcomes:
    rules, weights = JUDGED[: dice.randrange(1, 4)], draw_hour_weights(dice)
    common = {"query": draw_query(dice), "target": "", "task": LEARNED, "noise": Gaussian("9")}
    return AskRuleOutcomes(**common, rules=rules, weights=weights)


def draw_outcome_hours(dice: Random) -> AskOutcomeHours:
    return AskOutcomeHours(query=draw_query(dice), target="", task=LEARNED, noise=Gaussian("9"))


def draw_rule_gradient(dice: Random) -> AskRuleGradient:
    rules = JUDGED[: dice.randrange(1, 4)]
    return AskRuleGradient(
        query=draw_query(dice),
        target="",
        task=LEARNED,
        rules=rules,
        weights=draw_hour_weights(dice),
        centres=tuple(dice.random() for _ in rules),
        at=tuple(dice.choice([0.0, 3.0, -1000.0]) for _ in range(len(rules) + 1)),
        norm=dice.choice([0.01, 1.0, 50.0]),
        places=dice.choice([0, 1, 10, 24]),
        noise=Gaussian("9"),
    )


def list_rules(row: dict) -> list[str]:
    """A few that follow from what the row says."""
    return [rule for place, rule in enumerate(RULES) if Random(f"{row} {place}").random() < 0.5]


EXPERTS = ExpertTask(
    target="truth",
    variables=(PublicRange("real", 0.0, 5.0),),
    window="2h",
    carry="2h",
    lead="1h",
    network=NetworkSettings(units=1, epochs=1),
)
STAYS = make_series([{"real": 0.5}, {"real": 4.0}], ["real"], "truth", True)


def draw_expert_labels(dice: Random) -> AskExpertLabels:
    return AskExpertLabels(
        query=draw_query(dice),
        target="",
        task=EXPERTS,
        experts=dice.choice([1, 2, 5, 40]),
        stays=lay_public(STAYS, EXPERTS, dice.choice(["1h", "3h"])),
        noise=Gaussian("100000000"),
    )


def draw_expert_drawn(dice: Random) -> AskExpertLabels:
    network = NetworkSettings(kind=dice.choice(["lstm", "linear"]), units=1, epochs=1)
    task = msgspec.structs.replace(EXPERTS, network=network)
    return AskExpertLabels(
        query=draw_query(dice),
        target="",
        task=task,
        experts=5,
        stays=lay_public(STAYS, task, "1h"),
        share=dice.choice([1, 500, 1000]),
        noise=Gaussian("100000000"),
    )


def draw_expert_counts(dice: Random) -> AskExpertCounts:
    return AskExpertCounts(query=draw_query(dice), target="", task=EXPERTS, noise=Gaussian("9"))


def draw_expert_step(dice: Random) -> AskExpertLabels:
    stay = make_series([{"real": dice.choice([0.0, 2.0, 5.0])}], ["real"], "truth", True)
    return AskExpertLabels(
        query=draw_query(dice),
        target="",
        task=EXPERTS,
        experts=dice.choice([1, 3, 40]),
        stays=lay_course(stay, EXPERTS, whole=False),
        noise=Laplace("1/2"),
    )


def draw_pure_histograms(dice: Random) -> AskCounts:
    drawn = draw_histograms(dice)
    numbers = tuple(attribute for attribute in drawn.attributes if attribute.numeric)
    return AskCounts(
        totals=False,
        query=drawn.query,
        target=drawn.target,
        attributes=numbers or (Attribute("real", (0.5, 2.5)),),
        noise=Laplace("1/2"),
    )


def draw_moments(dice: Random) -> AskMoments:
    target, names = dice.choice(list(POOL)), dice.sample(list(POOL), dice.randrange(1, 4))
    listed = tuple(draw_values(dice, target))
    ends = [sorted(dice.sample(ENDS, 2)) for _ in names]
    return AskMoments(
        query=draw_query(dice),
        target=target,
        attributes=tuple(Attribute(name, tuple(own)) for name, own in zip(names, ends, strict=True)),
        measured=dice.randrange(1, len(names) + 1),
        classes=Attribute(target, (), listed, dice.random() < 0.5, dice.random() < 0.8 or not listed),
        noise=Gaussian("9"),
    )


def draw_factor(dice: Random, place: int, attribute: Attribute) -> Factor:
    if attribute.values:
        return Factor(place, cell=dice.randrange(attribute.size))
    low, high = sorted(dice.sample(ENDS, 2))
    knots = dice.choice([(), (-1.0, 0.5, 2.0), (0.0, 0.3, 1.0, 1e6)])
    return Factor(place, None, knots, dice.randrange(max(1, len(knots) - 1)), low, high)


def draw_regression(dice: Random) -> AskRegression:
    """Columns of any form, some of them more than once."""
    family, target = dice.choice(["binomial", "gaussian", "poisson"]), dice.choice(list(POOL))
    attributes = tuple(
        Attribute(name, (), tuple(draw_values(dice, name)), dice.random() < 0.5, dice.random() < 0.8)
        for name in dice.sample(list(POOL), dice.randrange(1, 4))
    )
    columns: list[Column] = []
    for _ in range(dice.randrange(6)):
        places = [dice.randrange(len(attributes)) for _ in range(dice.randrange(1, 3))]
        new = Column(tuple(draw_factor(dice, place, attributes[place]) for place in places))
        columns.append(dice.choice([new, new, *columns]))
    low, high = dice.choice([(0.0, 1.0), (0.0, 10.0), (0.0, 1e-6), (2.0, 9e5)])
    values = [value for value in POOL[target] if value != float("inf")]
    return AskRegression(
        query=draw_query(dice),
        target=target,
        attributes=attributes,
        columns=tuple(columns),
        family=family,
        positive=dice.choice(values) if family == "binomial" else None,
        at=tuple(dice.choice([0.0, 1.0, -0.3, 1e308, -1e308]) for _ in range(len(columns) + 1)),
        low=low,
        high=high,
        places=dice.choice([0, 1, 10, 20]),
        noise=Gaussian("9"),
    )


def draw_hazards(dice: Random) -> AskHazards:
    """Columns of any form over times that are often no numbers."""
    like = draw_regression(dice)
    grid = tuple(sorted(dice.sample([1e-6, 0.5, 1.0, 2.0, 10.0, 1e6], dice.randrange(1, 5))))
    return AskHazards(
        query=like.query,
        target=like.target,
        attributes=like.attributes,
        columns=like.columns,
        time=dice.choice(list(POOL)),
        positive=dice.choice([value for value in POOL[like.target] if value != float("inf")]),
        grid=grid,
        at=tuple(dice.choice([0.0, 1.0, -0.3, 1e308, -1e308]) for _ in range(len(grid) + len(like.columns))),
        places=like.places,
        noise=Gaussian("9"),
    )


def draw_followed(dice: Random) -> AskCounts:
    """Crosstables of an outcome by a horizon."""
    question = draw_crosstables(dice)
    used = {question.target, *(one.name for one in question.attributes)}
    free = [name for name in POOL if name not in used and name not in question.query]
    time = dice.choice(free or [name for name in POOL if name != question.target])
    values = [value for value in POOL[question.target] if value != float("inf")]
    cells = dice.randrange(1, 4)
    outcome = FollowedOutcome(
        time=time,
        positive=dice.choice(values),
        rest="none",
        times=tuple(sorted(dice.sample([0.5, 1.0, 2.0, 10.0, 1e6], cells))),
        kept=tuple(sorted(dice.choice([0.0, 0.3, 0.5, 0.9, 1.0]) for _ in range(cells))),
    )
    classes = Attribute(question.target, (), (outcome.positive, "none"), missing=False, other=False)
    return msgspec.structs.replace(question, followed=outcome, classes=classes)


DRAWN = {
    "counts, pure": draw_pure_histograms,
    "counts, histograms": draw_histograms,
    "counts": draw_crosstables,
    "counts, followed": draw_followed,
    "experts.labels": draw_expert_labels,
    "experts.labels, drawn": draw_expert_drawn,
    "experts.counts": draw_expert_counts,
    "experts.labels, pure": draw_expert_step,
    "rules.counts": draw_rule_counts,
    "rules.gradient": draw_rule_gradient,
    "rules.hours": draw_outcome_hours,
    "rules.outcomes": draw_rule_outcomes,
    "rulefit.gradient": draw_gradient,
    "shapes.directions": draw_directions,
    "statistics.hazards": draw_hazards,
    "statistics.moments": draw_moments,
    "statistics.regression": draw_regression,
}


def look(rows: list[dict], schema: dict[str, str], policy: cc.Policy) -> View:
    table = cc.Records.from_rows(rows or [dict.fromkeys(POOL)], schema=schema)
    parts = {
        "rules": cc.RuleSets(map(list_rules, rows)),
        "series": make_series(rows, ["real"], "truth", True),
    }
    return View(
        table if rows else table.take([]),
        policy,
        b"a secret of these tests",
        division_key=b"the key of these tests",
        parts=parts,
    )


def answer(view: View, question: Summed) -> np.ndarray | str:
    """What a site would add noise to: with the patients that the release itself selects."""
    try:
        cohort = find_release("private").select(SimpleNamespace(view=view), question)
        counts = question.compute(cohort)
    except ConciliumError as error:
        return f"{type(error).__name__}: {error}"
    assert counts.shape == question.shape
    return counts.astype(np.int64).reshape(-1)


def draw_checked(dice: Random, kind: str) -> Summed | None:
    """A question of this kind, if it is one that a site would look at."""
    question = DRAWN[kind](dice)
    try:
        _read_question(question.kind, "private", encode(question))
    except MessageError:
        return None
    return question


def test_every_kind_that_may_be_private_is_drawn_here():
    private = {kind for kind, place in KINDS.items() if "private" in load(place).releases}
    statistics = {kind for kind in private if issubclass(load(KINDS[kind]), Summed)}
    # What measures a model carries one: tests/protocol/test_risk_counts.py, tests/adversary/test_neighbours.py.
    assert {kind.split(",")[0] for kind in DRAWN} == statistics - {MEASURED}


@pytest.mark.parametrize("kind", DRAWN)
def test_most_of_what_is_drawn_is_looked_at_and_counted(kind):
    """So that the tests below are not about refusals."""
    dice, seen = Random(kind), []
    for _ in range(30):
        question = draw_checked(dice, kind)
        if question is not None:
            view = look(draw_rows(dice, 30), draw_schema(dice), cc.Policy())
            seen.append(isinstance(answer(view, question), np.ndarray))
    assert len(seen) > 15
    assert sum(seen) > len(seen) / 2


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_one_patient_changes_no_more_than_is_charged_for(kind, seed):
    dice = Random(seed)
    question = draw_checked(dice, kind)
    if question is None:
        return
    rows = draw_rows(dice, dice.choice([1, 2, 5, 12, 30]))
    schema = draw_schema(dice)
    policy, leave_out = dice.choice(POLICIES), dice.randrange(len(rows))
    left = [row for index, row in enumerate(rows) if index != leave_out]
    # Read anew without the patient, so that how a column is read may differ as well.
    one, other = (answer(look(own, schema, policy), question) for own in (rows, left))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert one.size == other.size == question.numbers
    moved = sum(int(change) ** 2 for change in (one - other).tolist())
    assert moved <= question.sensitivity.squared
    if question.sensitivity.l1 is not None:
        assert int(np.abs(one - other).sum()) <= question.sensitivity.l1


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_what_was_asked_before_changes_nothing(kind, seed):
    """Nothing is remembered from question to question but what saves time."""
    dice = Random(seed)
    asked = [one for one in (draw_checked(dice, dice.choice(list(DRAWN))) for _ in range(4)) if one]
    question = draw_checked(dice, kind)
    if question is None:
        return
    rows, schema = draw_rows(dice, dice.choice([2, 12, 30])), draw_schema(dice)
    policy = dice.choice(POLICIES)
    used = look(rows, schema, policy)
    for before in asked:
        answer(used, before)
    first, again, fresh = (
        answer(used, question),
        answer(used, question),
        answer(look(rows, schema, policy), question),
    )
    np.testing.assert_array_equal(first, fresh)
    np.testing.assert_array_equal(again, fresh)
