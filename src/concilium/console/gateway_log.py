"""What a gateway has decided, read from its log (`concilium gateway --log`), which holds no value of any message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 512 * 1024
MOST_SHOWN = 200
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S* "
    r"(?P<said>(?P<outcome>passed|refused|error|failure) (?P<kind>\w+)\b.*|.+)"
)
_RULES = re.compile(r"(?:rules that applied: |by )(?P<rules>.+)$")
OTHER = "other"


@dataclass(frozen=True)
class GatewayDecision:
    """A line of the log: what became of a message of some kind, by which rules; `said` as it stands there."""

    time: str
    outcome: str
    kind: str
    rules: tuple[str, ...]
    said: str


@dataclass(frozen=True)
class GatewayDecisions:
    """The latest of a log, how often each outcome and rule, and whether the log begins before them."""

    latest: Sequence[GatewayDecision]
    outcomes: Mapping[str, int]
    rules: Mapping[str, int]
    is_cut: bool


def find_decision(line: str) -> GatewayDecision | None:
    """What a line says; None of a line that is no gateway's."""
    found = _LINE.match(line)
    if found is None:
        return None
    rules = _RULES.search(found["said"]) if found["outcome"] in ("passed", "refused") else None
    named = () if rules is None or rules["rules"] == "none" else tuple(rules["rules"].split(", "))
    return GatewayDecision(
        found["time"], found["outcome"] or OTHER, found["kind"] or "", named, found["said"].strip()
    )


def read_decisions(path: Path) -> GatewayDecisions:
    """The end of a log, the latest first."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - MOST_BYTES))
        lines = file.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
    is_cut = size > MOST_BYTES
    found = [one for line in lines[is_cut:] if (one := find_decision(line)) is not None]
    outcomes = Counter(one.outcome for one in found if one.outcome != OTHER)
    rules = Counter(rule for one in found for rule in one.rules)
    return GatewayDecisions(found[::-1][:MOST_SHOWN], outcomes, dict(rules.most_common(20)), is_cut)
