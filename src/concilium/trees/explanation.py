"""Why a tree says what it says about one patient, and why an ensemble does: the path taken and what each answer on it
changed, how the experts voted, and the reasons of one who prevailed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from concilium.federation.explanation import Explanation, Reason
from concilium.records.columns import Value, label
from concilium.trees.shares import class_shares, predicted

if TYPE_CHECKING:
    from concilium.trees.body import TreeBody


def explain(
    body: TreeBody, path: Sequence[int], patient: Mapping[str, Any], vote: int | None = None
) -> Explanation:
    """The explanation of a path from the root, for the most frequent class at its end, or for that of the vote."""
    counts = [body.nodes[node].counts for node in path]
    best = predicted(counts[-1]) if vote is None else vote
    shares = [class_shares(node)[best] for node in counts]
    reasons = []
    for step in range(1, len(path)):
        parent = body.nodes[path[step - 1]]
        assert parent.attribute is not None
        condition = dict(parent.ways(body.bins))[path[step]]
        reasons.append(
            Reason(
                attributes=(parent.attribute,),
                condition=condition,
                before=shares[step - 1],
                after=shares[step],
                patients=sum(counts[step]),
            )
        )
    patients = sum(counts[-1])
    explanation = Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=shares[-1],
        base=shares[0],
        patients=patients,
        reasons=tuple(reasons),
        notes=tuple(say_stopped(body, path[-1], patient)),
        sentences=(),
    )
    first = (
        f"{body.target} = {label(explanation.prediction)} "
        f"({shares[-1]:.0%} of {patients} similar patient{'' if patients == 1 else 's'})."
    )
    return replace(explanation, sentences=(first, *say_reasons(explanation, "The model")))


def say_reasons(explanation: Explanation, who: str) -> list[str]:
    """The reasons, a sentence each, and what else must be said."""
    lines = [
        f"{number}. {reason.condition}: {label(explanation.prediction)} goes from {reason.before:.0%} "
        f"to {reason.after:.0%} ({reason.patients} patients)."
        for number, reason in enumerate(explanation.reasons, start=1)
    ]
    return [*(lines or [f"{who} asks nothing about the patient here."]), *explanation.notes]


def say_stopped(body: TreeBody, node: int, patient: Mapping[str, Any]) -> list[str]:
    """Why the path ended before a leaf: the patient's value is not known, or none of the model's patients had it."""
    attribute = body.nodes[node].attribute
    if attribute is None:
        return []
    value = patient.get(attribute)
    why = "is not known" if value is None else f"= {label(value)} was not seen"
    return [
        f"The next question would be {attribute}, which {why} here; the answer is that of the patients so far."
    ]


def explain_votes(votes: Sequence[Explanation], positive: Value, rule: str) -> Explanation:
    """What most of an odd number of experts say; the reasons are those of the one who saw most similar patients."""
    won = 2 * sum(vote.prediction == positive for vote in votes) > len(votes)
    agree = [number for number, vote in enumerate(votes, 1) if (vote.prediction == positive) == won]
    against = [number for number in range(1, len(votes) + 1) if number not in agree]
    speaker = max(agree, key=lambda number: (votes[number - 1].patients or 0, -number))
    voice = votes[speaker - 1]
    named = label(voice.prediction)
    others = f"; for {label(votes[against[0] - 1].prediction)}: {name_experts(against)}." if against else "."
    where = "commoner than in its whole sample" if rule == "balanced" else "the commonest"
    return Explanation(
        target=voice.target,
        prediction=voice.prediction,
        probability=len(agree) / len(votes),
        reasons=voice.reasons,
        patients=voice.patients,
        notes=voice.notes,
        votes=tuple(votes),
        sentences=(
            f"{voice.target} = {named} ({len(agree)} of {len(votes)} experts).",
            f"For {named}: {name_experts(agree)}{others}",
            f"Expert {speaker}, who knows most patients like this one, says {named} "
            f"({voice.probability:.0%} of {voice.patients} in its sample):",
            *say_reasons(voice, "It"),
            f"An expert votes for the class that is {where}. Samples have many more positive patients than a "
            "hospital has.",
        ),
    )


def name_experts(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
