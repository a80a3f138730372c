"""The worked example of CONTRIBUTING.md, "Add a method", learns as it says."""

from __future__ import annotations

import re
import sys
import textwrap
import types
from collections import Counter
from pathlib import Path

import concilium as cc
from concilium.closed_lists import KINDS, METHODS
from contract.patients import EVERYONE, open_sites

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
NEEDED = """
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.federation.attributes import Attribute, recode
from concilium.federation.cohort import Cohort
from concilium.federation.conversation import Conversation, Learned, Partners
from concilium.federation.method import Method, QueryText, ReleaseName, Target, documented
from concilium.federation.questions import PLAIN, Summed
from concilium.federation.schema import AskSchema, name_classes
from concilium.federation.work import Workload, estimate_columns
from concilium.privacy.accounting import Plan, PlannedQuestion


class MajorityBody(msgspec.Struct):
    target: str
    classes: list[str]
    counts: list[int]
"""


def test_the_worked_example_learns(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    module = types.ModuleType("majority_example")
    monkeypatch.setitem(sys.modules, "majority_example", module)
    exec(NEEDED + "\n".join(map(textwrap.dedent, blocks)), vars(module))
    monkeypatch.setitem(KINDS, "majority.counts", "majority_example:AskCounts")
    policy = cc.Policy(kinds=tuple(KINDS))
    missing = dict.fromkeys(module.Majority.__abstractmethods__)
    complete = type("Complete", (module.Majority,), missing)
    module.Complete = complete
    monkeypatch.setitem(METHODS, "majority", "majority_example:Complete")
    for release in module.Majority.releases:
        model = complete(target="y", release=release).fit(cc.House(open_sites(policy=policy)))
        counted = dict(zip(model.body.classes, model.body.counts, strict=True))
        assert counted == Counter(row["y"] for row in EVERYONE)
    tiers = cc.House([cc.Region("all", cc.House(open_sites(policy=policy)))])
    assert complete(target="y").fit(tiers).body.counts == model.body.counts
