"""The house as an adversary: everything it might try is refused in one sentence, and what it holds in the end,
even with all but two sites on its side, is one sum."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from mask_circle import (
    Circle,
    Hospitals,
    Vector,
    changed,
    hospitals,
    meet,
    new_store,
    show,
    some_vectors,
    words,
)
from scipy import stats

from concilium.errors import MaskError
from concilium.ledger import mask_store
from concilium.privacy import masks, randomness
from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Manifest, Participant, compose
from concilium.privacy.masks import MaskedVector, Seed, _Commitment, _stream, derive_pair_key
from concilium.privacy.study_keys import StudyKey, agree, sign_study_key
from concilium.protocol.membership import Membership, _hash_content

ASKED = b"how many died?"
OTHER = b"how many lived?"


def refuses(act: Callable[[], object], *said: str) -> None:
    """The act ends in MaskError, in one sentence of one line that says all this."""
    with pytest.raises(MaskError) as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    for part in said:
        assert part in text


def masked(circle: Circle, content: bytes = ASKED) -> tuple[dict[str, MaskedVector], list[_Commitment]]:
    answers = circle.mask(content, some_vectors(circle.manifest.names))
    return answers, list(circle.round(content).commitments(answers.values()))


def reveal(member: Membership, commitments: Sequence[_Commitment], content: bytes = ASKED) -> Seed:
    return member.reveal(content, show(member, commitments), charge_on_disk=True)


class TestWhoTakesPart:
    def test_a_puppet_is_not_pinned(self) -> None:
        group = hospitals(3)
        puppet = Participant("puppet", Identity.create().public)
        manifest = compose("burns", [*(group.participant(name) for name in group.names), puppet])
        refuses(lambda: group.join(manifest, "ashford"), "puppet", "not pinned at ashford")

    def test_the_house_takes_a_hospitals_place(self) -> None:
        group = hospitals(3)
        house = Identity.create()
        sites = [group.participant("ashford"), group.participant("brook"), Participant("cedar", house.public)]
        refuses(
            lambda: group.join(compose("burns", sites), "ashford"),
            "cedar",
            house.fingerprint,
            "not the one pinned",
        )

    def test_the_house_takes_the_sites_own_place(self) -> None:
        group = hospitals(3)
        house = Identity.create()
        sites = [Participant("ashford", house.public), group.participant("brook"), group.participant("cedar")]
        refuses(lambda: group.join(compose("burns", sites), "ashford"), "a key that is not its own")

    def test_one_hospital_poses_as_two(self) -> None:
        group = hospitals(2)
        twice = Participant("cedar", group.identities["brook"].public)
        refuses(
            lambda: compose("burns", [*(group.participant(name) for name in group.names), twice]),
            "brook and cedar have the same key",
        )

    def test_too_few(self) -> None:
        group = hospitals(4)
        refuses(lambda: group.compose(["ashford", "brook"]), "at least 3 are needed")
        refuses(lambda: group.compose(colluders=3), "at least 5 are needed")

    def test_fewer_colluders_tolerated_than_the_site_asks_for(self) -> None:
        group = hospitals(2)
        refuses(lambda: group.join(group.compose(colluders=0), "ashford"), "tolerates 0", "asks for 1")


class TestKeys:
    """Forged, swapped, moved: no key but the hospital's own, for this very manifest."""

    def setup_method(self) -> None:
        self.group = hospitals(3)
        self.manifest = self.group.compose()
        self.members = {name: self.group.join(self.manifest, name) for name in self.group.names}
        self.keys = {name: member.key for name, member in self.members.items()}

    def refuses_key(self, key: StudyKey, *said: str) -> None:
        shown = [*(honest for name, honest in self.keys.items() if name != "cedar"), key]
        refuses(lambda: meet(self.members["ashford"], shown), "cedar", *said)

    def sign(self, identity: Identity, manifest: Manifest) -> StudyKey:
        return sign_study_key(identity, manifest.study_id, "cedar", X25519PrivateKey.generate())

    def test_the_houses_own_key_under_the_hospitals_signature(self) -> None:
        house = X25519PrivateKey.generate().public_key().public_bytes_raw()
        self.refuses_key(changed(self.keys["cedar"], key=house), "not signed by cedar")

    def test_the_houses_own_key_and_signature(self) -> None:
        self.refuses_key(self.sign(Identity.create(), self.manifest), "not signed by cedar")

    def test_a_forged_signature(self) -> None:
        self.refuses_key(changed(self.keys["cedar"], signature=bytes(64)), "not signed by cedar")

    def test_another_hospitals_signature(self) -> None:
        self.refuses_key(changed(self.keys["brook"], name="cedar"), "not signed by cedar")

    def test_a_key_of_an_earlier_study(self) -> None:
        self.refuses_key(self.sign(self.group.identities["cedar"], self.group.compose()), "for this manifest")

    @pytest.mark.parametrize(
        "lie", [{"largest": 5}, {"study": "sepsis"}, {"nonce": bytes(16)}, {"colluders": 0}]
    )
    def test_a_manifest_that_others_did_not_sign(self, lie: dict[str, object]) -> None:
        """The manifest is signed by every study key: whoever is shown another one has signed for another."""
        forged = changed(self.manifest, **lie)
        member = Membership(
            forged,
            "ashford",
            self.group.identities["ashford"],
            self.group.peers,
            self.group.stores["ashford"],
            colluders=0,
        )
        keys = [member.key, self.keys["brook"], self.keys["cedar"]]
        refuses(lambda: meet(member, keys), "brook", "not signed by brook for this manifest")

    def test_the_sites_own_key_from_before(self) -> None:
        second = sign_study_key(
            self.group.identities["ashford"], self.manifest.study_id, "ashford", X25519PrivateKey.generate()
        )
        shown = [second, self.keys["brook"], self.keys["cedar"]]
        refuses(
            lambda: meet(self.members["ashford"], shown), "the key shown for ashford", "not the one it uses"
        )

    def test_different_keys_for_different_sites_make_no_common_label(self) -> None:
        """A hospital that lost its ledger signs a second key; a house that shows each to some gets noise."""
        group, manifest = self.group, self.manifest
        group.stores["cedar"] = new_store()
        second = group.join(manifest, "cedar")
        meet(self.members["ashford"], self.keys.values())
        meet(self.members["brook"], [self.keys["ashford"], self.keys["brook"], second.key])
        one = self.members["ashford"].mask(ASKED, words(1))
        other = self.members["brook"].mask(ASKED, words(1))
        assert one.label != other.label
        meet(second, [self.keys["ashford"], self.keys["brook"], second.key])
        third = second.mask(ASKED, words(1))
        shown = [one.commitment, other.commitment, third.commitment]
        refuses(lambda: reveal(self.members["ashford"], shown), "brook", "was not sent by it")


