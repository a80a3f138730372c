"""Order and shape of shared codes: an attacker who learns from thousands of patients finds no more than epsilon allows.

Two inputs are neighbours where one entry of a patient is another protected code. Files are sorted as hospitals sort
them, patients tie, repeat codes and exceed `max_events`; whatever is seen of a patient goes into the attacker's row.
"""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from adversary.recordings import GENEROUS, ROWS, run
from agreed import Asker
from concilium.codes.block_response import BlockResponse
from concilium.codes.shared_codes import AskSharedCodes, _start_at_zero
from concilium.privacy.identity import Identity
from concilium.protocol.messages import Answer, open_reply
from concilium.protocol.questions import Summed
from concilium.study.code_sharing import SharingStudy
from contract.patients import make_rows, open_sites
from statistical.auditing import learn_epsilon

SENSITIVE = ["042", "305"]
PROTECTED = ["042", "303", "304", "305"]
CLEAR = ["001", "250", "401", "998"]
OPEN = cc.Policy(budget=cc.Budget("unlimited"), minimum_patients=0)
SECRET = "secret"

# One patient's history with its secret entry, and how many events are shared.
HISTORIES = {
    "beside one code": ([(0, "250"), (0, SECRET)], 5),
    "among codes of two days": ([(0, "250"), (0, SECRET), (0, "401"), (4, "250"), (4, "042")], 5),
    "one of three leaves": ([(0, "250"), (0, SECRET), (0, "401")], 1),
    "one of two latest leaves": ([(0, "401"), (9, SECRET), (9, "250")], 1),
    "repeated in one moment": ([(0, "250"), (0, SECRET), (0, "042"), (0, "042")], 1),
    "two of four leave": ([(0, "042"), (0, "250"), (0, SECRET), (0, "401")], 2),
}
# How the rows (patient, day, code) of a file are sorted.
ORDERS = {
    "by code": lambda row: (row[2], row[0]),
    "by patient and code": lambda row: row,
    "by code, downwards": lambda row: (-int(row[2]), row[0]),
    "by day and code": lambda row: (row[1], row[2], row[0]),
}


@pytest.fixture(scope="module")
def fitted():
    auxiliary = [[(0, code)] for code in PROTECTED + CLEAR] * 5
    return cc.CodeSharing(sensitive=PROTECTED, gamma=None, gamma_max=None, block_size=1).fit(auxiliary)


def write_file(path, histories, order):
    """A long table in this order, of patients by name."""
    rows = [(name, day, code) for name, history in histories.items() for day, code in history]
    lines = [f"{name},{day},{code}" for name, day, code in sorted(rows, key=ORDERS[order])]
    path.write_text("\n".join(["patient,time,code", *lines]) + "\n")
    return path


def fill(history, code):
    return [(day, code if entry == SECRET else entry) for day, entry in history]


def look(shared):
    """For each patient a row of all that is seen: its number, events, days and codes by their places."""
    most = int(shared.counts.max())
    rows = np.full((len(shared), 2 + 2 * most), -1.0)
    for row, history in enumerate(shared):
        rows[row, :2] = row, len(history)
        for place, (day, code) in enumerate(history):
            rows[row, 2 + 2 * place : 4 + 2 * place] = day, int(code)
    return rows


@pytest.mark.parametrize(("case", "order"), list(product(HISTORIES, ORDERS)))
def test_an_attacker_who_learns_finds_no_more_than_epsilon(fitted, tmp_path, case, order):
    """Of 4,000 patients of one file half have 042 and half 305; the attacker is told who, for half of them."""
    history, most = HISTORIES[case]
    sharing = fitted.refit(epsilon=1, max_events=most)
    names = [f"p{number:04}" for number in random.Random(1).sample(range(10_000), 4_000)]
    secrets = {name: SENSITIVE[place % 2] for place, name in enumerate(names)}
    path = write_file(
        tmp_path / "codes.csv", {name: fill(history, code) for name, code in secrets.items()}, order
    )
    site = cc.Site("north", cc.Sequences.read(path), OPEN)
    seen = look(sharing.share(site))
    held = np.array([secrets[name] for name in site.name_patients(sharing.card_.study)])
    assert learn_epsilon(*(seen[held == code] for code in SENSITIVE)) <= 1


@pytest.mark.parametrize("case", HISTORIES)
def test_histories_at_hand_tell_no_more_either(fitted, case):
    history, most = HISTORIES[case]
    sharing = fitted.refit(epsilon=1, max_events=most)
    seen = [look(sharing.share([sorted(fill(history, code))] * 2_000)) for code in SENSITIVE]
    assert learn_epsilon(*seen) <= 1


