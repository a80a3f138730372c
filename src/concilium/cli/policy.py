"""`concilium policy`: what a policy says, and what it would do to a record or a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Json, say, say_json, warn

if TYPE_CHECKING:
    from concilium.policy.policy import Policy


WIDEST = 60

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
    from concilium.console.policy_trial import SHOWN_PATIENTS, try_file
    from concilium.policy.policy import read_rules

    rules = read_rules(file)
    graphs = rules.graphs()
    if graphs is not None and graphs.needs_secret and not graphs.has_secret:
        warn("hash and shift_dates are shown with a stand-in for the site's secret")
    outcomes = list(try_file(rules, record))
    if record.suffix not in (".json", ".hl7") and len(outcomes) == SHOWN_PATIENTS:
        warn(f"the first {SHOWN_PATIENTS} patients of the table")
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
    from concilium.console.policy_trial import STAND_IN_SECRET
    from concilium.policy.constrain import explain_idle
    from concilium.protocol.cohort import View
    from concilium.records.table import Records

    table = Records.read(path)
    view = View(table, rules, STAND_IN_SECRET)
    sentences = [f"has {len(view.records)} of {len(table)} patients of {path.name} to answer about"]
    sentences += [f"does not know {name} ({why})" for name, why in view.hidden.items()]
    graphs = rules.graphs(STAND_IN_SECRET)
    return sentences, [] if graphs is None else explain_idle(table, graphs, view.idle)


def _show(result: dict[str, Any]) -> None:
    """Before and after, side by side; lines that differ are marked."""
    from concilium.console.policy_trial import pair_lines

    pairs = pair_lines(result)
    width = min(WIDEST, max((len(left) for left, _ in pairs), default=0))
    for left, right in pairs:
        mark = " " if left == right else "|"
        say(f"{_shorten(left):<{width}} {mark} {_shorten(right)}".rstrip())


def _shorten(line: str) -> str:
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"
