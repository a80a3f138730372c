"""`concilium policy`: what a policy says, and what it would do to a record or a message."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Json, say, say_json, warn
from concilium.errors import PolicyError

if TYPE_CHECKING:
    from concilium.policy.actions import ConstraintGraphs
    from concilium.policy.policy import Policy
    from concilium.records.table import Records


SHOWN_PATIENTS = 10
WIDEST = 60
# For showing what pseudonyms look like: the site's own secret is none of ours.
STAND_IN_SECRET = bytes(32)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file, or a file of constraint graphs.")]


@app.callback()
def policy() -> None:
    """What a policy says, and what it would do.

    \b
    Example:
      concilium policy check policy.toml
    """


@app.command(short_help="Say what a policy does, and warn of what may not be meant.")
def check(
    file: File,
    records: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="The hospital's table: does the policy fit it?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say in words what a policy does, and warn of what may not be meant (exit code 2 if it cannot be read).

    \b
    Example:
      concilium policy check policy.toml --records patients.csv
    """
    from concilium.cli.agreement_words import describe_agree, find_idle_names
    from concilium.policy.explain import describe, describe_function, find_oddities
    from concilium.policy.policy import read_rules

    rules = read_rules(file)
    graphs = rules.graphs()
    warnings = [] if graphs is None else find_oddities(graphs)
    if graphs is not None and graphs.needs_secret and not graphs.has_secret:
        warnings.append(
            "hash and shift_dates will use the site's identity; a gateway needs a `secret` under [constraints]"
        )
    acts = {graph.name: describe(graph) for graph in graphs.graphs} if graphs is not None else {}
    functions = {one.name: describe_function(one) for one in graphs.functions} if graphs is not None else {}
    release, agreeing = _describe_release(rules), describe_agree(rules)
    warnings += find_idle_names(rules)
    fit, idle = ([], []) if records is None else _fit_to(rules, records)
    warnings += idle
    if as_json:
        say_json(
            {
                "policy": str(file),
                "release": release,
                "agree": agreeing,
                "graphs": acts,
                "functions": functions,
                "records": fit or None,
                "warnings": warnings,
            }
        )
        return
    lines = [f"{file}: {len(acts)} constraint graph{'' if len(acts) == 1 else 's'}"]
    for name, sentences in acts.items():
        lines += [f"  {name}", *_indent(_indent(sentences or ["does nothing"]))]
    for name, sentences in functions.items():
        lines += [f"function {name}()", *_indent(sentences)]
    lines += ["a site with this policy", *_indent([*release, *fit])]
    lines += ["without asking a person it", *_indent(agreeing)]
    say("\n".join(lines))
    for sentence in warnings:
        warn(f"warning: {sentence}")


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