class TestOpening:
    """One question, opened once, for one set of participants, after all have answered and the charge."""

    def test_before_the_charge(self) -> None:
        group = hospitals(3)
        circle = group.gather()
        _, shown = masked(circle)
        for member in circle.members.values():
            refuses(
                lambda member=member: member.reveal(ASKED, show(member, shown), charge_on_disk=False),
                "before the charge",
                member.name,
            )
        for store in group.stores.values():
            assert store.openings(_hash_content(ASKED)) == {}

    def test_before_an_answer(self) -> None:
        circle = hospitals(3).gather()
        _, shown = masked(circle)
        refuses(lambda: reveal(circle.members["ashford"], shown, OTHER), "has not answered this question yet")

    @pytest.mark.parametrize("lost", ["ashford", "brook", "dale"])
    def test_with_one_site_dropped(self, lost: str) -> None:
        circle = hospitals(4).gather()
        _, shown = masked(circle)
        for name, member in circle.members.items():
            remaining = [commitment for commitment in shown if commitment.name != lost]
            refuses(
                lambda member=member, some=remaining: reveal(member, some),
                f"no answer of {lost} is shown",
                name,
            )

    def test_with_one_hash_changed(self) -> None:
        """Whichever hash it is, every site notices: its own by what it stored, another's by its tag."""
        circle = hospitals(4).gather()
        _, shown = masked(circle)
        for place, (name, member) in itertools.product(range(4), circle.members.items()):
            lie = changed(shown[place], digest=bytes([shown[place].digest[0] ^ 1]) + shown[place].digest[1:])
            whose = "shown as its own" if shown[place].name == name else shown[place].name
            lies = [*shown[:place], lie, *shown[place + 1 :]]
            refuses(lambda member=member, lies=lies: reveal(member, lies), f"{name} reveals nothing", whose)

    def test_with_a_made_up_answer_in_the_place_of_a_silent_site(self) -> None:
        circle = hospitals(3).gather()
        answers = {name: circle.members[name].mask(ASKED, words(1)) for name in ("ashford", "brook")}
        theirs = answers["brook"].commitment
        shown = [answer.commitment for answer in answers.values()]
        for lie in (
            _Commitment("cedar", bytes(32), {"ashford": bytes(16), "brook": bytes(16)}),
            _Commitment("cedar", bytes(32), {}),
            _Commitment("cedar", theirs.digest, theirs.tags),
        ):
            refuses(
                lambda lie=lie: reveal(circle.members["ashford"], [*shown, lie]), "cedar", "not sent by it"
            )

    def test_with_an_answer_shown_twice_or_a_stranger(self) -> None:
        circle = hospitals(3).gather()
        _, shown = masked(circle)
        member = circle.members["ashford"]
        refuses(lambda: reveal(member, [*shown, shown[1]]), "more answers are shown")
        refuses(
            lambda: reveal(member, [*shown, _Commitment("zebra", bytes(32), {})]), "more answers are shown"
        )

    def test_another_content_under_the_same_label(self) -> None:
        """Answers to one question cannot open another, nor be passed off as answers to it."""
        circle = hospitals(3).gather()
        answers, shown = masked(circle)
        _, others = masked(circle, OTHER)
        member = circle.members["ashford"]
        refuses(lambda: reveal(member, others), "shown as its own")
        refuses(lambda: reveal(member, [shown[0], *others[1:]]), "brook", "for this question")
        refuses(lambda: circle.round(OTHER).commitments(answers.values()), "answered another question")

    def test_a_repeated_question_gives_nothing_new(self) -> None:
        """Were a second vector masked under one label, their difference would be in the clear."""
        circle = hospitals(3).gather()
        member = circle.members["ashford"]
        first = member.mask(ASKED, words(1, 2, 3))
        assert msgspec.msgpack.encode(member.mask(ASKED, words(500, 2, 3))) == msgspec.msgpack.encode(first)

    def test_asked_again_after_it_was_opened(self) -> None:
        """The same vector and the same seed, and neither for any other answers than the first time."""
        circle = hospitals(3).gather()
        answers, shown = masked(circle)
        seeds = circle.reveal(ASKED, shown)
        for place, member in enumerate(circle.members.values()):
            assert member.mask(ASKED, words(500, 2, 3)) == member.recall(ASKED) == answers[member.name]
            assert reveal(member, shown) == seeds[place]

    def test_asked_again_with_other_keys(self) -> None:
        """A hospital that lost its ledger has a second key: with it the others would mask their answers anew."""
        group = hospitals(3)
        circle = group.gather()
        vectors = some_vectors(group.names)
        first = {name: circle.members[name].mask(ASKED, vectors[name]) for name in ("ashford", "brook")}
        group.stores["cedar"] = new_store()
        second = group.join(circle.manifest, "cedar")
        keys = [*circle.keys[:2], second.key]
        for name in ("ashford", "brook"):
            member = circle.members[name]
            meet(member, keys)
            refuses(lambda member=member: member.mask(ASKED, words(1)), "other keys", "start a new one")
            refuses(lambda member=member: member.recall(ASKED), "other keys", "start a new one")
            refuses(lambda member=member: reveal(member, []), "other keys", "start a new one")
            assert member.mask(OTHER, words(1)).label != first[name].label
            meet(member, circle.keys)
            assert member.recall(ASKED) == first[name]

    def test_an_answer_that_was_dropped_is_never_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A house makes sites drop their unopened answers and mask them anew, once another has opened its own: the
        answers share a label, and still there is one sum, of those that stand."""
        monkeypatch.setattr(mask_store, "MOST_UNOPENED", 1)
        circle = hospitals(4).gather()
        before, first = masked(circle)
        opened = [reveal(circle.members["ashford"], first)]
        for name in ("brook", "cedar", "dale"):
            circle.members[name].mask(OTHER, words(1))
            assert circle.members[name].recall(ASKED) is None
        after, second = masked(circle)
        assert [one.name for one, other in zip(first, second, strict=True) if one == other] == ["ashford"]
        refuses(lambda: reveal(circle.members["ashford"], second), "the first opening stands")
        for name in ("brook", "cedar", "dale"):
            refuses(lambda name=name: reveal(circle.members[name], first), "shown as its own")
            opened.append(reveal(circle.members[name], second))
            refuses(lambda name=name: reveal(circle.members[name], first), "shown as its own")
        asked = circle.round(ASKED)
        assert asked.unmask(after.values(), opened).tolist() == [100, 104, 108]
        refuses(lambda: asked.unmask(before.values(), opened), "brook", "does not belong")

    def test_after_the_end(self) -> None:
        circle = hospitals(3).gather()
        _, shown = masked(circle)
        circle.members["ashford"].forget()
        refuses(lambda: reveal(circle.members["ashford"], shown), "has ended at ashford")


class TestAnotherSetOfParticipants:
    def test_in_a_second_study_without_one_hospital(self) -> None:
        """Leave one site out: the two sums would differ by its whole answer."""
        group = hospitals(4)
        group.gather().add_up(ASKED, some_vectors(group.names))
        fewer = group.gather(group.compose(["ashford", "brook", "cedar"]))
        for member in fewer.members.values():
            refuses(lambda member=member: member.mask(ASKED, words(1)), "would differ by the answer of dale")

    def test_in_a_second_study_with_one_more(self) -> None:
        group = hospitals(4)
        first = group.gather(group.compose(["ashford", "brook", "cedar"]))
        first.add_up(ASKED, some_vectors(first.manifest.names))
        more = group.gather()
        refuses(lambda: more.members["brook"].mask(ASKED, words(1)), "would differ by the answer of dale")

    def test_even_when_the_first_study_has_ended(self) -> None:
        group = hospitals(4)
        circle = group.gather()
        circle.add_up(ASKED, some_vectors(group.names))
        for member in circle.members.values():
            member.forget()
        fewer = group.gather(group.compose(["ashford", "brook", "cedar"]))
        refuses(lambda: fewer.members["brook"].mask(ASKED, words(1)), "would differ by the answer of dale")

    def test_both_studies_prepared_beforehand(self) -> None:
        group = hospitals(4)
        circle, fewer = group.gather(), group.gather(group.compose(["ashford", "brook", "cedar"]))
        _, shown = masked(circle)
        _, without = masked(fewer)
        circle.reveal(ASKED, shown)
        for member in fewer.members.values():
            refuses(lambda member=member: reveal(member, without), "would differ by the answer of dale")


class Accomplices:
    """The house with all but two hospitals on its side: every message, and all the accomplices keep."""

    def __init__(self, group: Hospitals, honest: tuple[str, str]) -> None:
        self.group, self.honest = group, honest
        self.names = [name for name in group.names if name not in honest]

    def known_mask(self, circle: Circle, label: bytes, name: str, count: int) -> Vector:
        """What an honest site added that the accomplices can compute: the streams they share with it."""
        study = circle.manifest.study_id
        public = {key.name: key.key for key in circle.keys}
        total = np.zeros(count, dtype=np.uint64)
        for accomplice in self.names:
            stored = self.group.stores[accomplice].study_key(study)
            assert stored is not None
            shared = agree(X25519PrivateKey.from_private_bytes(stored), name, public[name])
            shift = _stream(derive_pair_key(shared, study, label, accomplice, name).stream, count)
            total = total + shift if name < accomplice else total - shift
        return total

    def peel(
        self, circle: Circle, answers: dict[str, MaskedVector], seeds: Sequence[Seed]
    ) -> dict[str, Vector]:
        """The honest sites' vectors with everything known taken off."""
        peeled = {}
        for seed in seeds:
            if seed.name in self.honest:
                answer = answers[seed.name]
                vector = np.frombuffer(answer.vector, dtype="<u8")
                known = self.known_mask(circle, answer.label, seed.name, len(vector))
                peeled[seed.name] = vector - _stream(seed.seed, len(vector)) - known
        return peeled


