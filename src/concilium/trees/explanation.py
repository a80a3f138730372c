"""Why a tree says what it says about one patient, and why an ensemble does; and what each attribute contributes.

The reasons of a tree are the path taken and what each answer on it changed; those of an ensemble are how the experts
voted, and the reasons of one who prevailed. An attribute's importance is the entropy that it takes away, over all
patients who are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from concilium.models.explanation import Explanation, Reason
from concilium.models.prediction import NO_ENTRIES, Entries
from concilium.models.threshold import Decided, choose_one
from concilium.records.columns import Value, label
from concilium.trees.body import TreeBody, class_shares
from concilium.trees.growing import xlog2x
from concilium.trees.settling import mix_shares, spread

NO_QUESTION = "asks nothing about the patient here."


def explain(
    body: TreeBody,
    path: Sequence[int],
    patient: Mapping[str, Any],
    vote: int | None = None,
    dictionary: Entries = NO_ENTRIES,
) -> Explanation:
    """The explanation of a path from the root, for the class that is called at its end, or for that of the vote."""
    if any(body.nodes[node].attribute not in {None, *patient} for node in path):
        return _explain_partly(body, patient, vote, dictionary)
    counts = [body.nodes[node].counts for node in path]
    best = body.call(counts[-1]) if vote is None else vote
    shares = [class_shares(node)[best] for node in counts]
    reasons = []
    for step, (parent, child) in enumerate(pairwise(path), start=1):
        attribute = body.nodes[parent].attribute
        assert attribute is not None
        reasons.append(
            Reason(
                attributes=(attribute,),
                condition=dict(body.nodes[parent].ways(body.bins))[child],
                before=shares[step - 1],
                after=shares[step],
                patients=sum(counts[step]),
            )
        )
    named, patients, notes = label(body.classes[best]), sum(counts[-1]), _say_stopped(body, path[-1], patient)
    first = (
        f"{body.target} = {named} "
        f"({shares[-1]:.0%} of {patients} similar patient{'' if patients == 1 else 's'})."
    )
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=shares[-1],
        base=shares[0],
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(first, *(say_reasons(named, reasons) or [f"The model {NO_QUESTION}"]), *notes),
        chances=tuple(class_shares(counts[-1])),
    )


def _explain_partly(
    body: TreeBody, patient: Mapping[str, Any], vote: int | None = None, dictionary: Entries = NO_ENTRIES
) -> Explanation:
    """The explanation for a patient of whom not all was entered that the tree asks: each value that was moves the
    shares, in the order of the tree; what was not is weighed over the model's patients (settling.spread)."""
    order = list(dict.fromkeys(node.attribute for node in body.nodes if node.attribute is not None))
    known: dict[str, Any] = {}
    resting = spread(body, known, dictionary)
    steps = [(mix_shares(body, resting), resting, "")]
    for name in (name for name in order if name in patient):
        known[name] = patient[name]
        resting = spread(body, known, dictionary)
        if resting != steps[-1][1]:
            steps.append((mix_shares(body, resting), resting, name))
    shares = [step[0] for step in steps]
    best = choose_one(shares[-1].tolist(), body.classes, body.decided) if vote is None else vote
    reasons = [
        Reason(
            attributes=(name,),
            condition=f"{name} is missing" if patient[name] is None else f"{name} = {label(patient[name])}",
            before=float(before[best]),
            after=float(after[best]),
            patients=_count_patients(body, resting),
        )
        for (before, _, _), (after, resting, name) in pairwise(steps)
    ]
    named, patients = label(body.classes[best]), _count_patients(body, resting)
    absent = [name for name in order if name not in patient and _is_met(body, resting, name)]
    notes = (
        f"Not entered, and so not counted for or against: {', '.join(absent)}; the answer is weighed over what the "
        "model's patients have there.",
    )
    chance = float(shares[-1][best])
    fit = "1 patient fits" if patients == 1 else f"{patients} patients fit"
    first = f"{body.target} = {named} ({chance:.0%}; {fit} what was entered)."
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=chance,
        base=float(shares[0][best]),
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(
            first,
            *(say_reasons(named, reasons) or ["Nothing that was entered is asked by it."]),
            *notes,
        ),
        chances=tuple(map(float, shares[-1])),
    )


