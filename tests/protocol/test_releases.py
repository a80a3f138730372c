"""The closed list of releases: each is an object that is found by its name, and nobody else asks for the name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from conversation import ROWS, site_of, wrap

import concilium as cc
from agreed import Anything, deliver, draft
from concilium import protocol
from concilium import registry as registry
from concilium.errors import HouseError, MessageError
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal, encode, open_reply
from concilium.protocol.questions import Gathered, Gaussian, Question, Statistic, Step, Summed, read_again
from concilium.protocol.releases import find_release
from concilium.protocol.releases.release import Release
from concilium.protocol.schema import AskSchema
from concilium.protocol.terms import Propose
from concilium.registry import KINDS, RELEASES, load
from side_door import state

AGE = Attribute("age", (40.0, 60.0))
PLAIN = AskCounts(totals=False, query="", target="y", attributes=(AGE,))
NOISY = AskCounts(totals=False, query="", target="y", attributes=(AGE,), noise=Gaussian("100"))


@pytest.fixture(autouse=True)
def _forget_questions():
    """A question is read once: what was read while a test changed a kind's releases is not to stay."""
    yield
    read_again.cache_clear()


def parts(count=3, **options):
    return [cc.Site(f"s{i}", state(ROWS[i::count], age="number"), **options) for i in range(count)]


@pytest.mark.parametrize("name", RELEASES)
def test_every_listed_release_is_one(name):
    release = find_release(name)
    assert isinstance(release, Release)
    assert release is find_release(name)
    assert release.name == name
    assert release.meaning.startswith(f"{name}: the house saw ")
    assert release.bounded is RELEASES[name].bounded
    assert isinstance(release.by_site, bool)
    assert isinstance(release.comparable, bool)


def test_only_what_adds_noise_is_bounded_and_what_is_not_masked_shows_each_site():
    assert [name for name in RELEASES if find_release(name).bounded] == ["private", "local", "noised"]
    assert [name for name in RELEASES if find_release(name).by_site] == ["exact", "local", "noised", "shared"]
    assert [name for name in RELEASES if find_release(name).begins_anew] == ["exact", "noised", "shared"]
    assert [name for name in RELEASES if find_release(name).hands_on] == ["shared"]
    assert [name for name in RELEASES if not find_release(name).comparable] == ["masked"]


@pytest.mark.parametrize("file", ["site.py", "run.py", "region.py", "house.py", "masking.py"])
def test_no_release_is_known_by_name_where_all_are_treated_alike(file):
    source = (Path(protocol.__file__).parent / file).read_text()
    words = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert not set(RELEASES) & {word for word in words if isinstance(word, str)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("privat", "nothing is released as 'privat'; did you mean 'private'?"),
        ("Masked", "nothing is released as 'Masked'; did you mean 'masked'?"),
        ("plain text", "nothing is released as 'plain text'"),
        ("", "nothing is released as ''"),
        ("x" * 64, f"nothing is released as '{'x' * 60}'"),
    ],
)
def test_an_unknown_release_is_refused_in_a_sentence(name, said):
    with pytest.raises(MessageError) as refused:
        find_release(name)
    assert str(refused.value) == said
    reply = open_reply(deliver(site_of(), encode(wrap(PLAIN.kind, PLAIN, release=name))))
    assert (reply.rule, reply.reason) == ("message", said)
    region = cc.Region("r", cc.House(parts(2)))
    assert isinstance(open_reply(deliver(region, encode(wrap(PLAIN.kind, PLAIN, release=name)))), Refusal)


def test_a_new_release_is_one_file_and_one_line(monkeypatch):
    """What a hospital does with it is said in its own class: here, as `exact` does, but under another name."""

    class Open(load(RELEASES["exact"].place)):
        name: ClassVar[str] = "open"
        meaning: ClassVar[str] = "open: the house saw everything."

    monkeypatch.setitem(
        RELEASES, "open", registry.ListedRelease(f"{__name__}:Open", priced=False, bounded=False)
    )
    monkeypatch.setattr("test_releases.Open", Open, raising=False)
    monkeypatch.setattr(AskCounts, "releases", frozenset({"open"}))
    monkeypatch.setattr(Propose, "releases", frozenset(RELEASES))
    monkeypatch.setattr(Anything, "releases", tuple(RELEASES))
    sites = parts(policy=cc.Policy(modes=("open",)))
    with cc.House(sites).open(draft("open")) as run:
        total = run.ask(PLAIN)
        card = run.finish({})
    assert total.sum() == len(ROWS)
    assert (card.release, card.meaning) == ("open", Open.meaning)
    assert {entry.mode for site in sites for entry in site.ledger.entries() if entry.question} == {"open"}


