"""Temporal rules as one page of HTML that stands alone: a vote with courses that fulfil and break each rule, or what
rules say of one patient.

docs/methods.md, section 6.6.
"""

from __future__ import annotations

import markupsafe
import numpy as np
from numpy.typing import NDArray

from concilium.consult.report import FIGURES, render
from concilium.errors import ModelError
from concilium.evaluation.rule_judgement import judge_vote
from concilium.models.explanation import Explanation
from concilium.temporal.learning import LabelledWindows, RuleVote, cast_votes
from concilium.temporal.trajectories import draw_trajectories

MOST_PICTURES = 5


def render_rule_report(
    vote: RuleVote,
    windows: LabelledWindows,
    title: str,
    *,
    unseen: bool = True,
    pictures: int = MOST_PICTURES,
) -> str:
    """The page of a vote on these windows, which it was not learned from (`unseen`), with pictures of the rules that
    weigh most; `pictures=0` leaves out all courses of single patients."""
    if isinstance(pictures, bool) or not isinstance(pictures, int) or pictures < 0:
        raise ModelError(f"pictures is a whole number from 0; got {pictures!r}")
    if not len(windows):
        raise ModelError("there are no windows to judge the vote on")
    votes, positive = cast_votes(vote.rules, windows.series), windows.labels
    order = np.argsort([-abs(weight) for weight in vote.weights], kind="stable")
    rows = [
        {
            "text": str(vote.rules[place]),
            "weight": vote.weights[place],
            "positive": _share(votes[positive, place] > 0),
            "negative": _share(votes[~positive, place] > 0),
            "unknown": _share(votes[:, place] == 0),
        }
        for place in order
    ]
    return render(
        "rule_report.html.jinja",
        title=title,
        rules=rows,
        bias=vote.bias,
        figures=judge_vote(vote, windows),
        headings=FIGURES,
        windows=len(windows),
        patients=len(np.unique(windows.owners)),
        positive=int(positive.sum()),
        unseen=unseen,
        steps=windows.series.points,
        step=windows.series.step,
        pictures=[
            markupsafe.Markup(draw_trajectories(vote.rules[place], windows.series))
            for place in order[:pictures]
        ],
    )


def render_patient_page(explanation: Explanation, picture: str) -> str:
    """The page of one patient: what rules say, in sentences, above the picture of what was measured."""
    return render(
        "patient_page.html.jinja",
        title=f"{explanation.target}: one patient",
        sentences=explanation.sentences,
        picture=markupsafe.Markup(picture),
    )


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(flags.mean()) if len(flags) else None
