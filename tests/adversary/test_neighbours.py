"""Neighbours: any table of text that a file can hold, with a patient more, fewer or changed, read by the real reader,
and asked at the real gate whatever a listed method asks under `private`. With the noise held at zero a sum moves by no
more than what the hospital charges for, and whatever else is visible (refusals, sizes, charges) does not move at all.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from adversary.recordings import GENEROUS, NAMES, PLACES, STUDIES, Exchange, Relay, make_small, run
from concilium.errors import ConciliumError, RecordsError
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.messages import Answer
from concilium.protocol.questions import Summed
from concilium.records.columns import label
from concilium.registry import KINDS, RELEASES, load
from contract.patients import make_series

# As people and programs write cells: alike, odd, quoted, with blanks, in other alphabets.
CELLS = [
    *(
        "1",
        "1.0",
        "1.",
        "01",
        "+1",
        "0.5",
        ".5",
        "5.",
        "5",
        "-0",
        "1e0",
        "1e400",
        "inf",
        "nan",
        "9007199254740993",
    ),
    *("TRUE", "true", "True", "FALSE", "false", "unknown", "yes", "", "NA", "NaN", "null", "?", "-"),
    *(
        '"1"',
        '"TRUE"',
        '""',
        '" 1"',
        '"a,b"',
        '"say ""a"""',
        '"two\nlines"',
        " 1",
        "1 ",
        "\tTRUE",
        "  ",
        "a",
        "A",
    ),
    *("é", "e\u0301", "１", "\u00a01", "\u200b1", "2020-01-01 00:00:00", "2020-01-01", "x" * 300),
]
NUMBERS = [
    "1",
    "1.0",
    "0.5",
    ".5",
    "5.",
    "-3",
    "+1",
    "007",
    "1e3",
    "",
    "NA",
    '"2"',
    " 7 ",
    "inf",
    "-0",
    "1e308",
]
COLUMNS = ("size", "flag", "code", "y")
# What the study states is written otherwise than in the cells: to be the same is the reader's affair.
SAID = {
    "time": "size",
    "bins": {"size": [0.0, 0.75, 1.0, 6.0]},
    "values": {"flag": [True, False], "code": ["1", ".5", "a", "é"], "y": ["TRUE", "FALSE"]},
    "positive": True,
    "prevalence": 0.2,
}
SCHEMA = {"size": "number", "flag": "code", "code": "code", "y": "code"}
QUERIES = [
    "",
    "flag = true",
    "size >= 1",
    "code in {'1', 'a'} or size < 5",
    "not flag = 'TRUE'",
    "code != '.5'",
]
EXAMPLES = 6
# The part of a masked study that has no bound may be refused for its patients: no rule of the sort is at work here.
POLICY = msgspec.structs.replace(GENEROUS, allow=COLUMNS, minimum_patients=0, differencing=False)

FILES = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def fixed_noise() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, SWITCHED_ON)
        yield


def write(path: Path, rows: list[tuple[str, ...]]) -> Path:
    lines = [(*COLUMNS, "id"), *((*row, name) for row, name in zip(rows, name_rows(rows), strict=True))]
    path.write_text("\n".join(map(",".join, lines)) + "\n", encoding="utf-8", newline="")
    return path


def name_rows(rows: list[tuple[str, ...]]) -> list[str]:
    """An id for each patient, by what the row says and how many before say the same: whoever comes or goes."""
    seen: Counter[tuple[str, ...]] = Counter()
    names = []
    for row in rows:
        names.append(f"p{hashlib.sha256(repr(row).encode()).hexdigest()[:12]}n{seen[row]}")
        seen[row] += 1
    return names


def read_size(row: tuple[str, ...]) -> float | None:
    try:
        return min(max(float(row[0].strip().strip('"')), 0.0), 1.0)
    except ValueError:
        return 1.0


def list_rules(row: tuple[str, ...]) -> list[str]:
    size = read_size(row)
    rules = [] if size is None else ["size >= 1" if size >= 1 else "size < 1"]
    return [*rules, "G size < 6"]


def draw_row(dice: random.Random) -> tuple[str, ...]:
    y = dice.choice(["TRUE", "FALSE", "TRUE", "FALSE", *CELLS])
    return dice.choice(NUMBERS), dice.choice(CELLS), dice.choice(CELLS), y