def _count_patients(body: TreeBody, resting: Mapping[int, float]) -> int:
    return sum(sum(body.nodes[node].counts) for node in resting)


def _is_met(body: TreeBody, resting: Mapping[int, float], name: str) -> bool:
    """Whether an attribute is asked about on the way to one of these nodes, or there."""
    parents = {child: index for index, node in enumerate(body.nodes) for child in node.children}
    for node in resting:
        place: int | None = node
        while place is not None:
            if body.nodes[place].attribute == name:
                return True
            place = parents.get(place)
    return False


def say_reasons(named: str, reasons: Sequence[Reason]) -> list[str]:
    """How each reason moved the class, a sentence each."""
    return [
        f"{number}. {reason.condition}: {named} goes from {reason.before:.0%} to {reason.after:.0%} "
        f"({reason.patients} patient{'' if reason.patients == 1 else 's'})."
        for number, reason in enumerate(reasons, start=1)
    ]


def _say_stopped(body: TreeBody, node: int, patient: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the path ended before a leaf: the patient's value is not known, or none of the model's patients had it."""
    attribute = body.nodes[node].attribute
    if attribute is None:
        return ()
    value = patient.get(attribute)
    why = "is not known" if value is None else f"= {label(value)} was not seen"
    return (
        f"The next question would be {attribute}, which {why} here; the answer is that of the patients so far.",
    )


def explain_votes(
    votes: Sequence[Explanation], classes: Sequence[Value], how: str, decided: Decided | None
) -> Explanation:
    """What most of an odd number of experts say, or as many as the decision asks for; the reasons are those of the one
    among them who saw most similar patients. `how` an expert votes is a sentence."""
    share = sum(vote.prediction == classes[1] for vote in votes) / len(votes)
    called = classes[choose_one([1 - share, share], classes, decided)]
    agree = [number for number, vote in enumerate(votes, 1) if vote.prediction == called]
    against = [number for number in range(1, len(votes) + 1) if number not in agree]
    speaker = max(agree or against, key=lambda number: (votes[number - 1].patients or 0, -number))
    voice = votes[speaker - 1]
    named, heard = label(called), label(voice.prediction)
    others = f"; for {label(votes[against[0] - 1].prediction)}: {_name_experts(against)}." if against else "."
    return Explanation(
        target=voice.target,
        prediction=called,
        probability=len(agree) / len(votes),
        reasons=voice.reasons,
        patients=voice.patients,
        notes=voice.notes,
        votes=tuple(votes),
        sentences=(
            f"{voice.target} = {named} ({len(agree)} of {len(votes)} experts).",
            f"For {named}: {_name_experts(agree) if agree else 'nobody'}{others}",
            f"Expert {speaker}, who knows most patients like this one, says {heard} "
            f"({voice.probability:.0%} of {voice.patients} in its sample):",
            *(say_reasons(heard, voice.reasons) or [f"It {NO_QUESTION}"]),
            *voice.notes,
            f"{how} Samples have many more positive patients than a hospital has.",
        ),
    )


def _name_experts(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def add_gains(trees: Iterable[TreeBody]) -> dict[str, float]:
    """By attribute the bits that asking it takes away, summed over nodes and patients; no less than none where counts
    are noisy."""
    gains: dict[str, float] = {}
    for tree in trees:
        for node in tree.nodes:
            if node.attribute is None:
                continue
            left = sum(_find_entropy(tree.nodes[child].counts) for child in node.children)
            gains[node.attribute] = gains.get(node.attribute, 0.0) + max(
                _find_entropy(node.counts) - left, 0.0
            )
    return gains


def _find_entropy(counts: Iterable[int]) -> float:
    """The bits that it takes to tell the class of all these patients."""
    patients = np.maximum(np.array(list(counts), dtype=np.float64), 0.0)
    return float(xlog2x(patients.sum(keepdims=True))[0] - xlog2x(patients).sum())


def rank(gains: Mapping[str, float]) -> dict[str, float]:
    """The largest 100, the most important first, by name where equal."""
    most = max(gains.values(), default=0.0) or 1.0
    order = sorted(gains, key=lambda name: (-gains[name], name))
    return {name: 100 * gains[name] / most for name in order}
