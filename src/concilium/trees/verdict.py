"""Why an ensemble says what it says about one patient: how its experts voted, and the reasons of one who prevailed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from concilium.records.table import Value, label
from concilium.trees.explanation import Explanation, Reason


@dataclass(frozen=True)
class Vote:
    """What one expert (numbered from 1) says: its class, its share there, and how many of its patients were there."""

    expert: int
    prediction: Value
    share: float
    patients: int


@dataclass(frozen=True)
class Verdict:
    """A majority for one patient. `reasons` are those of `speaker`, who of the majority saw most similar patients."""

    target: str
    prediction: Value
    probability: float
    votes: tuple[Vote, ...]
    speaker: int
    reasons: tuple[Reason, ...]
    stopped: str | None

    def __str__(self) -> str:
        agree = [vote for vote in self.votes if vote.prediction == self.prediction]
        against = [vote for vote in self.votes if vote.prediction != self.prediction]
        voice = self.votes[self.speaker - 1]
        lines = [
            f"{self.target} = {label(self.prediction)} ({len(agree)} of {len(self.votes)} experts).",
            f"For {label(self.prediction)}: {name_experts(agree)}"
            + (f"; for {label(against[0].prediction)}: {name_experts(against)}." if against else "."),
            f"Expert {self.speaker}, who knows most patients like this one, says {label(self.prediction)} "
            f"({voice.share:.0%} of {voice.patients} in its sample):",
        ]
        if not self.reasons:
            lines.append("It asks nothing about the patient here.")
        for number, reason in enumerate(self.reasons, start=1):
            lines.append(
                f"{number}. {reason.condition}: {label(self.prediction)} goes from {reason.before:.0%} "
                f"to {reason.after:.0%} ({reason.patients} patients)."
            )
        if self.stopped:
            lines.append(self.stopped)
        lines.append("Shares are those of samples with many more positive patients than a hospital has.")
        return "\n".join(lines)


def name_experts(votes: Sequence[Vote]) -> str:
    numbers = [str(vote.expert) for vote in votes]
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(numbers[:-1])} and {numbers[-1]}"


def pronounce(explanations: Sequence[Explanation], positive: Value) -> Verdict:
    """The verdict of an odd number of experts, each with its own explanation."""
    votes = tuple(
        Vote(number, one.prediction, one.probability, one.patients)
        for number, one in enumerate(explanations, start=1)
    )
    for_positive = sum(vote.prediction == positive for vote in votes)
    won = 2 * for_positive > len(votes)
    majority = [vote for vote in votes if (vote.prediction == positive) == won]
    speaker = max(majority, key=lambda vote: (vote.patients, -vote.expert)).expert
    spoken = explanations[speaker - 1]
    return Verdict(
        target=spoken.target,
        prediction=spoken.prediction,
        probability=len(majority) / len(votes),
        votes=votes,
        speaker=speaker,
        reasons=spoken.reasons,
        stopped=spoken.stopped,
    )
