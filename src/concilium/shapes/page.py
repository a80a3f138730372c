"""A shape model on one page: score sheet, risks, curves. It loads nothing, and prints to PDF from any browser."""

from __future__ import annotations

from html import escape
from itertools import groupby

from concilium.models.prediction import Entries
from concilium.models.threshold import say_decided
from concilium.shapes.body import ShapeBody
from concilium.shapes.drawing import draw_terms
from concilium.shapes.reading import make_sheet, name_effect, say_band, say_row

STYLE = """
body { font: 11pt/1.4 sans-serif; color: #1d2733; max-width: 46em; margin: 2em auto; }
table { border-collapse: collapse; } td, th { padding: .1em .8em .1em 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } tbody th { padding-top: .6em; }
figure { margin: 1em 0; break-inside: avoid; } figcaption { font-weight: 600; } tr { break-inside: avoid; }
@page { margin: 15mm; }
"""


def to_html(body: ShapeBody, dictionary: Entries) -> str:
    """The page as text."""
    sheet = make_sheet(body, dictionary)
    title, effect = sheet.outcome, name_effect(body).capitalize()
    lines = [f"<tr><th>Condition</th><th>Points</th><th>{effect}</th><th>95 % CI</th><th>Patients</th></tr>"]
    for name, rows in groupby(sheet.rows, key=lambda row: row.term):
        lines.append(f'<tr><th colspan="5">{escape(name)}</th></tr>')
        lines += [
            f"<tr><td>{escape(row.condition)}</td><td>{row.points}</td><td>{escape(say_row(row))}</td>"
            f"<td>{escape(say_band(row))}</td><td>{row.share:.1%}</td></tr>"
            for row in rows
        ]
    risks = "".join(
        f"<tr><td>{points}</td><td>{escape(said)}</td></tr>" for points, said in sheet.list_risks()
    )
    against = "Odds ratios are" if body.binary else "What is added is"
    predicts = escape(f"{sheet.predicts[0].upper()}{sheet.predicts[1:]}")
    about = f"For patients with {body.query}. " if body.query else ""
    decided = "" if body.decided is None else say_decided(body.decided)
    figures = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{picture}</figure>"
        for name, picture in draw_terms(body, dictionary, whole=True).items()
    )
    notes = " ".join([sheet.say_loss(), *sheet.say_long(), *([decided] if decided else [])])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        f"<p>{escape(about)}Add up the points of each line that holds. {against} against the mean over patients."
        f"</p>\n<table><tbody>{''.join(lines)}</tbody></table>\n"
        f"<h2>{predicts}</h2>\n<table><tbody><tr><th>Points</th><th>{predicts}</th></tr>{risks}</tbody></table>\n"
        f"<p>{escape(notes)}</p>\n<h2>Curves</h2>\n{figures}\n</body></html>\n"
    )
