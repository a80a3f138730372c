"""Why a tree says what it says about one patient, and why an ensemble does; and what each attribute contributes.

The reasons of a tree are the path taken and what each answer on it changed; those of an ensemble are how the experts
voted, and the reasons of one who prevailed. An attribute's importance is the entropy that it takes away, over all
patients who are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import (
    Explanation,
    Reason,
    say_interval,
    say_risk,
    say_risk_interval,
    say_share,
)
from concilium.models.intervals import WITHIN_95, Interval
from concilium.models.prediction import NO_ENTRIES, Entries
from concilium.models.threshold import Decided, choose_one
from concilium.records.columns import Value, label
from concilium.records.dictionary import say_value
from concilium.trees.body import TreeBody, class_shares, find_path, mix_shares, spread
from concilium.trees.growing import xlog2x

NO_QUESTION = "asks nothing about the patient."
NOTHING_ENTERED = "The model asks for nothing that was entered: this is the share among all its patients."
NOISE = "All counts have noise added, which protects single patients; the interval includes it."
OF_AVERAGE = (
    "The interval is about the average of such patients. The probability of this one may lie outside it."
)
OF_EVERYONE = (
    "The interval is about the average of all patients. The probability of this one may lie outside it."
)
NARROW = 0.02
WIDER = ", and the interval is wider for it"
UNKNOWN_NOISE = (
    "All counts have noise added, and this model file does not say how much: there is no interval."
)


def explain(
    body: TreeBody,
    path: Sequence[int],
    patient: Mapping[str, Any],
    vote: int | None = None,
    dictionary: Entries = NO_ENTRIES,
    noisy: bool = False,
) -> Explanation:
    """The explanation of a path from the root, for the class that is called at its end, or for that of the vote;
    `noisy`: the counts have noise."""
    if any(body.nodes[node].attribute not in {None, *patient} for node in path):
        return _explain_partly(body, patient, vote, dictionary, noisy)
    counts = [body.nodes[node].counts for node in path]
    best = body.call(counts[-1]) if vote is None else vote
    shares = [class_shares(node)[best] for node in counts]
    said, reasons = body.in_words(dictionary), []
    for step, (parent, child) in enumerate(pairwise(path), start=1):
        attribute = body.nodes[parent].attribute
        assert attribute is not None
        reasons.append(
            Reason(
                attributes=(attribute,),
                condition=dict(said.nodes[parent].ways(said))[child],
                before=shares[step - 1],
                after=shares[step],
                patients=sum(counts[step]),
            )
        )
    named, patients = label(said.classes[best]), sum(counts[-1])
    notes = _say_stopped(body, path[-1], patient, dictionary)
    interval = (
        body.nodes[path[-1]].find_interval(best, chosen=path[-1] > 0) if tells_noise(body, noisy) else None
    )
    everyone = path[-1] == 0
    first = f"{body.target} = {named} ({_say_share(shares[-1], patients, interval, noisy, everyone)})."
    why = say_reasons(named, reasons, noisy) or ([] if notes else [f"The model {NO_QUESTION}"])
    return Explanation(
        target=body.target,
        prediction=body.classes[best],
        probability=shares[-1],
        base=shares[0],
        patients=patients,
        reasons=tuple(reasons),
        notes=notes,
        sentences=(
            first,
            *_say_average(interval, everyone=everyone),
            *why,
            *notes,
            *say_noise(interval, noisy),
        ),
        chances=tuple(class_shares(counts[-1])),
        interval=interval,
    )


def tells_noise(body: TreeBody, noisy: bool) -> bool:
    """Whether the model says how large the noise of its counts is, if they have any; older files do not."""
    return not noisy or body.nodes[0].variance > 0


def say_noise(interval: Interval | None, noisy: bool) -> list[str]:
    """What must be said of noise, if there is any."""
    return [] if not noisy else [NOISE] if interval is not None else [UNKNOWN_NOISE]


def _say_average(interval: Interval | None, *, everyone: bool) -> list[str]:
    """What the interval of a leaf is about, if there is one; of the root it is about `everyone`."""
    return [] if interval is None else [OF_EVERYONE if everyone else OF_AVERAGE]


def _say_share(
    share: float, patients: int | None, interval: Interval | None, noisy: bool, everyone: bool = False
) -> str:
    """A share, of how many patients where that is known, and its interval; nobody counted one that is mixed."""
    if patients is None:
        return say_risk(share) + ("" if interval is None else f"; {say_risk_interval(interval)}")
    who = f"patient{'' if patients == 1 else 's'}"
    if everyone:
        of = f"all {who}, about {patients}" if noisy else f"all {patients} {who}"
    else:
        of = f"{'about ' if noisy else ''}{patients} similar {who}"
    return f"{say_share(share)} of {of}" + ("" if interval is None else f"; {say_interval(interval)}")


def _explain_partly(
    body: TreeBody,
    patient: Mapping[str, Any],
    vote: int | None = None,
    dictionary: Entries = NO_ENTRIES,
    noisy: bool = False,
) -> Explanation:
    """The explanation for a patient of whom not all was entered that the tree asks: each value that was moves the
    shares, in the order of the tree; what was not is weighed over the model's patients (`spread`)."""
    order = list(dict.fromkeys(node.attribute for node in body.nodes if node.attribute is not None))
    known: dict[str, Any] = {}
    resting = spread(body, known, dictionary)
    steps = [(np.array(class_shares(body.nodes[0].counts)), resting, "")]
    for name in (name for name in order if name in patient):
        known[name] = patient[name]
        resting = spread(body, known, dictionary)
        if resting != steps[-1][1]:
            steps.append((_find_shares(body, known, resting, dictionary), resting, name))
    shares = [step[0] for step in steps]
    best = choose_one(shares[-1].tolist(), body.classes, body.decided) if vote is None else vote
    reasons = [
        Reason(
            attributes=(name,),
            condition=f"{name} is missing"
            if patient[name] is None
            else f"{name} = {say_value(patient[name], dictionary.get(name))}",
            before=float(before[best]),
            after=float(after[best]),
        )
        for (before, _, _), (after, _, name) in pairwise(steps)
    ]
    path = find_path(body, patient, dictionary)
    following = next(body.nodes[node].attribute for node in path if body.nodes[node].attribute not in patient)
    met = (name for name in order if name not in patient and _is_met(body, resting, name))
    absent = sorted(met, key=lambda name: name != following)
    weighed = "; the answer is weighed over what the model's patients have there" if known else ""
    whole = _find_whole(body, patient, dictionary)
    weighed += WIDER if whole is None else ""
    notes = (
        f"Not entered, and so not counted for or against: {', '.join(absent)}{weighed}. Measure {absent[0]} first.",
    )
    chance = float(shares[-1][best])
    patients = None if whole is None else sum(body.nodes[whole].counts)
    interval = None
    if tells_noise(body, noisy):
        low, high = _mix_interval(body, resting if whole is None else {whole: 1.0}, best)
        interval = min(low, chance), max(high, chance)
    named = label(body.in_words(dictionary).classes[best])
    first = f"{body.target} = {named} ({_say_share(chance, patients, interval, noisy, everyone=whole == 0)})."
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
            *_say_average(interval, everyone=whole == 0),
            *(say_reasons(named, reasons, noisy) or [NOTHING_ENTERED]),
            *notes,
            *say_noise(interval, noisy),
        ),
        chances=tuple(map(float, shares[-1])),
        interval=interval,
    )


