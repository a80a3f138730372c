"""What a house and any set of hospitals on its side can compute, by brute force over small graphs: the streams are
read off the code itself, and the rank of what the coalition does not know says which sums are free of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_circle import Circle, Hospitals, Vector, changed, hospitals, meet, new_store, roll_for, show, words

from concilium.errors import MaskError
from concilium.privacy import masks
from concilium.privacy.manifest import Manifest, Participant, _choose_degree, _MaskGraph, compose
from concilium.privacy.masks import _Commitment

ASKED = b"how many died?"


def graph_of(size: int, degree: int, study: bytes = b"study") -> _MaskGraph:
    names = [f"{place:04}" for place in range(size)]
    return _MaskGraph(study, {name: name.encode() for name in names}, degree)


def parts_of(graph: _MaskGraph, left: Collection[str]) -> list[set[str]]:
    """The connected parts that these sites form."""
    remaining, parts = set(left), []
    while remaining:
        part, edge = set(), [next(iter(remaining))]
        while edge:
            name = edge.pop()
            if name not in part:
                part.add(name)
                edge += [other for other in graph.neighbours(name) if other in remaining]
        parts.append(part)
        remaining -= part
    return parts


def without(names: Collection[str], count: int) -> Iterator[tuple[str, ...]]:
    for gone in itertools.combinations(sorted(names), count):
        yield tuple(name for name in names if name not in gone)


@pytest.mark.parametrize(("size", "degree"), [(5, 2), (7, 2), (8, 4), (9, 4), (10, 6), (11, 8), (12, 8)])
def test_whoever_is_taken_away_the_rest_is_connected_and_no_circle_can_do_better(
    size: int, degree: int
) -> None:
    """All sets of fewer than `degree`; and of `degree` there is one that splits it, which are two runs of half."""
    graph = graph_of(size, degree)
    for count in range(degree):
        assert all(len(parts_of(graph, left)) == 1 for left in without(graph.order, count))
    assert any(len(parts_of(graph, left)) > 1 for left in without(graph.order, degree))


@settings(max_examples=60, deadline=None)
@given(st.integers(14, 400), st.integers(0, 6), st.data())
def test_no_fewer_colluders_than_the_degree_split_a_large_circle(
    size: int, tolerated: int, data: st.DataObject
) -> None:
    """Two runs side by side, wherever they begin, with as few sites between them as one: what an adversary would do."""
    graph = graph_of(size, _choose_degree(size, tolerated))
    least = 2 * (tolerated + 1) + np.log2(size)
    assert graph.degree == size - 1 or least <= graph.degree < least + 3
    first = data.draw(st.integers(1, max(1, graph.degree - 2)))
    gap = data.draw(st.integers(1, size // 2))
    second = first + gap
    gone = {graph.order[at % size] for at in range(first)}
    gone |= {graph.order[at % size] for at in range(second, second + graph.degree - 1 - first)}
    assert len(gone) <= graph.degree - 1
    assert len(parts_of(graph, [name for name in graph.order if name not in gone])) == 1


def test_neighbours_are_neighbours_of_each_other_and_as_many_as_the_degree() -> None:
    for size, degree in ((3, 2), (9, 8), (10, 8), (200, 12)):
        graph = graph_of(size, degree)
        for name in graph.order:
            near = graph.neighbours(name)
            assert len(set(near)) == len(near) == degree
            assert name not in near
            assert all(name in graph.neighbours(other) for other in near)


def test_small_studies_stay_complete_and_large_ones_grow_with_the_logarithm() -> None:
    assert [_choose_degree(size, 1) for size in (3, 4, 5, 8, 9)] == [2, 3, 4, 7, 8]
    assert [_choose_degree(size, 1) for size in (10, 100, 1000, 10_000)] == [8, 12, 14, 18]
    assert _choose_degree(10, 8) == 9
    assert _choose_degree(1000, 10) == 32


def test_places_follow_from_the_whole_manifest() -> None:
    """Whoever changes a nonce, a key, a name or t has other places; whoever lists the same has the same."""
    sites = [Participant(f"{place:02}", bytes([place]) * 32) for place in range(40)]
    one = compose("study", sites, nonce=bytes(16))
    assert compose("study", reversed(sites), nonce=bytes(16)).graph.order == one.graph.order
    others = [
        compose("study", sites, nonce=bytes(15) + b"1"),
        compose("studz", sites, nonce=bytes(16)),
        compose("study", sites, nonce=bytes(16), colluders=2),
        compose("study", [*sites[:-1], Participant("39", b"x" * 32)], nonce=bytes(16)),
    ]
    orders = {manifest.graph.order for manifest in (one, *others)}
    assert len(orders) == 5
    assert one.names not in orders


# What a coalition can compute


def gather(count: int, degree: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Hospitals, Circle]:
    """A circle of so many hospitals in which each shares masks with `degree` others."""
    monkeypatch.setattr("concilium.privacy.manifest._choose_degree", lambda sites, colluders: degree)
    group = hospitals(count)
    return group, group.gather()


def read_streams(circle: Circle, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """How often each site's vector holds each stream, and whose it is: every key gives a unit vector of its own."""
    names = circle.manifest.names
    edges = sum(len(circle.members[name].neighbours) for name in names) // 2
    size = edges + len(names)
    places: dict[bytes, int] = {}

    def unit(key: bytes, length: int) -> Vector:
        return np.eye(size, dtype=np.uint64)[places.setdefault(key, len(places))]

    with monkeypatch.context() as patch:
        patch.setattr(masks, "_stream", unit)
        answers = circle.mask(ASKED, {name: words(*[0] * size) for name in names})
    rows = np.array([np.frombuffer(answers[name].vector, dtype="<i8") for name in names])
    assert len(places) == size
    owners = [tuple(names[at] for at in np.flatnonzero(rows[:, place])) for place in range(size)]
    assert sorted(map(len, owners)) == [1] * len(names) + [2] * edges
    return rows, owners


