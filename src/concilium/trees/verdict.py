"""Why an ensemble says what it says about one patient: how its experts voted, and the reasons of one who prevailed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from concilium.records.table import Value, label
from concilium.trees.ballot import Rule
from concilium.trees.explanation import Explanation, Reason


@dataclass(frozen=True)
class Verdict:
    """A majority for one patient. `votes` are the experts' own explanations, `reasons` those of `speaker` (from 1),
    who of the majority saw most similar patients."""

    target: str
    prediction: Value
    probability: float
    speaker: int
    reasons: tuple[Reason, ...]
    votes: tuple[Explanation, ...]
    rule: Rule

    def __str__(self) -> str:
        said, voice = label(self.prediction), self.votes[self.speaker - 1]
        agree = [
            number for number, vote in enumerate(self.votes, start=1) if vote.prediction == self.prediction
        ]
        against = [number for number in range(1, len(self.votes) + 1) if number not in agree]
        other = "" if not against else label(self.votes[against[0] - 1].prediction)
        where = "commoner than in its whole sample" if self.rule == "balanced" else "the commonest"
        return "\n".join(
            [
                f"{self.target} = {said} ({len(agree)} of {len(self.votes)} experts).",
                f"For {said}: {name_experts(agree)}"
                + (f"; for {other}: {name_experts(against)}." if against else "."),
                f"Expert {self.speaker}, who knows most patients like this one, says {said} "
                f"({voice.probability:.0%} of {voice.patients} in its sample):",
                *voice.because("It"),
                f"An expert votes for the class that is {where}. Samples have many more positive patients than a "
                "hospital has.",
            ]
        )


def name_experts(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def pronounce(votes: Sequence[Explanation], positive: Value, rule: Rule) -> Verdict:
    """The verdict of an odd number of experts, each with its own explanation."""
    won = 2 * sum(vote.prediction == positive for vote in votes) > len(votes)
    majority = [number for number, vote in enumerate(votes, 1) if (vote.prediction == positive) == won]
    speaker = max(majority, key=lambda number: (votes[number - 1].patients, -number))
    return Verdict(
        target=votes[0].target,
        prediction=votes[speaker - 1].prediction,
        probability=len(majority) / len(votes),
        speaker=speaker,
        reasons=votes[speaker - 1].reasons,
        votes=tuple(votes),
        rule=rule,
    )