def _find_shares(
    body: TreeBody, known: Mapping[str, Any], resting: Mapping[int, float], dictionary: Entries
) -> NDArray[np.float64]:
    """The class shares of those who fit what is known: counted where they are, mixed over nodes otherwise."""
    whole = _find_whole(body, known, dictionary)
    return mix_shares(body, resting) if whole is None else np.array(class_shares(body.nodes[whole].counts))


def _find_whole(body: TreeBody, patient: Mapping[str, Any], dictionary: Entries) -> int | None:
    """The node whose patients are just those who fit what was entered; None where the model does not count them: what
    was entered is asked again below, in some branches only."""
    path = find_path(body, patient, dictionary)
    at = next((node for node in path if body.nodes[node].attribute not in {None, *patient}), path[-1])
    below = [at]
    for node in below:
        below += body.nodes[node].children
    return None if any(body.nodes[node].attribute in patient for node in below) else at


def _mix_interval(body: TreeBody, resting: Mapping[int, float], place: int) -> Interval:
    """The interval of a share that is mixed over nodes: the squares of what their own intervals reach to either side
    add up (Zou and Donner, Stat. Med. 27, 2008). So does how far the nodes are apart (intervals.py: what was not
    entered may go with what was, and the nodes have other weights then)."""
    shares = body.shares[:, place]
    mixed = sum(weight * shares[node] for node, weight in resting.items())
    spread_out = sum(weight * (shares[node] - mixed) ** 2 for node, weight in resting.items())
    below = above = float(spread_out)
    for node, weight in resting.items():
        low, high = body.nodes[node].find_interval(place, chosen=node > 0)
        below += (weight * (shares[node] - low)) ** 2
        above += (weight * (high - shares[node])) ** 2
    return max(float(mixed - below**0.5), 0.0), min(float(mixed + above**0.5), 1.0)


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


def say_moved(named: str, before: str, after: str) -> str:
    """How the share of a class changed."""
    if before != after:
        return f"{named} goes from {before} to {after}"
    return f"{named} stays {after if after.startswith(('above', 'below')) else f'at {after}'}"


def say_reasons(
    named: str, reasons: Sequence[Reason], noisy: bool = False, say: Callable[[float], str] = say_share
) -> list[str]:
    """How each reason moved the class, a sentence each; `say` says a share."""
    about = "about " if noisy else ""
    lines = []
    for number, reason in enumerate(reasons, start=1):
        of = reason.patients
        counted = "" if of is None else f" ({about}{of} patient{'' if of == 1 else 's'})"
        before, after = (say(share or 0.0) for share in (reason.before, reason.after))
        lines.append(f"{number}. {reason.condition}: {say_moved(named, before, after)}{counted}.")
    return lines