def play(circle: Circle, vectors: dict[str, Vector]) -> tuple[dict[str, MaskedVector], list[Seed]]:
    asked = circle.round(ASKED)
    answers = circle.mask(ASKED, vectors)
    return answers, circle.reveal(ASKED, asked.commitments(answers.values()))


@pytest.mark.parametrize("honest", [("ashford", "brook"), ("cedar", "heath")])
def test_with_all_but_two_sites_on_its_side_the_house_gets_their_sum_and_noise(
    honest: tuple[str, str],
) -> None:
    count = 8192
    extreme = {honest[0]: words(*[2**59] * count), honest[1]: words(*[-(2**59)] * count)}
    for own in ({name: words(*[0] * count) for name in honest}, extreme):
        group = hospitals(10)
        circle = group.gather(group.compose(colluders=8))
        zeros = {name: words(*[0] * count) for name in group.names}
        peeled = Accomplices(group, honest).peel(circle, *play(circle, zeros | own))
        assert not (peeled[honest[0]] + peeled[honest[1]]).any()
        for vector in peeled.values():
            seen = np.bincount(vector.view(np.uint8), minlength=256)
            assert stats.chisquare(seen).pvalue > 1e-6
            bits = np.unpackbits(vector.view(np.uint8)).reshape(count, 64).sum(axis=0)
            assert abs(bits - count / 2).max() < 7 * np.sqrt(count) / 2


