from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_council import hospitals, some_vectors, words

from concilium.errors import MaskError
from concilium.privacy.manifest import compose
from concilium.privacy.mask_store import SqliteMaskStore
from concilium.privacy.seat import Seat

ASKED = b"how many died?"


def test_three_hospitals_add_up() -> None:
    council = hospitals(3).gather()
    vectors = {"ashford": words(1, -5, 0), "brook": words(2, 3, 0), "cedar": words(4, 1, 0)}
    assert council.add_up(ASKED, vectors).view(np.int64).tolist() == [7, -1, 0]


def test_many_questions_of_one_study() -> None:
    council = hospitals(4).gather()
    for question in range(5):
        vectors = some_vectors(council.manifest.names, 2 + question)
        total = council.add_up(b"question %d" % question, vectors)
        assert total.tolist() == sum(vector.astype(object) for vector in vectors.values()).tolist()


def test_a_repeated_attempt_is_the_same_message_whatever_the_vector_is_now() -> None:
    council = hospitals(3).gather()
    seat = council.seats["brook"]
    first = seat.mask(ASKED, 1, words(1, 2, 3))
    assert seat.mask(ASKED, 1, words(7, 8, 9)) == first
    assert seat.recall(ASKED, 1) == first


def test_nothing_is_recalled_before_it_is_answered() -> None:
    seat = hospitals(3).gather().seats["brook"]
    assert seat.recall(ASKED, 1) is None
    seat.mask(ASKED, 1, words(1))
    assert seat.recall(ASKED, 2) is None
    assert seat.recall(b"something else", 1) is None


def test_a_new_attempt_shares_nothing_with_the_last() -> None:
    seat = hospitals(3).gather().seats["brook"]
    first, second = (seat.mask(ASKED, attempt, words(1, 2, 3)) for attempt in (1, 2))
    assert first.label != second.label
    assert first.vector != second.vector
    assert first.seed_hash != second.seed_hash


def test_a_new_attempt_after_an_unopened_one_gives_the_sum() -> None:
    council = hospitals(4).gather()
    vectors = some_vectors(council.manifest.names)
    for name in ("ashford", "brook"):
        council.seats[name].mask(ASKED, 1, vectors[name])
    total = council.add_up(ASKED, vectors, attempt=2)
    assert total.tolist() == np.sum(list(vectors.values()), axis=0).tolist()


def test_a_seed_is_revealed_again_for_the_same_commitments() -> None:
    council = hospitals(3).gather()
    commitments = council.round(ASKED).commitments(
        council.mask(ASKED, some_vectors(council.manifest.names)).values()
    )
    assert council.reveal(ASKED, commitments) == council.reveal(ASKED, tuple(reversed(commitments)))


def test_those_who_agreed_can_be_gone_on_without() -> None:
    council = hospitals(5, consenting=["dale"]).gather()
    vectors = some_vectors(council.manifest.names)
    total = council.add_up(ASKED, vectors, without=("dale",))
    expected = sum(vector for name, vector in vectors.items() if name != "dale")
    assert total.tolist() == np.asarray(expected).tolist()


def test_a_site_does_not_take_part_in_a_round_without_it() -> None:
    seat = hospitals(5, consenting=["dale"]).gather().seats["dale"]
    with pytest.raises(MaskError, match="dale cannot answer a question that goes on without it"):
        seat.mask(ASKED, 1, words(1), without=["dale"])


def test_nobody_answers_before_meeting_the_others() -> None:
    group = hospitals(3)
    seat = group.sit(group.compose(), "ashford")
    with pytest.raises(MaskError, match="has not met the other participants"):
        seat.mask(ASKED, 1, words(1))


@pytest.mark.parametrize("attempt", [0, -1, 2**40])
def test_an_impossible_attempt_is_refused(attempt: int) -> None:
    seat = hospitals(3).gather().seats["ashford"]
    with pytest.raises(MaskError, match="attempt's number"):
        seat.mask(ASKED, attempt, words(1))


@pytest.mark.parametrize(
    "vector", [np.zeros(3), np.zeros((2, 2), dtype=np.uint64), np.zeros(3, dtype=np.int64)]
)
def test_only_a_row_of_words_is_masked(vector: np.ndarray) -> None:
    seat = hospitals(3).gather().seats["ashford"]
    with pytest.raises(MaskError, match="one row of uint64"):
        seat.mask(ASKED, 1, vector)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, (2**63 - 1) // 3))