@app.command("try", short_help="Show what a policy does to a record or a message.")
def _try(
    file: File,
    record: Annotated[
        Path,
        typer.Argument(
            metavar="RECORD",
            help="A JSON file (a graph, a FHIR bundle, a record or a list of records), an HL7 v2 message (.hl7), or a "
            "table (csv, parquet).",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show a record or a message before and after, side by side.

    \b
    Example:
      concilium policy try policy.toml bundle.json
    """
    from concilium.policy.policy import read_rules

    rules = read_rules(file)
    graphs = rules.graphs()
    if graphs is not None and graphs.needs_secret and not graphs.has_secret:
        warn("hash and shift_dates are shown with a stand-in for the site's secret")
    kinds = {".json": _try_json, ".hl7": _try_v2}
    outcomes = list(kinds.get(record.suffix, _try_table)(rules, record))
    if as_json:
        say_json(outcomes[0] if len(outcomes) == 1 else outcomes)
        return
    for number, outcome in enumerate(outcomes):
        if number:
            say()
        _show(outcome)


def _describe_release(rules: Policy) -> list[str]:
    """What the rest of the policy says, in sentences."""
    sentences = [
        f"answers {', '.join(rules.modes) or 'nothing'}, where at least {rules.minimum_patients} patients match",
    ]
    if rules.differencing:
        sentences.append(
            "refuses a question whose patients are those of an earlier one but for fewer than "
            f"{rules.minimum_patients}"
        )
    if rules.tell_fit:
        sentences.append("tells a house that asks which columns do not fit its study's dictionary")
    if rules.branch_floor:
        sentences.append(f"counts branches of fewer than {rules.branch_floor} patients as empty")
    if rules.minimum_cell > 1:
        sentences.append(f"leaves out exact tables with a count of 1 to {rules.minimum_cell - 1}")
    if rules.dominance is not None:
        sentences.append(
            f"leaves out exact tables where one cell has more than {rules.dominance:.0%} of its row or column"
        )
    if rules.numbers_per_patient is not None:
        sentences.append(f"tells at most {rules.numbers_per_patient:g} exact numbers per patient, ever")
    for names, what in ((rules.withhold, "withholds"), (rules.identifiers, "hides the identifiers")):
        if names:
            sentences.append(f"{what} {', '.join(names)}")
    return [*sentences, *_describe_budget(rules), *_describe_work(rules)]


def _describe_budget(rules: Policy) -> list[str]:
    """What private answers may cost."""
    from concilium.ledger.budgets import DEFAULT_BUDGETS
    from concilium.privacy.accounting import shown

    allowance, currency = rules.allowance, rules.currency
    if allowance.unlimited:
        sentences = ["has an unlimited budget: private answers can be averaged until nothing is private"]
    elif allowance.total is not None:
        sentences = [f"has a budget of {currency} = {allowance.total}"]
    else:
        sentences = [
            f"says no budget, so that {currency} = {shown(DEFAULT_BUDGETS[currency])} holds by default"
        ]
    if allowance.per_month is not None:
        sentences.append(f"lets a calendar month cost {currency} = {allowance.per_month} at most")
    return sentences


def _describe_work(rules: Policy) -> list[str]:
    """What computing may take, where the policy says it."""
    if rules.work == type(rules.work)():
        return []
    most = rules.work.operations_per_question
    each = "" if most is None else f"{most:.3g} operations and "
    sentences = [
        f"computes at most what takes {each}{rules.work.bytes_of_question / 1e9:.3g} GB for one question, and "
        f"{rules.work.operations_per_day:.3g} operations a day"
    ]
    if rules.work.bytes_of_site is not None:
        sentences.append(f"holds at most {rules.work.bytes_of_site / 1e9:.3g} GB of memory in all")
    return sentences


def _fit_to(rules: Policy, path: Path) -> tuple[list[str], list[str]]:
    """What the policy leaves of a table, and which of its rules concern nobody, in sentences; PolicyError where it does
    not fit."""
    from concilium.policy.constrain import explain_idle
    from concilium.protocol.cohort import View
    from concilium.records.table import Records

    table = Records.read(path)
    view = View(table, rules, STAND_IN_SECRET)
    sentences = [f"has {len(view.records)} of {len(table)} patients of {path.name} to answer about"]
    sentences += [f"does not know {name} ({why})" for name, why in view.hidden.items()]
    graphs = rules.graphs(STAND_IN_SECRET)
    return sentences, [] if graphs is None else explain_idle(table, graphs, view.idle)


def _try_json(rules: Policy, path: Path) -> Iterator[dict[str, Any]]:
    """What becomes of a graph, a bundle, or each of some records on their own."""
    from concilium.console.gateway import read_message
    from concilium.policy.fhir import decide_bundle, is_bundle

    try:
        message = read_message(path.read_bytes())
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None
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


def _try_v2(rules: Policy, path: Path) -> Iterator[dict[str, Any]]:
    """What becomes of an HL7 v2 message, segment by segment."""
    from concilium.policy.hl7v2 import V2Message, decide_v2

    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        decision = decide_v2(_require_graphs(rules), data)
        character_set = V2Message(data).character_set
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None
    before, after = (
        None if one is None else list(filter(None, one.decode(character_set).replace("\n", "\r").split("\r")))
        for one in (data, decision.graph)
    )
    yield _outcome(before, after, decision.refused_by, decision.rules)


def _try_table(rules: Policy, path: Path) -> Iterator[dict[str, Any]]:
    """What a site with this policy knows of the first patients of a table."""
    from concilium.protocol.cohort import View
    from concilium.records.table import Records

    table = Records.read(path)
    view = View(table, rules, STAND_IN_SECRET)
    place = {int(row): index for index, row in enumerate(view.patients.tolist())}
    before, after = _rows_of(table, range(min(SHOWN_PATIENTS, len(table)))), view.records
    for row, patient in enumerate(before):
        remainder = next(iter(_rows_of(after, [place[row]]))) if row in place else None
        yield _outcome(patient, remainder, None, ())
    if len(table) > SHOWN_PATIENTS:
        warn(f"the first {SHOWN_PATIENTS} of {len(table)} patients")


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


def _show(result: dict[str, Any]) -> None:
    """Before and after, side by side; lines that differ are marked."""
    if result["refused_by"] is not None:
        after = [f"refused by graph {result['refused_by']}"]
    else:
        after = ["taken out"] if result["after"] is None else _json_lines(result["after"])
    before = _json_lines(result["before"])
    width = min(WIDEST, max(map(len, before), default=0))
    for left, right in _side_by_side(before, after):
        mark = " " if left == right else "|"
        say(f"{_shorten(left):<{width}} {mark} {_shorten(right)}".rstrip())


def _side_by_side(before: list[str], after: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of lines, those that are alike beside each other."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        left, right = before[start:end], after[other_start:other_end]
        for index in range(max(len(left), len(right))):
            yield left[index] if index < len(left) else "", right[index] if index < len(right) else ""


def _json_lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()


def _shorten(line: str) -> str:
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"
