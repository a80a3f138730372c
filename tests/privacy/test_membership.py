from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_circle import hospitals, meet, show, some_vectors, words

from concilium.errors import MaskError
from concilium.ledger.mask_store import SqliteMaskStore
from concilium.privacy.manifest import compose
from concilium.protocol.membership import Membership, _hash_content

ASKED = b"how many died?"


def test_three_hospitals_add_up() -> None:
    circle = hospitals(3).gather()
    vectors = {"ashford": words(1, -5, 0), "brook": words(2, 3, 0), "cedar": words(4, 1, 0)}
    assert circle.add_up(ASKED, vectors).view(np.int64).tolist() == [7, -1, 0]


def test_many_questions_of_one_study() -> None:
    circle = hospitals(4).gather()
    for question in range(5):
        vectors = some_vectors(circle.manifest.names, 2 + question)
        total = circle.add_up(b"question %d" % question, vectors)
        assert total.tolist() == sum(vector.astype(object) for vector in vectors.values()).tolist()


def test_a_repeated_question_gets_the_same_message_whatever_the_vector_is_now() -> None:
    circle = hospitals(3).gather()
    member = circle.members["brook"]
    first = member.mask(ASKED, words(1, 2, 3))
    assert member.mask(ASKED, words(7, 8, 9)) == first
    assert member.recall(ASKED) == first


def test_nothing_is_recalled_before_it_is_answered() -> None:
    member = hospitals(3).gather().members["brook"]
    assert member.recall(ASKED) is None
    member.mask(ASKED, words(1))
    assert member.recall(b"something else") is None


def test_a_seed_is_revealed_again_for_the_same_commitments() -> None:
    circle = hospitals(3).gather()
    commitments = circle.round(ASKED).commitments(
        circle.mask(ASKED, some_vectors(circle.manifest.names)).values()
    )
    assert circle.reveal(ASKED, commitments) == circle.reveal(ASKED, tuple(reversed(commitments)))


def test_a_question_that_was_opened_can_be_asked_again_and_adds_up_to_the_same() -> None:
    """As a resumed run does, whatever the hospitals' tables are by then."""
    circle = hospitals(3).gather()
    answers = circle.mask(ASKED, some_vectors(circle.manifest.names))
    seeds = circle.reveal(ASKED, circle.round(ASKED).commitments(answers.values()))
    again = circle.mask(ASKED, {name: words(7, 8, 9) for name in circle.manifest.names})
    assert again == answers
    assert circle.reveal(ASKED, circle.round(ASKED).commitments(again.values())) == seeds
    assert circle.round(ASKED).unmask(again.values(), seeds).tolist() == [60, 63, 66]


def test_those_who_answered_before_another_was_lost_go_on_when_it_is_back() -> None:
    circle = hospitals(4).gather()
    vectors = some_vectors(circle.manifest.names)
    for name in ("ashford", "brook"):
        circle.members[name].mask(ASKED, vectors[name])
    total = circle.add_up(ASKED, vectors)
    assert total.tolist() == np.sum(list(vectors.values()), axis=0).tolist()


def test_nobody_answers_before_meeting_the_others() -> None:
    group = hospitals(3)
    member = group.join(group.compose(), "ashford")
    with pytest.raises(MaskError, match="has not met the other participants"):
        member.mask(ASKED, words(1))


@pytest.mark.parametrize(
    "vector", [np.zeros(3), np.zeros((2, 2), dtype=np.uint64), np.zeros(3, dtype=np.int64)]
)
def test_only_a_row_of_words_is_masked(vector: np.ndarray) -> None:
    member = hospitals(3).gather().members["ashford"]
    with pytest.raises(MaskError, match="one row of uint64"):
        member.mask(ASKED, vector)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, (2**63 - 1) // 3))
def test_a_number_beyond_the_studys_ring_limit_is_refused(number: int, largest: int) -> None:
    group = hospitals(3)
    manifest = compose("s", [group.participant(name) for name in group.names], largest=largest)
    member = group.gather(manifest).members["brook"]
    if abs(number) <= largest:
        member.mask(ASKED, words(0, number))
    else:
        with pytest.raises(MaskError, match="larger than study 's' allows"):
            member.mask(ASKED, words(0, number))
        assert member.recall(ASKED) is None


def test_a_restarted_site_joins_again_and_goes_on(tmp_path: Path) -> None:
    group = hospitals(3)
    with closing(sqlite3.connect(tmp_path / "brook.ledger")) as connection:
        group.stores["brook"] = SqliteMaskStore(connection)
        circle = group.gather()
        answers = circle.mask(ASKED, some_vectors(group.names))
    with closing(sqlite3.connect(tmp_path / "brook.ledger")) as connection:
        group.stores["brook"] = SqliteMaskStore(connection)
        again = group.join(circle.manifest, "brook")
        assert again.key == circle.members["brook"].key
        meet(again, circle.keys)
        assert again.recall(ASKED) == answers["brook"]
        circle.members["brook"] = again
        asked = circle.round(ASKED)
        seeds = circle.reveal(ASKED, asked.commitments(answers.values()))
    assert asked.unmask(answers.values(), seeds).tolist() == [60, 63, 66]