@st.composite
def neighbours(draw):
    """Two files in one order, of the same patients, but for one protected code of one of them."""
    event = st.tuples(st.integers(0, 3), st.sampled_from(PROTECTED + CLEAR))
    histories = draw(st.lists(st.lists(event, max_size=5), min_size=2, max_size=5))
    at = draw(st.integers(0, len(histories) - 1))
    one, other = draw(st.permutations(PROTECTED))[:2]
    day = draw(st.integers(0, 3))
    files = []
    for code in (one, other):
        named = {f"p{place}": list(history) for place, history in enumerate(histories)}
        named[f"p{at}"].append((day, code))
        files.append(named)
    return files, draw(st.sampled_from(list(ORDERS)))


@settings(max_examples=40, deadline=None)
@given(neighbours())
def test_what_is_not_drawn_at_random_does_not_depend_on_a_protected_code(fitted, tmp_path_factory, pair):
    """Every protected code leaves as one and the same: then not a byte of the answer tells neighbours apart."""
    files, order = pair
    sharing, identity = fitted.refit(max_events=6), Identity.create()
    agreed = sharing.propose()
    folder = tmp_path_factory.mktemp("order")
    visible = []
    for histories in files:
        codes = cc.Sequences.read(write_file(folder / "codes.csv", histories, order))
        site = cc.Site("north", codes, OPEN, identity=identity)
        terms = {"price": str(agreed.plan().total), "nonce": "one nonce"}
        asker = Asker(
            [site], method="code-sharing", release="shared", parameters=agreed.get_params(), **terms
        )
        question = AskSharedCodes(query="", target="", design=agreed.design)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BlockResponse, "randomize", erase)
            reply = open_reply(asker.ask(site, asker.wrap(question)))
        assert isinstance(reply, Answer)
        entry = [one for one in site.ledger.entries() if one.question][-1]
        visible.append((reply.body, reply.charge.capped, entry.numbers, entry.cost))
    assert visible[0] == visible[1]


def erase(response, codes):
    """Each protected code as the first of them, instead of one at random."""
    return np.where(response.places[codes] >= 0, response.protected[0], codes).astype(np.int32)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 10**9), st.sampled_from(CLEAR)),
            min_size=1,
            max_size=4,
            unique_by=lambda event: event[0],
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(-(10**5), 10**5),
)
def test_no_calendar_is_left_in_the_last_digits_of_a_time(histories, shift):
    """Milliseconds of any two calendars, whole days apart, leave as the same bytes."""
    left = []
    for days in (0, shift):
        start = np.datetime64(0, "ms") + days * 86_400_000
        dated = cc.Sequences([[(start + at, code) for at, code in history] for history in histories])
        left.append(_start_at_zero(dated).times.tobytes())
    assert left[0] == left[1]


@settings(max_examples=25, deadline=None)
@given(neighbours(), st.sampled_from([".csv", ".csv.gz", ".parquet"]))
def test_a_file_is_written_from_the_shared_codes_alone(tmp_path_factory, pair, ending):
    """Codes that came to be otherwise, with other codes beside them before, are the same file byte for byte."""
    (histories, _), _ = pair
    folder = tmp_path_factory.mktemp("files")
    shared = cc.Sequences([sorted(one) for one in histories.values()], list(histories))
    larger = cc.Sequences([*([(0, code)] for code in PROTECTED), *shared], ["a", "b", "c", "d", *histories])
    written = []
    for name, one in {"a": shared, "b": larger.take(np.arange(4, len(larger)))}.items():
        one.write(folder / f"{name}{ending}", notice="not for care")
        written.append((folder / f"{name}{ending}").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("method", ["naive-bayes", "tree"])
def test_the_length_of_a_private_answer_follows_from_the_question(method):
    """Of ten patients and of a thousand: 8 bytes for each number that was asked for, and a frame around them, which
    grows with the questions of a study that were charged before."""
    frames = []
    for patients in (10, 1_000):
        rows = {**ROWS, "north": make_rows(patients, 1)}
        asked = run(method, "private", {}, open_sites(rows, policy=GENEROUS)).at("north")
        noisy = [
            one for one in asked if (isinstance(one.question, Summed) and one.question.noise is not None)
        ]
        # The length of a longer text is itself written in more bytes.
        written = [8 * one.question.numbers + (8 * one.question.numbers > 255) for one in noisy]
        frames.append([len(one.opened.body) - size for one, size in zip(noisy, written, strict=True)])
    shorter = min(map(len, frames))  # noise decides how deep a tree grows
    assert frames[0][:shorter] == frames[1][:shorter]


@settings(max_examples=10, deadline=None)
@given(neighbours())
def test_what_is_hidden_does_not_depend_on_any_patient(tmp_path_factory, pair):
    """The hidden set leaves in the terms, uncharged: neighbouring hospitals have the same design."""
    files, order = pair
    path = tmp_path_factory.mktemp("plan") / "codes.csv"
    designs = []
    for histories in files:
        write_file(path, {n: [*h, (9, "250")] for n, h in histories.items()}, order)
        study = SharingStudy(codes=str(path), parameters={"epsilon": "0.1", "max_events": 5})
        designs.append(study.plan().agreed.design)
    assert designs[0] == designs[1]
