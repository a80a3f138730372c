"""What a policy does to a record or a message: before and after, side by side. Nothing is kept of either."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import ConciliumError, PolicyError

if TYPE_CHECKING:
    from concilium.policy.actions import ConstraintGraphs
    from concilium.policy.policy import Policy
    from concilium.records.table import Records

SHOWN_PATIENTS = 10
# For showing what pseudonyms look like: the site's own secret is none of ours.
STAND_IN_SECRET = bytes(32)


def try_file(rules: Policy, path: Path) -> Iterator[dict[str, Any]]:
    """What becomes of a file: JSON (a graph, a FHIR bundle, records), an HL7 v2 message, or the first patients of a
    table. PolicyError names the file."""
    if path.suffix not in (".json", ".hl7"):
        from concilium.records.table import Records

        yield from _try_table(rules, Records.read(path))
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        yield from _try_json(rules, data) if path.suffix == ".json" else _try_v2(rules, data)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def try_text(rules: Policy, text: str) -> list[dict[str, Any]]:
    """The same of a text; where the policy has no constraint graphs, what a site knows of records."""
    from concilium.policy.hl7v2 import is_v2

    data = text.strip().encode()
    if is_v2(data):
        return list(_try_v2(rules, b"\r".join(data.splitlines()) + b"\r"))
    if rules.graphs(STAND_IN_SECRET) is not None:
        return list(_try_json(rules, data))
    from concilium.console.gateway import read_message
    from concilium.records.table import Records

    message = read_message(data)
    rows = message if isinstance(message, list) else [message]
    if not all(isinstance(row, dict) and not _is_nested(row) for row in rows):
        raise PolicyError(
            "without constraint graphs a policy is tried on plain records, values by names of columns"
        )
    try:
        return list(_try_table(rules, Records.from_rows(rows)))
    except PolicyError:
        raise
    except ConciliumError as error:
        raise PolicyError(error.outside) from None


def _is_nested(row: Mapping[str, Any]) -> bool:
    return any(isinstance(value, list | dict) for value in row.values())


def pair_lines(outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Before and after as pairs of lines, those that are alike beside each other."""
    before = _json_lines(outcome["before"])
    if outcome["refused_by"] is not None:
        after = [f"refused by graph {outcome['refused_by']}"]
    else:
        after = ["taken out"] if outcome["after"] is None else _json_lines(outcome["after"])
    return list(_side_by_side(before, after))


def _try_json(rules: Policy, data: bytes) -> Iterator[dict[str, Any]]:
    """What becomes of a graph, a bundle, or each of some records on their own."""
    from concilium.console.gateway import read_message
    from concilium.policy.fhir import decide_bundle, is_bundle

    message = read_message(data)
    graphs = _require_graphs(rules)
    if is_bundle(message):
        decision = decide_bundle(graphs, message)
        yield _outcome(message, decision.graph, decision.refused_by, decision.rules)
    elif isinstance(message, dict) and "nodes" in message:
        decision = graphs.decide(message)
        yield _outcome(message, decision.graph, decision.refused_by, decision.rules)
    else:
        for each in message if isinstance(message, list) else [message]:
            decision = graphs.decide({"nodes": [each]})
            nodes = decision.graph["nodes"] if decision.graph is not None else []
            yield _outcome(each, nodes[0] if nodes else None, decision.refused_by, decision.rules)


def _try_v2(rules: Policy, data: bytes) -> Iterator[dict[str, Any]]:
    """What becomes of an HL7 v2 message, segment by segment."""
    from concilium.policy.hl7v2 import V2Message, decide_v2

    decision = decide_v2(_require_graphs(rules), data)
    character_set = V2Message(data).character_set
    before, after = (
        None if one is None else list(filter(None, one.decode(character_set).replace("\n", "\r").split("\r")))
        for one in (data, decision.graph)
    )
    yield _outcome(before, after, decision.refused_by, decision.rules)


def _try_table(rules: Policy, table: Records) -> Iterator[dict[str, Any]]:
    """What a site with this policy knows of the first patients of a table."""
    from concilium.protocol.cohort import View

    view = View(table, rules, STAND_IN_SECRET)
    place = {int(row): index for index, row in enumerate(view.patients.tolist())}
    before, after = _rows_of(table, range(min(SHOWN_PATIENTS, len(table)))), view.records
    for row, patient in enumerate(before):
        remainder = next(iter(_rows_of(after, [place[row]]))) if row in place else None
        yield _outcome(patient, remainder, None, ())


def _require_graphs(rules: Policy) -> ConstraintGraphs:
    graphs = rules.graphs(STAND_IN_SECRET)
    if graphs is None:
        raise PolicyError("there is no constraint graph in this policy, so it does nothing to messages")
    return graphs


def _rows_of(table: Records, rows: Any) -> Iterator[dict[str, Any]]:
    """Patients of a table as plain objects, without what is missing."""
    import numpy as np

    some = table.take(np.array(list(rows), dtype=np.int64))
    columns = {name: some.values(name) for name in some.names}
    for row in range(len(some)):
        yield {name: values[row] for name, values in columns.items() if values[row] is not None}


def _outcome(before: Any, after: Any, refused_by: str | None, rules: tuple[str, ...]) -> dict[str, Any]:
    return {"refused_by": refused_by, "rules": list(rules), "before": before, "after": after}


def _side_by_side(before: list[str], after: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of lines, those that are alike beside each other."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        left, right = before[start:end], after[other_start:other_end]
        for index in range(max(len(left), len(right))):
            yield left[index] if index < len(left) else "", right[index] if index < len(right) else ""


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()
