"""Noise replays in tests, whichever site a thread asks first."""

from __future__ import annotations

import numpy as np

import concilium as cc
from concilium.privacy import randomness
from conftest import _Replay
from side_door import UNLIMITED, state

ROWS = [{"a": "01"[i % 2], "y": "np"[(i % 2) ^ (i % 3 == 0)]} for i in range(200)]
VALUES = {"a": ["0", "1"], "y": ["n", "p"]}


def test_a_private_study_replays_from_one_seed(monkeypatch):
    def learn(seed):
        sites = [cc.Site(name, state(ROWS), policy=UNLIMITED) for name in ("north", "south", "west")]
        tree = cc.DecisionTree("y", release="private", values=VALUES, epsilon=1)
        with monkeypatch.context() as patch:
            patch.setattr(randomness, "_source", _Replay(seed))
            tree.fit(cc.House(sites))
        return tree.predict_proba([{"a": "0"}, {"a": "1"}])

    first = learn("one")
    assert all(np.array_equal(first, learn("one")) for _ in range(5))
    assert not np.array_equal(first, learn("two"))


def test_every_test_and_every_site_has_a_stream_of_its_own():
    one, other = _Replay("one"), _Replay("two")
    draws = [one(16), one(16), other(16)]
    _Replay.site.name = "north"
    try:
        draws += [one(16), other(16)]
    finally:
        del _Replay.site.name
    assert len({*draws}) == 5
