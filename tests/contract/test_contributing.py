"""The worked example of CONTRIBUTING.md, "Add a method", learns as it says."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
import types
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import concilium as cc
from agreed import Asker
from concilium.protocol.attributes import Attribute
from concilium.protocol.messages import Refusal
from concilium.protocol.questions import read_again
from concilium.registry import KINDS, METHODS
from contract.patients import EVERYONE, open_sites

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
NEEDED = """
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.protocol.attributes import Attribute, recode
from concilium.protocol.cohort import Cohort
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.models.explanation import Explanation, say_interval, say_share
from concilium.models.intervals import share_interval
from concilium.models.method import Method, QueryText, ReleaseName, Target, documented
from concilium.models.prediction import AnyPatients
from concilium.protocol.questions import PLAIN, PRIVATE, Gaussian, Sensitivity, Summed
from concilium.protocol.schema import AskSchema, name_classes
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.records.dictionary import say_value


class MajorityBody(msgspec.Struct):
    target: str
    classes: list[str]
    counts: list[int]
"""


def test_the_way_from_a_file_to_a_tree_is_there():
    places = re.findall(r"`([a-z_/]+)\.py`: `([A-Za-z_.]+)`", PAGE)
    assert len(places) == 14
    for path, name in places:
        attrgetter(name)(importlib.import_module(f"concilium.{path.replace('/', '.')}"))


def test_the_worked_example_learns(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    module = types.ModuleType("majority_example")
    monkeypatch.setitem(sys.modules, "majority_example", module)
    exec(NEEDED + "\n".join(map(textwrap.dedent, blocks)), vars(module))
    monkeypatch.setitem(KINDS, "majority.present", "majority_example:AskPresent")
    policy = cc.Policy(kinds=tuple(KINDS))
    monkeypatch.setitem(METHODS, "majority", "majority_example:Majority")
    for release in module.Majority.releases:
        model = module.Majority(target="y", release=release).fit(cc.House(open_sites(policy=policy)))
        counted = dict(zip(model.body.classes, model.body.counts, strict=True))
        assert counted == Counter(row["y"] for row in EVERYONE)
    tiers = cc.House([cc.Region("all", cc.House(open_sites(policy=policy)))])
    assert module.Majority(target="y").fit(tiers).body.counts == model.body.counts
    called, patients = Counter(row["y"] for row in EVERYONE).most_common(1)[0]
    assert set(model.predict(EVERYONE)) == {called}
    said = model.explain(EVERYONE[0])
    assert said.prediction == called
    assert str(said).startswith(
        f"y = {called} ({patients / len(EVERYONE):.0%} of {len(EVERYONE)} patients; 95% interval"
    )


def test_a_statistic_without_a_check_of_its_own_is_safe(monkeypatch):
    """A hostile class list is refused before the kind's own code runs."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    module = types.ModuleType("majority_example")
    monkeypatch.setitem(sys.modules, "majority_example", module)
    exec(NEEDED + "\n".join(map(textwrap.dedent, blocks)), vars(module))
    monkeypatch.setitem(KINDS, "majority.present", "majority_example:AskPresent")
    monkeypatch.setattr(module.AskPresent, "compute", lambda *_: pytest.fail("its code ran"))
    read_again.cache_clear()
    site = open_sites(policy=cc.Policy(kinds=tuple(KINDS)))[0]
    asker = Asker([site])
    for classes in (
        Attribute("y", of=1 << 40),
        Attribute("y", of=1 << 21, other=False),
        Attribute("y", (), tuple(range(1000)), places=(1,) * 1000, of=2000),
        Attribute("y", tuple(map(float, range(5000)))),
        Attribute("y" * 10_000, (), ("a",)),
    ):
        question = module.AskPresent(query="", target="y", classes=classes)
        reply = asker.put(site, question)
        assert isinstance(reply, Refusal), classes
        assert reply.rule in ("message", "work")