def test_charge_and_opening_are_one_transaction(tmp_path: Path) -> None:
    """As the gate does it: the seed is revealed inside the transaction that writes the charge; if that fails,
    nothing was opened, and the question can still be opened for other answers."""
    group = hospitals(3)
    with closing(sqlite3.connect(tmp_path / "ledger", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE charges (cost)")
        group.stores["ashford"] = SqliteMaskStore(connection)
        circle = group.gather()
        member = circle.members["ashford"]
        commitments = circle.round(ASKED).commitments(circle.mask(ASKED, some_vectors(group.names)).values())
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charges VALUES (1)")
        member.reveal(ASKED, show(member, commitments), charge_on_disk=True)
        connection.rollback()
        assert connection.execute("SELECT opened FROM mask_attempt").fetchall() == [(None,)]
        assert connection.execute("SELECT count(*) FROM charges").fetchone() == (0,)
        group.stores["cedar"]._connection.execute("DELETE FROM mask_attempt")
        again = circle.mask(ASKED, some_vectors(group.names))
        others = circle.round(ASKED).commitments(again.values())
        assert others != commitments
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charges VALUES (1)")
        member.reveal(ASKED, show(member, others), charge_on_disk=True)
        connection.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM charges").fetchone() == (1,)
        with pytest.raises(MaskError, match="opened for other answers than those shown now"):
            member.reveal(ASKED, show(member, commitments), charge_on_disk=True)


def test_a_refused_reveal_changes_nothing() -> None:
    circle = hospitals(3).gather()
    commitments = circle.round(ASKED).commitments(
        circle.mask(ASKED, some_vectors(circle.manifest.names)).values()
    )
    member = circle.members["ashford"]
    with pytest.raises(MaskError):
        member.reveal(ASKED, show(member, commitments[:2]), charge_on_disk=True)
    assert member._store.openings(_hash_content(ASKED)) == {}


def test_an_ended_study_is_over_wherever_the_site_has_joined_it() -> None:
    group = hospitals(3)
    circle = group.gather()
    circle.add_up(ASKED, some_vectors(group.names))
    twin = group.join(circle.manifest, "ashford")
    meet(twin, circle.keys)
    circle.members["ashford"].forget()
    for member in (circle.members["ashford"], twin):
        with pytest.raises(MaskError, match="has ended at ashford"):
            member.mask(b"one more", words(1))
        with pytest.raises(MaskError, match="has ended at ashford"):
            member.recall(ASKED)
    with pytest.raises(MaskError, match="has ended at ashford"):
        meet(circle.members["ashford"], circle.keys)
    with pytest.raises(MaskError, match="has ended at ashford"):
        group.join(circle.manifest, "ashford")


def test_forgetting_leaves_no_key_behind() -> None:
    group = hospitals(3)
    circle = group.gather()
    member: Membership = circle.members["ashford"]
    study = circle.manifest.study_id
    assert group.stores["ashford"].study_key(study) is not None
    member.forget()
    assert group.stores["ashford"].study_key(study) is None
    assert not any(isinstance(value, X25519PrivateKey) for value in vars(member).values())
    assert not member._shared
    assert not member._pairs[1]


def test_a_second_run_of_the_same_question_among_the_same_hospitals_is_a_new_study() -> None:
    group = hospitals(4)
    vectors = some_vectors(group.names)
    first, second = group.gather(), group.gather()
    assert first.add_up(ASKED, vectors).tolist() == second.add_up(ASKED, vectors).tolist()


def test_a_study_that_was_forgotten_cannot_be_gone_on_with_by_whoever_still_has_its_secrets() -> None:
    """Joined again it has another key, hence other labels: the old membership makes nothing under the old ones."""
    group = hospitals(3)
    circle = group.gather()
    circle.add_up(ASKED, some_vectors(group.names))
    member, study = circle.members["ashford"], circle.manifest.study_id
    store = group.stores["ashford"]
    with store.transaction():
        store.end(study)
        store._connection.execute("DELETE FROM mask_study WHERE study = ?", (study,))  # as of the oldest
    for _ in range(2):
        with pytest.raises(MaskError, match="has ended at ashford"):
            member.mask(ASKED, words(1, 2, 3))
        with pytest.raises(MaskError, match="has ended at ashford"):
            meet(member, circle.keys)
        again = group.join(circle.manifest, "ashford")
        assert again.key.key != member.key.key
    with pytest.raises(MaskError, match="is not the one it uses"):
        meet(again, circle.keys)