def test_with_one_site_more_the_house_would_have_the_answer() -> None:
    """The other half of the claim: the bound on colluders is tight, and the peeling above is done right."""
    group = hospitals(4)
    circle = group.gather(group.compose(colluders=2))
    vectors = some_vectors(group.names)
    alone = Accomplices(group, ("ashford", "ashford")).peel(circle, *play(circle, vectors))
    assert alone["ashford"].tolist() == vectors["ashford"].tolist()


def test_two_data_sets_with_one_sum_give_one_and_the_same_transcript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the house and its accomplices saw, there is a stream between the two honest sites with which the
    same bytes come from any other data of the same sum; the stream being uniform, they learn the sum alone."""
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
    honest = ("brook", "dale")
    moved = words(17, -3, 2**40, 0)

    def transcript(move: Vector, shift: Vector, odd: Vector) -> bytes:
        with randomness.seeded(20170):
            group = hospitals(5)
            circle = group.gather(group.compose(colluders=3))
            vectors = some_vectors(group.names, 4)
            vectors["brook"], vectors["dale"] = vectors["brook"] + move + odd, vectors["dale"] - move
            study = circle.manifest.study_id
            stored = group.stores["brook"].study_key(study)
            assert stored is not None
            peer = next(key.key for key in circle.keys if key.name == "dale")
            shared = agree(X25519PrivateKey.from_private_bytes(stored), "dale", peer)
            between = derive_pair_key(shared, study, circle.round(ASKED).label, *honest).stream

            def shifted(key: bytes, count: int) -> Vector:
                return _stream(key, count) - shift if key == between else _stream(key, count)

            with monkeypatch.context() as patch:
                patch.setattr(masks, "_stream", shifted)
                answers, seeds = play(circle, vectors)
            secrets = [group.stores[name].study_key(study) for name in group.names if name not in honest]
            return msgspec.msgpack.encode([circle.keys, answers, seeds, secrets])

    none = words(0, 0, 0, 0)
    first = transcript(none, none, none)
    assert transcript(none, none, none) == first
    assert transcript(moved, moved, none) == first
    assert transcript(moved, none, none) != first
    assert transcript(moved, moved, words(0, 1, 0, 0)) != first


def mask_coefficients(monkeypatch: pytest.MonkeyPatch, count: int) -> np.ndarray:
    """How often each site's vector holds each pair's stream and each seed's, read off the code itself: every
    key is made to give a unit vector of its own. Pairs come first, then seeds in order of names."""
    size = count * (count - 1) // 2 + count
    group = hospitals(count)
    circle = group.gather()
    places: dict[bytes, int] = {}
    owners: dict[int, set[str]] = {}

    def unit(key: bytes, length: int) -> Vector:
        place = places.setdefault(key, len(places))
        return np.eye(size, dtype=np.uint64)[place]

    with monkeypatch.context() as patch:
        patch.setattr(masks, "_stream", unit)
        answers = circle.mask(ASKED, {name: words(*[0] * size) for name in group.names})
    rows = np.array([np.frombuffer(answers[name].vector, dtype="<i8") for name in group.names])
    for place in range(size):
        owners[place] = {group.names[at] for at in np.flatnonzero(rows[:, place])}
    pairs = sorted(
        (place for place in owners if len(owners[place]) == 2), key=lambda place: sorted(owners[place])
    )
    seeds = sorted(
        (place for place in owners if len(owners[place]) == 1), key=lambda place: sorted(owners[place])
    )
    assert len(pairs) + len(seeds) == size
    return rows[:, pairs + seeds]


def rank_modulo_two(matrix: np.ndarray) -> int:
    rows = [int("".join(str(number % 2) for number in row), 2) for row in matrix]
    rank = 0
    while rows:
        pivot = rows.pop()
        if pivot:
            rank += 1
            low = pivot & -pivot
            rows = [row ^ pivot if row & low else row for row in rows]
    return rank


@pytest.mark.parametrize("count", [3, 4, 7])
def test_no_combination_but_the_whole_sum_is_free_of_masks(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Linear algebra over the ring: the masks in pairs have rank M - 1, also modulo 2 (so that no even multiple
    slips through), and the sum of all rows is what cancels; with any seed missing the rank is full."""
    matrix = mask_coefficients(monkeypatch, count)
    pairs, seeds = matrix[:, :-count], matrix[:, -count:]
    assert (seeds == np.eye(count, dtype=np.int64)).all()
    assert not pairs.sum(axis=0).any()
    assert rank_modulo_two(pairs) == count - 1
    for missing in range(count):
        unknown = np.column_stack([pairs, seeds[:, missing]])
        assert rank_modulo_two(unknown) == count