def rank(matrix: np.ndarray, modulus: int) -> int:
    """By elimination over the whole numbers modulo a prime."""
    rows, found = [[int(number) % modulus for number in row] for row in matrix], 0
    for column in range(matrix.shape[1] if len(matrix) else 0):
        pivot = next((row for row in rows if row[column]), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        inverse = pow(pivot[column], -1, modulus)
        rows = [
            [(a - row[column] * inverse * b) % modulus for a, b in zip(row, pivot, strict=True)]
            for row in rows
        ]
        found += 1
    return found


def count_free_sums(
    rows: np.ndarray,
    owners: list[tuple[str, ...]],
    names: tuple[str, ...],
    colluders: Iterable[str],
    opened: Iterable[str],
) -> set[int]:
    """How many independent combinations of honest vectors hold no stream that the coalition does not know, over the
    fields of 2 (so that no even multiple slips through) and of a large prime."""
    colluding, revealed = set(colluders), set(opened)
    honest = [at for at, name in enumerate(names) if name not in colluding]
    unknown = [
        place
        for place, owner in enumerate(owners)
        if not colluding.intersection(owner) and not (len(owner) == 1 and owner[0] in revealed)
    ]
    secret = rows[np.ix_(honest, unknown)]
    return {len(honest) - rank(secret, modulus) for modulus in (2, 2**31 - 1)}


@pytest.mark.parametrize(("count", "degree"), [(5, 2), (6, 4), (7, 4), (8, 6), (10, 8)])
def test_any_coalition_below_the_degree_gets_one_sum_and_only_when_all_have_opened(
    monkeypatch: pytest.MonkeyPatch, count: int, degree: int
) -> None:
    _, circle = gather(count, degree, monkeypatch)
    names = circle.manifest.names
    rows, owners = read_streams(circle, monkeypatch)
    for size in range(degree):
        for colluders in itertools.combinations(names, size):
            honest = [name for name in names if name not in colluders]
            assert count_free_sums(rows, owners, names, colluders, names) == {1}
            total = rows[[names.index(name) for name in honest]].sum(axis=0)
            left = {owners[place] for place in np.flatnonzero(total)}
            assert all(len(owner) == 1 or set(owner) & set(colluders) for owner in left)
            if size <= 1:
                for closed in honest:
                    seen = [name for name in names if name != closed]
                    assert count_free_sums(rows, owners, names, colluders, seen) == {0}


@pytest.mark.parametrize(("count", "degree"), [(7, 2), (8, 4), (9, 4)])
def test_a_coalition_of_any_size_gets_the_sums_over_the_connected_parts(
    monkeypatch: pytest.MonkeyPatch, count: int, degree: int
) -> None:
    _, circle = gather(count, degree, monkeypatch)
    names, graph = circle.manifest.names, circle.manifest.graph
    rows, owners = read_streams(circle, monkeypatch)
    split = 0
    for size in range(count):
        for colluders in itertools.combinations(names, size):
            parts = parts_of(graph, [name for name in names if name not in colluders])
            assert count_free_sums(rows, owners, names, colluders, names) == {len(parts)}
            split += len(parts) > 1
    assert split


def test_of_those_who_opened_every_part_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 2^8 sets of sites that a house could have open, with up to two of them on its side."""
    _, circle = gather(8, 4, monkeypatch)
    names = circle.manifest.names
    rows, owners = read_streams(circle, monkeypatch)
    for size in range(9):
        for opened in itertools.combinations(names, size):
            for colluders in ((), names[:1], (names[2], names[5])):
                complete = set(names) <= set(opened) | set(colluders)
                assert count_free_sums(rows, owners, names, colluders, opened) == {int(complete)}


# What a site checks of the others


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> tuple[Hospitals, Circle]:
    return gather(9, 4, monkeypatch)


def commitments_of(circle: Circle) -> list[_Commitment]:
    vectors = {name: words(1, 2) for name in circle.manifest.names}
    return list(circle.round(ASKED).commitments(circle.mask(ASKED, vectors).values()))


def test_a_sparse_circle_adds_up(sparse: tuple[Hospitals, Circle]) -> None:
    _, circle = sparse
    names = circle.manifest.names
    total = circle.add_up(ASKED, {name: words(place, -7) for place, name in enumerate(names)})
    assert total.view(np.int64).tolist() == [36, -63]
    assert all(len(member._shared) == 4 for member in circle.members.values())


def test_a_site_that_has_not_answered_is_noticed_by_its_neighbours_and_there_is_no_sum_without_it(
    sparse: tuple[Hospitals, Circle],
) -> None:
    """The house makes up the hash of one site. Its neighbours open nothing; others do, and it is of no use."""
    _, circle = sparse
    shown = commitments_of(circle)
    silent = circle.manifest.graph.order[0]
    lies = [changed(one, digest=bytes(32)) if one.name == silent else one for one in shown]
    opened = []
    for name, member in circle.members.items():
        if name == silent or name in circle.manifest.graph.neighbours(silent):
            with pytest.raises(MaskError, match=rf"{name} reveals nothing: .*(its own|{silent})"):
                member.reveal(ASKED, show(member, lies), charge_on_disk=True)
        else:
            opened.append(member.reveal(ASKED, show(member, lies), charge_on_disk=True))
    assert len(opened) == 4
    for member in circle.members.values():  # and who opened does not for the true list: the first stands
        if member.name in [seed.name for seed in opened]:
            with pytest.raises(MaskError, match="the first opening stands"):
                member.reveal(ASKED, show(member, shown), charge_on_disk=True)


def test_what_is_not_in_the_list_of_all_opens_nothing(sparse: tuple[Hospitals, Circle]) -> None:
    _, circle = sparse
    member = circle.members["cedar"]
    shown = show(member, commitments_of(circle))
    for lie in (
        changed(shown, root=bytes(32)),
        changed(shown, proof=(bytes(32), *shown.proof[1:])),
        changed(shown, proof=shown.proof[:-1]),
        changed(shown, proof=(*shown.proof, bytes(32))),
    ):
        with pytest.raises(MaskError, match=r"not part of the list|too short|too long"):
            member.reveal(ASKED, lie, charge_on_disk=True)
    member.reveal(ASKED, shown, charge_on_disk=True)


def test_who_was_shown_another_key_of_anybody_shares_no_mask_with_the_others(
    sparse: tuple[Hospitals, Circle],
) -> None:
    """A hospital that lost its ledger signs a second key. The house shows it to half of the circle, among them sites
    that are no neighbours of that hospital: labels differ, tags do not pass, and no sum comes of it."""
    group, circle = sparse
    graph = circle.manifest.graph
    twofold = graph.order[0]
    group.stores[twofold] = new_store()
    second = group.join(circle.manifest, twofold)
    keys = [second.key if key.name == twofold else key for key in circle.keys]
    half = graph.order[3:6]
    for name in half:
        meet(circle.members[name], keys)
    answers = circle.mask(ASKED, {name: words(1) for name in graph.order})
    assert len({answers[name].label for name in half}) == 1
    assert len({answer.label for answer in answers.values()}) == 2
    commitments = [answer.commitment for answer in answers.values()]
    for name, member in circle.members.items():
        crossing = {other in half for other in (name, *member.neighbours)} == {True, False}
        if crossing:
            with pytest.raises(MaskError, match="was not sent by it"):
                member.reveal(ASKED, show(member, commitments), charge_on_disk=True)


def test_keys_that_are_not_in_the_list_of_all_are_refused(sparse: tuple[Hospitals, Circle]) -> None:
    _, circle = sparse
    member = circle.members["dale"]
    roll = roll_for(member, circle.keys)
    for lie in (changed(roll, root=bytes(32)), changed(roll, proof=(bytes(32), *roll.proof[1:]))):
        with pytest.raises(MaskError, match="not those in the list of all participants' keys"):
            member.meet(lie)
    with pytest.raises(MaskError, match=f"{member.neighbours[0]} has shown no key"):
        member.meet(changed(roll, keys=tuple(key for key in roll.keys if key.name != member.neighbours[0])))


def test_every_participant_is_pinned_also_who_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    group, circle = gather(9, 4, monkeypatch)
    manifest: Manifest = circle.manifest
    far = next(
        name
        for name in manifest.graph.order
        if name not in ("ashford", *circle.members["ashford"].neighbours)
    )
    del group.identities[far]
    with pytest.raises(MaskError, match=f"{far} takes part .* not pinned at ashford"):
        group.join(manifest, "ashford")
