from __future__ import annotations

from dataclasses import replace

import pytest
from mask_circle import Circle, changed, hospitals, some_vectors, words

from concilium.errors import MaskError
from concilium.privacy.masks import MaskedRound, MaskedVector, Seed, hash_vector

ASKED = b"how many died?"
Played = tuple[Circle, MaskedRound, dict[str, MaskedVector], list[Seed]]


@pytest.fixture(scope="module")
def played() -> Played:
    """An honest round, held by the house up to the last step."""
    circle = hospitals(4).gather()
    asked = circle.round(ASKED)
    answers = circle.mask(ASKED, some_vectors(circle.manifest.names))
    return circle, asked, answers, circle.reveal(ASKED, asked.commitments(answers.values()))


def test_the_sum_is_that_of_all(played: Played) -> None:
    _, asked, answers, seeds = played
    assert asked.unmask(answers.values(), reversed(seeds)).tolist() == [100, 104, 108]


@pytest.mark.parametrize("lost", ["ashford", "dale"])
def test_a_missing_answer_is_named(played: Played, lost: str) -> None:
    _, asked, answers, seeds = played
    some = [answer for name, answer in answers.items() if name != lost]
    with pytest.raises(MaskError, match=f"{lost} has not answered: wait until it is back"):
        asked.commitments(some)
    with pytest.raises(MaskError, match=f"{lost} has not answered"):
        asked.unmask(some, seeds)


@pytest.mark.parametrize("lost", ["ashford", "dale"])
def test_a_missing_seed_is_named(played: Played, lost: str) -> None:
    _, asked, answers, seeds = played
    with pytest.raises(MaskError, match=f"{lost} has not revealed its seed: wait until it is back"):
        asked.unmask(answers.values(), [seed for seed in seeds if seed.name != lost])


def test_a_damaged_vector_is_named(played: Played) -> None:
    _, asked, answers, seeds = played
    vector = bytearray(answers["cedar"].vector)
    vector[3] ^= 1
    spoiled = answers | {"cedar": changed(answers["cedar"], vector=bytes(vector))}
    with pytest.raises(MaskError, match="the answer of cedar does not match its hash"):
        asked.unmask(spoiled.values(), seeds)


def test_a_wrong_seed_is_named(played: Played) -> None:
    _, asked, answers, seeds = played
    for lie in (
        changed(seeds[1], seed=bytes(32)),
        changed(seeds[1], seed=b""),
        changed(seeds[1], label=bytes(32)),
        changed(seeds[2], name="brook"),
    ):
        with pytest.raises(MaskError, match="the seed of brook does not belong to the answer"):
            asked.unmask(answers.values(), [seeds[0], lie, *seeds[2:]])


def test_an_answer_to_something_else_is_named(played: Played) -> None:
    circle, asked, answers, _ = played
    other = circle.members["brook"].mask(b"how many lived?", words(1, 2, 3))
    with pytest.raises(MaskError, match="brook answered another question or set of participants"):
        asked.commitments((answers | {"brook": other}).values())
    with pytest.raises(MaskError, match="ashford answered another question"):
        replace(asked, content=b"how many lived?").commitments(answers.values())


def test_a_stranger_is_named(played: Played) -> None:
    _, asked, answers, seeds = played
    commitment = changed(answers["cedar"].commitment, name="zebra")
    with pytest.raises(MaskError, match="'zebra' has answered but takes no part"):
        asked.commitments([*answers.values(), changed(answers["cedar"], commitment=commitment)])
    with pytest.raises(MaskError, match="'zebra' has revealed its seed but takes no part"):
        asked.unmask(answers.values(), [*seeds, changed(seeds[0], name="zebra")])


def test_answers_of_different_length_are_not_added() -> None:
    circle = hospitals(3).gather()
    vectors = some_vectors(circle.manifest.names) | {"cedar": words(1, 2)}
    with pytest.raises(MaskError, match=r"3 numbers \(ashford\) and 2 numbers \(cedar\)"):
        circle.add_up(ASKED, vectors)


def test_half_a_word_is_not_added() -> None:
    circle = hospitals(3).gather()
    answers = circle.mask(ASKED, some_vectors(circle.manifest.names))
    cut = {}
    for name, answer in answers.items():
        digest = hash_vector(answer.label, name, answer.seed_hash, answer.vector[:-3])
        commitment = changed(answer.commitment, digest=digest)
        cut[name] = changed(answer, vector=answer.vector[:-3], commitment=commitment)
    with pytest.raises(MaskError, match="cannot be added up"):
        circle.round(ASKED).commitments(cut.values())


def test_nothing_asked_adds_up_to_nothing() -> None:
    circle = hospitals(3).gather()
    assert circle.add_up(ASKED, {name: words() for name in circle.manifest.names}).tolist() == []