OTHERS = {name: [draw_row(random.Random(f"{name} {i}")) for i in range(20)] for name in ("south", "west")}


@cache
def make_folder() -> Path:
    """One for all tests of this process, also of those that ask the same elsewhere."""
    folder = tempfile.mkdtemp(prefix="tables-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def read_others() -> dict[str, cc.Patients]:
    folder = make_folder()
    return {name: read(folder / f"{name}.csv", rows, SCHEMA) for name, rows in OTHERS.items()}


def read(path: Path, rows: list[tuple[str, ...]], schema: dict[str, str]) -> cc.Patients:
    """A hospital's table from its text, with the rules and series of the same patients."""
    table = cc.Records.read(write(path, rows), schema=schema | ({"id": "code"} if schema else {}))
    ids = name_rows(rows)
    # Most have a course whose outcome changes: only these have an expert.
    measured = [{"size": read_size(row), "y": row[3] != "FALSE"} for row in rows]
    series = make_series(measured, ["size"], "y", True, ids)
    return cc.Patients(table=table, rules=cc.RuleSets(map(list_rules, rows), ids), series=series, by="id")


def open_others() -> list[cc.Site]:
    """The hospitals beside the one that is looked at, without any memory: they stay as they are."""
    return [make_site(name, patients) for name, patients in read_others().items()]


def open_site(name: str, path: Path, rows: list[tuple[str, ...]], schema: dict[str, str]) -> cc.Site:
    return make_site(name, read(path, rows, schema))


def make_site(name: str, patients: cc.Patients) -> cc.Site:
    """A hospital with these patients; who is held out is the same in all of them."""
    return cc.Site(name, patients, POLICY, division_key=b"the key of these tests")


@cache
def list_questions(place: int) -> list[Summed]:
    """What the study at this place asks under `private`: of each kind its first two questions, and its last."""
    name, release, more = STUDIES[place]
    rows = [draw_row(random.Random(i)) for i in range(40)]
    north = open_site("north", make_folder() / f"begin-{place}.csv", rows, SCHEMA)
    asked = run(name, release, {**SAID, **more}, [north, *open_others()]).at("north")
    by_kind: dict[str, list[Summed]] = {}
    for exchange in asked:
        if isinstance(exchange.question, Summed) and exchange.question.noise is not None:
            by_kind.setdefault(exchange.question.kind, []).append(exchange.question)
    return [one for listed in by_kind.values() for one in [*listed[:2], *listed[2:][-1:]]]


def look(exchange: Exchange) -> tuple[Any, ...]:
    """One exchange as an outsider sees it, without what is random by design."""
    reply = exchange.opened
    if isinstance(reply, Answer):
        return exchange.envelope.kind, len(reply.body), reply.charge, reply.ledger.count
    return exchange.envelope.kind, reply.rule, reply.reason, reply.asked, reply.left


def ask(
    north: cc.Site, method: Any, questions: list[Summed]
) -> tuple[list[tuple[Any, ...]], list[np.ndarray]]:
    """These questions in one study: all that is visible of the hospital, and the sums."""
    exchanges: list[Exchange] = []
    house = cc.House([Relay(north, exchanges), *open_others()], timeout=600)
    sums = []
    with zero_noise(), house.open(method.draft()) as study:
        try:
            study.begin()
            sums = [study.ask(question) for question in questions]
            if not method.way_out.by_site:
                study.masked_study.end()
        except ConciliumError as error:
            said = re.sub("[0-9a-f]{64}", "", str(error))  # the study's id is its own
            return [*map(look, exchanges), (type(error).__name__, said)], sums
    return [*map(look, exchanges)], sums


def draw_neighbour(dice: random.Random, rows: list[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], int]:
    """The same hospital with a patient more, fewer, or changed, and how many patients that is."""
    at = dice.randrange(len(rows))
    new = dice.choice([draw_row(dice), dice.choice(rows)])
    match dice.randrange(3):
        case 0:
            return rows[:at] + rows[at + 1 :], 1
        case 1:
            return [*rows[:at], new, *rows[at:]], 1
        case _:
            odd, changed = dice.randrange(1, len(COLUMNS)), list(rows[at])
            changed[odd] = dice.choice(CELLS)
            return [*rows[:at], tuple(changed), *rows[at + 1 :]], 2


def draw_schema(dice: random.Random) -> dict[str, str]:
    """Mostly all columns are stated; a number may be stated as a code, and one or all may not be stated."""
    schema = {**SCHEMA, "size": dice.choice(["number", "number", "code"])}
    if dice.random() < 0.25:
        schema.pop(dice.choice(COLUMNS))
    return {} if dice.random() < 0.05 else schema


def has_a_price(place: int) -> bool:
    name, release, more = STUDIES[place]
    way_out = load(RELEASES[release].place)
    if way_out.hands_on or name == "code-counts":  # tests/codes/test_shared_codes.py, test_code_counts.py
        return False
    if way_out.by_site and not RELEASES[release].bounded:  # tests/rulefit/test_pure_histograms.py
        return False
    return any(question.cost for question in make_small(name, release, **more).plan().questions)


PRIVATE = [place for place in PLACES if has_a_price(place)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def test_every_private_kind_is_asked_about_neighbours():
    kinds = {question.kind for place in PRIVATE for question in list_questions(place)}
    private = {kind for kind, listed in KINDS.items() if {"private", "noised"} & load(listed).releases}
    # Codes are not in these tables: tests/codes/test_code_counts.py.
    assert kinds == {kind for kind in private if issubclass(load(KINDS[kind]), Summed)} - {"codes.counts"}


@pytest.mark.parametrize("place", PRIVATE, ids=[NAMES[place] for place in PRIVATE])
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_one_patient_moves_a_sum_by_what_is_charged_and_nothing_else(folder, place, seed):
    if not list_questions(place):  # it may ask with noise, and these data do not make it
        return
    dice = random.Random(seed)
    rows = [draw_row(dice) for _ in range(dice.choice([2, 5, 12, 30]))]
    schema, (others, patients) = draw_schema(dice), draw_neighbour(dice, rows)
    try:
        one, other = (
            open_site("north", folder / f"{next(FILES)}.csv", listed, schema) for listed in (rows, others)
        )
    except RecordsError:  # such a table does not open, and its hospital says nothing to anybody
        return
    query = dice.choice(QUERIES)
    name, release, more = STUDIES[place]
    method = make_small(name, release, **{**SAID, **more, "query": query})
    questions = [msgspec.structs.replace(one, query=query) for one in list_questions(place)]
    (seen, sums), (seen_of_other, sums_of_other) = (ask(site, method, questions) for site in (one, other))
    if not method.way_out.bounded and not (sums and sums_of_other):
        return  # the rest of such a study is exact, and refused in words that the patients decide about
    assert seen == seen_of_other
    assert len(sums) == len(sums_of_other)
    for question, first, second in zip(questions, sums, sums_of_other, strict=False):
        moved = sum(int(change) ** 2 for change in (first - second).reshape(-1).tolist())
        # Who is changed is one fewer and one more: twice as far.
        assert moved <= patients**2 * question.sensitivity.squared
    assert sums or schema != SCHEMA, seen


class Always:
    """A field that is true, whatever it is set to."""

    def __get__(self, *_: object) -> bool:
        return True

    def __set__(self, *_: object) -> None:
        pass


def test_the_harness_sees_what_a_column_that_is_guessed_would_do(folder, monkeypatch):
    """So that what holds above is no accident: with columns read together, as they once were, one patient with
    `unknown` among TRUE and FALSE moves what everybody counts as."""
    monkeypatch.setattr("concilium.records.columns.Coded.by_itself", Always())
    monkeypatch.setattr("concilium.records.query.canonical", label)
    monkeypatch.setattr("concilium.records.coding.canonical", label)
    place = next(place for place in PRIVATE if STUDIES[place][0] == "naive-bayes")
    rows = [("1", "TRUE", "a", "TRUE"), ("2", "FALSE", "a", "FALSE")] * 20
    sums = []
    for listed in (rows, [*rows, ("1", "unknown", "a", "TRUE")]):
        north = open_site("north", folder / f"{next(FILES)}.csv", listed, {"size": "number"})
        name, release, more = STUDIES[place]
        questions = list_questions(place)
        sums.append(ask(north, make_small(name, release, **SAID, **more), questions)[1])
    moved = max(int(((a - b) ** 2).sum()) for a, b in zip(*sums, strict=True))
    assert moved > max(question.sensitivity.squared for question in questions)
