"""The rules of opening against a plain model: one question, one opening, one set of participants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mask_circle import new_store

from concilium.errors import MaskError
from concilium.ledger.mask_store import MaskedAnswer, SqliteMaskStore

NAMES = {b"all": ("a", "b", "c", "d"), b"fewer": ("a", "b", "c")}
ANSWER = MaskedAnswer(b"study", b"content", b"label", b"all", NAMES[b"all"], b"seed", b"vector")


def store_with(*answers: MaskedAnswer) -> SqliteMaskStore:
    store = new_store()
    for answer in answers:
        store.keep(answer)
    return store


def test_a_new_question_has_no_answer_and_may_be_answered() -> None:
    assert new_store().find_answer(b"study", b"content", b"label") is None


def test_a_question_that_is_asked_again_has_the_stored_answer() -> None:
    store = store_with(ANSWER)
    assert store.find_answer(b"study", b"content", b"label") == ANSWER
    store.open(ANSWER, b"transcript")
    again = store.find_answer(b"study", b"content", b"label")
    assert again is not None
    assert (again.seed, again.vector) == (ANSWER.seed, ANSWER.vector)


def test_a_question_is_answered_for_one_label_only_opened_or_not() -> None:
    store = store_with(ANSWER)
    for _ in range(2):
        with pytest.raises(
            MaskError, match=r"other participants or other keys .*\(a, b, c, d\).* start a new"
        ):
            store.find_answer(b"study", b"content", b"label 2")
        store.open(ANSWER, b"transcript")


def test_an_answer_is_opened_for_one_transcript() -> None:
    store = store_with(ANSWER)
    assert store.open(ANSWER, b"transcript") == b"seed"
    opened = store.find(b"study", b"content")
    assert opened is not None
    assert store.open(opened, b"transcript") == b"seed"
    with pytest.raises(MaskError, match="opened for other answers"):
        store.open(opened, b"another transcript")


def test_other_participants_are_refused_in_any_study_and_the_difference_is_named() -> None:
    store = store_with(ANSWER)
    store.check_participants(b"content", b"fewer", NAMES[b"fewer"])
    store.open(ANSWER, b"transcript")
    store.check_participants(b"content", b"all", NAMES[b"all"])
    store.check_participants(b"another", b"fewer", NAMES[b"fewer"])
    with pytest.raises(MaskError, match="would differ by the answer of d"):
        store.check_participants(b"content", b"fewer", NAMES[b"fewer"])
    with pytest.raises(MaskError, match="a site with a new identity"):
        store.check_participants(b"content", b"reissued", NAMES[b"all"])


class House(RuleBasedStateMachine):
    """A house that asks for anything in any order: whatever it does, the openings it gets are few."""

    def __init__(self) -> None:
        super().__init__()
        self.store = new_store()
        self.seeds: dict[bytes, set[bytes]] = {}
        self.vectors: dict[bytes, set[bytes]] = {}
        self.opened_for: set[bytes] = set()

    @rule(
        study=st.sampled_from([b"one", b"two"]),
        keys=st.integers(1, 4),
        who=st.sampled_from([b"all", b"fewer"]),
        transcript=st.sampled_from([None, b"x", b"y"]),
    )
    def ask(self, study: bytes, keys: int, who: bytes, transcript: bytes | None) -> None:
        label = b"%d %s" % (keys, who)
        try:
            self.store.check_participants(b"content", who, NAMES[who])
            stored = self.store.find_answer(study, b"content", label)
            if stored is None and transcript is None:
                seed = b"%s %s" % (study, label)
                stored = MaskedAnswer(study, b"content", label, who, NAMES[who], seed, b"vector of " + seed)
                self.store.keep(stored)
            if stored is not None:
                self.vectors.setdefault(study, set()).add(stored.vector)
            if stored is not None and transcript is not None:
                self.seeds.setdefault(study, set()).add(self.store.open(stored, transcript))
                self.opened_for.add(who)
        except MaskError:
            pass

    @invariant()
    def one_vector_and_one_seed_for_each_study_and_one_set_of_participants(self) -> None:
        assert all(len(vectors) == 1 for vectors in self.vectors.values())
        assert all(len(seeds) == 1 for seeds in self.seeds.values())
        assert len(self.opened_for) <= 1


TestHouse = House.TestCase
TestHouse.settings = settings(max_examples=60, deadline=None)