def test_no_part_of_the_messages_adds_up() -> None:
    """Every subset of the vectors, with every subset of the seeds: only all of both give a sum of data."""
    circle = hospitals(4).gather()
    names = circle.manifest.names
    vectors = some_vectors(names, 4)
    answers, seeds = play(circle, vectors)
    opened = {seed.name: _stream(seed.seed, 4) for seed in seeds}
    subsets = [some for size in range(1, 5) for some in itertools.combinations(names, size)]
    found = []
    for chosen, revealed in itertools.product(subsets, [(), *subsets]):
        total = sum(np.frombuffer(answers[name].vector, dtype="<u8") for name in chosen)
        total = total - sum((opened[name] for name in revealed), np.zeros(4, dtype=np.uint64))
        # A sum of any hospitals' data here is below 2^32; a masked number is so with probability 2^-32.
        if (total < 2**32).any():
            found.append((chosen, revealed))
    assert found == [(names, names)]


def test_one_vector_says_nothing_of_its_numbers() -> None:
    """Without its seed a vector looks the same whether the hospital counted nobody or very many."""
    circle = hospitals(3).gather()
    member = circle.members["brook"]
    for content, number in ((ASKED, 0), (OTHER, 2**60)):
        vector = np.frombuffer(member.mask(content, words(*[number] * 8192)).vector, dtype=np.uint8)
        assert stats.chisquare(np.bincount(vector, minlength=256)).pvalue > 1e-6


def test_messages_hold_no_secret() -> None:
    group = hospitals(3)
    circle = group.gather()
    study = circle.manifest.study_id
    answers, _ = masked(circle)
    sent = msgspec.msgpack.encode([circle.manifest.encoded, circle.keys, answers])
    for name in group.names:
        key = group.stores[name].study_key(study)
        assert key is not None
        assert key not in sent
        assert group.identities[name]._key.private_bytes_raw() not in sent
        shared = circle.members[name]._shared
        assert len(shared) == 2
        assert not any(secret in sent for secret in shared.values())
        for pair in circle.members[name]._pairs[1].values():
            assert pair.stream not in sent
            assert pair.tag not in sent
        stored = group.stores[name].find(study, _hash_content(ASKED))
        assert stored is not None
        assert stored.seed not in sent