def test_a_number_beyond_the_studys_ring_limit_is_refused(number: int, largest: int) -> None:
    group = hospitals(3)
    manifest = compose("s", [group.participant(name) for name in group.names], largest=largest)
    seat = group.gather(manifest).seats["brook"]
    if abs(number) <= largest:
        seat.mask(ASKED, 1, words(0, number))
    else:
        with pytest.raises(MaskError, match="larger than study 's' allows"):
            seat.mask(ASKED, 1, words(0, number))
        assert seat.recall(ASKED, 1) is None


def test_a_restarted_site_takes_its_seat_again_and_goes_on(tmp_path: Path) -> None:
    group = hospitals(3)
    with closing(sqlite3.connect(tmp_path / "brook.ledger")) as connection:
        group.stores["brook"] = SqliteMaskStore(connection)
        council = group.gather()
        answers = council.mask(ASKED, some_vectors(group.names))
    with closing(sqlite3.connect(tmp_path / "brook.ledger")) as connection:
        group.stores["brook"] = SqliteMaskStore(connection)
        again = group.sit(council.manifest, "brook")
        assert again.key == council.seats["brook"].key
        again.meet(council.keys)
        assert again.recall(ASKED, 1) == answers["brook"]
        council.seats["brook"] = again
        asked = council.round(ASKED)
        seeds = council.reveal(ASKED, asked.commitments(answers.values()))
    assert asked.unmask(answers.values(), seeds).tolist() == [60, 63, 66]


def test_charge_and_opening_are_one_transaction(tmp_path: Path) -> None:
    """As the gate does it: the seed is revealed inside the transaction that writes the charge; if that fails,
    nothing was opened and another attempt is still possible."""
    group = hospitals(3)
    with closing(sqlite3.connect(tmp_path / "ledger", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE charges (cost)")
        group.stores["ashford"] = SqliteMaskStore(connection)
        council = group.gather()
        seat = council.seats["ashford"]
        commitments = council.round(ASKED).commitments(
            council.mask(ASKED, some_vectors(group.names)).values()
        )
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charges VALUES (1)")
        seat.reveal(ASKED, 1, commitments, charge_on_disk=True)
        connection.rollback()
        content = connection.execute("SELECT opened FROM mask_attempt").fetchall()
        assert content == [(None,)]
        seat.mask(ASKED, 2, words(1, 2, 3))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charges VALUES (1)")
        again = council.mask(ASKED, some_vectors(group.names), attempt=2)
        commitments = council.round(ASKED, 2).commitments(again.values())
        seat.reveal(ASKED, 2, commitments, charge_on_disk=True)
        connection.execute("COMMIT")
        with pytest.raises(MaskError, match="already opened in attempt 2"):
            seat.mask(ASKED, 3, words(1, 2, 3))


def test_a_refused_reveal_changes_nothing() -> None:
    council = hospitals(3).gather()
    commitments = council.round(ASKED).commitments(
        council.mask(ASKED, some_vectors(council.manifest.names)).values()
    )
    seat = council.seats["ashford"]
    with pytest.raises(MaskError):
        seat.reveal(ASKED, 1, commitments[:2], charge_on_disk=True)
    seat.mask(ASKED, 2, words(1, 2, 3))  # free: nothing was opened


def test_an_ended_study_is_over_at_every_seat_of_the_site() -> None:
    group = hospitals(3)
    council = group.gather()
    council.add_up(ASKED, some_vectors(group.names))
    twin = group.sit(council.manifest, "ashford")
    twin.meet(council.keys)
    council.seats["ashford"].forget()
    for seat in (council.seats["ashford"], twin):
        with pytest.raises(MaskError, match="has ended at ashford"):
            seat.mask(b"one more", 1, words(1))
        with pytest.raises(MaskError, match="has ended at ashford"):
            seat.recall(ASKED, 1)
    with pytest.raises(MaskError, match="has ended at ashford"):
        council.seats["ashford"].meet(council.keys)
    with pytest.raises(MaskError, match="has ended at ashford"):
        group.sit(council.manifest, "ashford")


def test_forgetting_leaves_no_key_behind() -> None:
    group = hospitals(3)
    council = group.gather()
    seat: Seat = council.seats["ashford"]
    study = council.manifest.study_id
    assert group.stores["ashford"].study_key(study) is not None
    seat.forget()
    assert group.stores["ashford"].study_key(study) is None
    assert seat._private is None
    assert not seat._shared
    assert not seat._pairs[1]


def test_a_second_run_of_the_same_question_among_the_same_hospitals_is_a_new_study() -> None:
    group = hospitals(4)
    vectors = some_vectors(group.names)
    first, second = group.gather(), group.gather()
    assert first.add_up(ASKED, vectors).tolist() == second.add_up(ASKED, vectors).tolist()
