"""The table of a method's parameters that docs/studies.md must have: key, what it takes, default, what it means."""

from __future__ import annotations

from concilium.study.sections import _as_in_toml, shown

MOST_OF_A_CELL, BELOW = 120, "see below"


def tabulate_parameters(method):
    """The section named after a method. What is too long for a cell goes on in a list below."""
    rows, below = ["| key | takes | default | meaning |", "|---|---|---|---|"], []
    for one in method.parameters().values():
        if one.parameter.section:
            continue
        default = "–" if one.default is None else f"`{shown(one.default)}`"
        about, rest = split_cell(one.parameter.about.replace("None: ", "without it: "))
        rows.append(f"| `{one.name}` | {_as_in_toml(one.parameter.takes)} | {default} | {about} |")
        if rest:
            below.append(f"- `{one.name}`: {rest}")
    return "\n".join([*rows, *(["", *below] if below else [])])


def split_cell(text):
    """What of a text fits a cell, whole clauses of it, and the rest."""
    if len(text) <= MOST_OF_A_CELL:
        return text, ""
    end = text.rfind("; ", 0, MOST_OF_A_CELL - len(BELOW) - 3)
    return (f"{text[:end]} ({BELOW})", text[end + 2 :]) if end > 0 else (BELOW, text)
