"""Numbers at the end of what a sum holds: noise there is what it is elsewhere, or nothing is answered.

Noise in shares protects as long as every share is in the sum. One that was cut off where a site's number is large would
be missing from it, and the others' shares are sized for all of them together.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import Asker, set_up_masks
from concilium.privacy.identity import Identity
from concilium.privacy.mechanisms import LARGEST_SCALE
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.masking import Join
from concilium.protocol.messages import Refusal
from concilium.protocol.questions import Gaussian, Laplace
from concilium.protocol.releases import find_release
from concilium.protocol.sums import read_sum
from side_door import state
from statistical.auditing import fits, gaussian

AGE = Attribute("age", (40.0, 60.0))
ENDS = 2**63
DRAWS = 40_000
EDGES = st.one_of(
    st.integers(-ENDS, ENDS - 1),
    st.builds(
        lambda sign, end, off: max(-ENDS, min(ENDS - 1, sign * end + off)),
        st.sampled_from([-1, 1]),
        st.sampled_from([ENDS, ENDS // 3, 2**32, 2**31]),
        st.integers(-100, 100),
    ),
)


def open_sites():
    rows = [{"age": 30 + place, "y": place % 2} for place in range(40)]
    return [cc.Site(f"s{i}", state(rows, age="number")) for i in range(3)]


def make_noisy(variance):
    return AskCounts(totals=False, query="", target="y", attributes=(AGE,), noise=Gaussian(str(variance)))


@pytest.fixture(scope="module")
def study():
    sites = open_sites()
    return sites[0], set_up_masks(sites, "private")


def protect(study, question, words):
    site, asker = study
    manifest = site._context.memberships.at(asker.study).manifest
    return find_release("private").protect(question, words, manifest)


@settings(max_examples=12, deadline=None)
@given(number=EDGES, variance=st.sampled_from([32, 200]))
def test_a_share_of_noise_is_the_same_wherever_the_number_lies(study, number, variance):
    question = make_noisy(variance)
    words = np.full(DRAWS, number, dtype=np.int64)
    held = np.clip(words, -question.largest, question.largest)
    noise = (protect(study, question, words).view(np.uint64) - held.view(np.uint64)).view(np.int64)
    assert fits(noise, gaussian(variance / 2), 400)  # two of the three sites are honest


def test_in_the_worst_case_one_patient_more_is_as_well_hidden_as_anywhere(study):
    """At a number that would be cut off, all draws were one and the same; a patient less was seen in half of them."""
    question = make_noisy(200)
    largest = study[1].manifest.largest
    for number in (largest, largest - 1, -largest, ENDS - 1, -ENDS):
        drawn = protect(study, question, np.full(DRAWS, number, dtype=np.int64))
        _, often = np.unique(drawn, return_counts=True)
        # The likeliest value of a Gaussian of variance 100 has a probability of .04.
        assert often.max() / DRAWS < 0.05


def test_a_question_whose_public_bounds_do_not_fit_is_refused_before_it_is_computed(monkeypatch):
    """The more hospitals, the less each of them may add: the widest noise fits three of them, and not a thousand."""
    computed = []
    monkeypatch.setattr(AskCounts, "compute", lambda *_: computed.append(1))
    sites = open_sites()
    absent = [SimpleNamespace(name=f"t{i}", identity=Identity.create()) for i in range(997)]
    peers = {one.name: one.identity.fingerprint for one in (*sites, *absent)}
    asker = Asker([*sites, *absent], release="private")
    sites[0].introduce(peers, asker.identity.fingerprint)
    asker.put(sites[0], Join())
    widest = int(LARGEST_SCALE) ** 2
    for question, fitting in (
        (make_noisy(widest), False),
        (make_noisy(widest // 10), False),
        (make_noisy(widest // 10**6), True),
    ):
        reply = asker.put(sites[0], question)
        assert isinstance(reply, Refusal)
        assert ("may have numbers of up to" in reply.reason) is not fitting, reply.reason
        assert fitting == ("has not met" in reply.reason)
    assert not computed
    assert sites[0].ledger.spent() == 0


def test_noise_that_a_site_adds_alone_is_not_cut_off_either():
    site = open_sites()[0]
    question = AskCounts(
        totals=False, query="", target="y", attributes=(AGE,), noise=Laplace(str(Fraction(1, 2**40)))
    )
    reply = Asker([site], release="noised").put(site, question)
    drawn = read_sum(reply.body, question)
    # Noise of scale 2^40 lies within the counts' own bound, 2^32, once in 2^8 for each of three numbers.
    assert len(set(np.abs(drawn.ravel()).tolist())) == drawn.size
