"""The rules of opening against a plain model: one question, one opening, one set of participants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from concilium.errors import MaskError
from concilium.privacy.mask_store import MemoryMaskStore
from concilium.privacy.opening import Attempt, check_participants, find_attempt, open_attempt

NAMES = {b"all": ("a", "b", "c", "d"), b"fewer": ("a", "b", "c")}


def attempt(
    number: int = 1, *, study: bytes = b"study", label: bytes = b"label", who: bytes = b"all"
) -> Attempt:
    return Attempt(study, b"content", number, label, who, NAMES[who], b"seed", b"vector")


def store_with(*attempts: Attempt) -> MemoryMaskStore:
    store = MemoryMaskStore()
    for one in attempts:
        store.keep(one)
    return store


def test_a_new_question_has_no_attempt_and_may_be_answered() -> None:
    assert find_attempt(MemoryMaskStore(), b"study", b"content", 1, b"label") is None


def test_the_same_attempt_is_the_stored_one() -> None:
    store = store_with(attempt())
    assert find_attempt(store, b"study", b"content", 1, b"label") == attempt()


def test_a_later_attempt_is_free_while_none_is_opened() -> None:
    assert find_attempt(store_with(attempt()), b"study", b"content", 2, b"label 2") is None


def test_the_same_number_with_another_label_is_refused() -> None:
    with pytest.raises(
        MaskError, match=r"attempt 1 .* other participants or other keys .*ask it as attempt 2"
    ):
        find_attempt(store_with(attempt()), b"study", b"content", 1, b"label 2")


def test_an_older_attempt_is_void() -> None:
    with pytest.raises(MaskError, match="attempt 1 of this question is void since attempt 2"):
        find_attempt(store_with(attempt(2)), b"study", b"content", 1, b"label 1")


def test_an_opened_question_has_no_other_attempt() -> None:
    store = store_with(attempt(2))
    open_attempt(store, attempt(2), b"transcript")
    for number in (1, 3):
        with pytest.raises(MaskError, match="already opened in attempt 2"):
            find_attempt(store, b"study", b"content", number, b"label 3")


def test_an_attempt_is_opened_for_one_transcript() -> None:
    store = store_with(attempt())
    assert open_attempt(store, attempt(), b"transcript") == b"seed"
    opened = store.latest(b"study", b"content")
    assert opened is not None
    assert open_attempt(store, opened, b"transcript") == b"seed"
    with pytest.raises(MaskError, match="opened for other answers"):
        open_attempt(store, opened, b"another transcript")


def test_other_participants_are_refused_in_any_study_and_the_difference_is_named() -> None:
    store = store_with(attempt())
    check_participants(store, b"content", b"fewer", NAMES[b"fewer"])
    open_attempt(store, attempt(), b"transcript")
    check_participants(store, b"content", b"all", NAMES[b"all"])
    check_participants(store, b"another", b"fewer", NAMES[b"fewer"])
    with pytest.raises(MaskError, match="would differ by the answer of d"):
        check_participants(store, b"content", b"fewer", NAMES[b"fewer"])
    with pytest.raises(MaskError, match="a site with a new identity"):
        check_participants(store, b"content", b"reissued", NAMES[b"all"])


class House(RuleBasedStateMachine):
    """A house that asks for anything in any order: whatever it does, the openings it gets are few."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryMaskStore()
        self.seeds: dict[bytes, set[bytes]] = {}
        self.opened_for: set[bytes] = set()

    @rule(
        study=st.sampled_from([b"one", b"two"]),
        number=st.integers(1, 4),
        who=st.sampled_from([b"all", b"fewer"]),
        transcript=st.sampled_from([None, b"x", b"y"]),
    )
    def ask(self, study: bytes, number: int, who: bytes, transcript: bytes | None) -> None:
        label = b"%d %s" % (number, who)
        try:
            check_participants(self.store, b"content", who, NAMES[who])
            found = find_attempt(self.store, study, b"content", number, label)
            if found is None and transcript is None:
                seed = b"%s %s" % (study, label)
                self.store.keep(Attempt(study, b"content", number, label, who, NAMES[who], seed, b"vector"))
            if found is not None and transcript is not None:
                self.seeds.setdefault(study, set()).add(open_attempt(self.store, found, transcript))
                self.opened_for.add(who)
        except MaskError:
            pass

    @invariant()
    def one_seed_for_each_study_and_one_set_of_participants(self) -> None:
        assert all(len(seeds) == 1 for seeds in self.seeds.values())
        assert len(self.opened_for) <= 1


TestHouse = House.TestCase
TestHouse.settings = settings(max_examples=60, deadline=None)