def statistics():
    forms = {kind: load(place) for kind, place in KINDS.items()}
    return {kind: form for kind, form in forms.items() if issubclass(form, Statistic)}


def about_patients(form):
    """Names of columns are in the header of a table, whoever the patients are."""
    return not issubclass(form, Gathered) or form.of_patients


def test_no_question_but_that_for_columns_is_about_no_patient():
    assert [kind for kind, form in statistics().items() if not about_patients(form)] == ["columns"]


def test_what_leaves_with_noise_says_how_far_one_patient_moves_it():
    for kind, form in statistics().items():
        noisy = [name for name in form.releases if find_release(name).noise and about_patients(form)]
        says = issubclass(form, Summed) and form.sensitivity is not Summed.sensitivity
        assert bool(noisy) == says, kind


@pytest.mark.parametrize("release", RELEASES)
def test_a_question_is_answered_under_its_own_releases_only(release):
    sites = parts()
    for question in (AskSchema(query="", target="y", count_patients=False),):
        if release in question.releases:
            continue
        reply = open_reply(deliver(sites[0], encode(wrap(question.kind, question, release=release))))
        assert reply.rule == "message"
        assert reply.reason == f"a question of kind {question.kind!r} cannot be released as {release!r}"


def test_private_never_answers_what_is_not_noisy_even_if_a_kind_says_so(monkeypatch):
    """Were a gathered kind to list `private` among its releases, the release itself would refuse."""
    monkeypatch.setattr(AskSchema, "releases", frozenset({"private"}))
    sites = parts()
    with (
        cc.House(sites).open(draft("private")) as run,
        pytest.raises(HouseError, match="'private' has other noise, or none"),
    ):
        run.ask(PLAIN)
    with (
        cc.House(sites).open(draft("private")) as run,
        pytest.raises(HouseError, match=r"'tree\.schema' cannot be released as 'private'"),
    ):
        run.ask(AskSchema(query="", target="y", count_patients=False))
    for site in sites:
        assert not [entry for entry in site.ledger.entries() if entry.question]


def test_a_question_with_one_release_keeps_it_in_a_run_of_another():
    """A masked run may have a private part: its noise and its price are those of `private`, the rest is as it was."""
    sites = parts()
    with cc.House(sites).open(draft("masked")) as run:
        plain = run.ask(PLAIN)
        run.ask(NOISY)
        again = run.ask(PLAIN)
        card = run.finish({})
    np.testing.assert_array_equal(plain, again)
    assert card.release == "masked"
    for site in sites:
        opened = [entry for entry in site.ledger.entries() if entry.kind == "mask.open"]
        assert [(entry.mode, entry.cost is None) for entry in opened] == [
            ("masked", True),
            ("private", False),
        ]
        assert site.ledger.spent() == opened[1].cost > 0


def test_noise_is_paid_for_as_what_it_is_in_a_run_of_another_release():
    """A noisy question asked as `masked` would leave without noise and unbounded: no such message is answered."""
    site = site_of()
    for release in ("exact", "masked"):
        reply = open_reply(deliver(site, encode(wrap(NOISY.kind, NOISY, release=release))))
        assert isinstance(reply, Refusal)
    assert not [entry for entry in site.ledger.entries() if entry.question]


def test_a_release_without_steps_agrees_on_nothing():
    class Nod(Step, frozen=True, kw_only=True):
        kind: ClassVar[str] = "test.nod"
        releases: ClassVar[frozenset[str]] = frozenset(RELEASES)

    with pytest.raises(MessageError, match="nothing to agree on under 'exact'"):
        find_release("exact").step(None, None, Nod())
    assert issubclass(Nod, Question)


def test_what_is_released_is_what_the_house_adds_up():
    """Each release has both halves: sums of the same patients are the same, but for the noise that was paid for."""
    totals = {}
    for release in ("exact", "masked"):
        with cc.House(parts()).open(draft(release)) as run:
            totals[release] = run.ask(PLAIN)
    np.testing.assert_array_equal(totals["exact"], totals["masked"])
    replies = [open_reply(deliver(site, encode(wrap(PLAIN.kind, PLAIN)))) for site in parts()]
    assert all(isinstance(reply, Answer) for reply in replies)