def _say_stopped(
    body: TreeBody, node: int, patient: Mapping[str, Any], dictionary: Entries
) -> tuple[str, ...]:
    """Why the path ended before a leaf: the patient's value is missing, or none of the model's patients had it."""
    attribute = body.nodes[node].attribute
    if attribute is None:
        return ()
    value = patient.get(attribute)
    why = "which is missing here"
    if value is not None:
        said = say_value(value, dictionary.get(attribute))
        why = f"and no patient of the model who came this far had {attribute} = {said}"
    return (f"The model asks next for {attribute}, {why}; the answer is that of the patients so far.",)


class Risk(NamedTuple):
    """The share of patients with the class that was called for them, its interval, how many they are, and who; or of
    all patients (`everyone`), where nothing is known of the patient who is asked about. `overall`: of all patients."""

    share: float
    interval: Interval
    patients: int
    who: str
    overall: float
    everyone: bool = False


def explain_votes(
    votes: Sequence[Explanation],
    classes: Sequence[Value],
    words: Sequence[Value],
    how: str,
    decided: Decided | None,
    find_risk: Callable[[int], Risk | None],
) -> Explanation:
    """What most of an odd number of experts say, or as many as the decision asks for; the reasons are those of the one
    among them who saw most similar patients. `words` are the classes as people call them; `how` an expert votes is a
    sentence. Votes are no risk: that is the share of patients called so who are so (`find_risk`)."""
    share = sum(vote.prediction == classes[1] for vote in votes) / len(votes)
    place = choose_one([1 - share, share], classes, decided)
    called, named = classes[place], label(words[place])
    agree = [number for number, vote in enumerate(votes, 1) if vote.prediction == called]
    against = [number for number in range(1, len(votes) + 1) if number not in agree]
    speaker = max(agree or against, key=lambda number: (votes[number - 1].patients or 0, -number))
    voice = votes[speaker - 1]
    other = label(words[1 - place])
    heard = named if agree else other
    others = f"; for {other}: {_name_experts(against)}." if against else "."
    risk = find_risk(place)
    voters = f"{len(agree)} of {len(votes)} expert{'' if len(votes) == 1 else 's'}"
    counts, about = ("", []) if risk is None else _say_risk(named, voice.target, risk)
    counted = "" if voice.patients is None else f" of {voice.patients}"
    why = say_reasons(heard, voice.reasons) or ([] if voice.notes else [f"It {NO_QUESTION}"])
    notes = tuple(
        note.replace(WIDER, "") for note in voice.notes
    )  # the interval is that of all who are called so
    colon = ":" if why else "."
    return Explanation(
        target=voice.target,
        prediction=called,
        probability=len(agree) / len(votes) if risk is None else risk.share,
        reasons=voice.reasons,
        patients=voice.patients,
        notes=notes,
        votes=tuple(votes),
        sentences=(
            f"{voice.target} = {named} ({counts}{voters}).",
            *about,
            *(
                [
                    f"For {named}: {_name_experts(agree) if agree else 'nobody'}{others}",
                    f"Expert {speaker}, which knows most patients like this one, says {heard} "
                    f"({say_share(voice.probability or 0.0)}{counted} in its sample){colon}",
                ]
                if len(votes) > 1
                else [
                    f"The expert says {heard} "
                    f"({say_share(voice.probability or 0.0)}{counted} in its sample){colon}"
                ]
            ),
            *why,
            *notes,
            f"{how} Samples have many more positive patients than a hospital has." if len(votes) > 1 else how,
        ),
        chances=(1 - share, share),
        interval=None if risk is None else risk.interval,
    )


def _say_risk(named: str, target: str, risk: Risk) -> tuple[str, list[str]]:
    """What calling a class means among patients with the prevalence of hospitals, and where that was counted. Rare
    outcomes have small shares: a narrow interval is said with a decimal."""
    digits = int(risk.interval[1] - risk.interval[0] < NARROW)
    share, low, high, overall = (
        f"{100 * one:.{digits}f}%" if digits else say_share(one)
        for one in (risk.share, *risk.interval, risk.overall)
    )
    whom = f"all {risk.patients} patients"
    if not risk.everyone:
        whom = f"{risk.patients} patients for whom it predicts {named}"
    besides = "" if risk.everyone else f", of whom {overall} had {target} = {named}"
    return f"{share} of {whom}; 95% interval {low} to {high}; ", [f"Counted on {risk.who}{besides}."]


def rest_on(said: Explanation) -> float:
    """How many patients an explanation rests on; where they are not counted, as many as its interval is worth."""
    if said.patients is not None or said.interval is None or said.probability is None:
        return float(said.patients or 0)
    width = (said.interval[1] - said.interval[0]) / (2 * WITHIN_95)
    return said.probability * (1 - said.probability) / max(width, 1e-9) ** 2


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
