"""Why a model says what it says about one patient: one shape for every method, data and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from concilium.records.columns import Value


@dataclass(frozen=True)
class Reason:
    """One thing that holds for the patient, and what it did to the prediction.

    attributes       what it looks at
    condition        what the patient fulfils, in words
    before, after    the share of the predicted class before and after it, where reasons follow each other
    moved            what it adds to the log odds of the positive class, or to a number that is predicted
    patients         how many of those learned from are like this (so far), where that is known
    support          the share of all patients who fulfil it, where that is known
    """

    attributes: tuple[str, ...]
    condition: str
    before: float | None = None
    after: float | None = None
    moved: float | None = None
    patients: int | None = None
    support: float | None = None


@dataclass(frozen=True)
class Explanation:
    """A prediction for one patient and the reasons for it; prints as sentences.

    probability   how likely the predicted class is by the model; None where a number is predicted
    base          where everybody starts: the share of the predicted class (or of the positive one), or the number
    patients      how many patients the prediction rests on, where that is known
    notes         what else must be said: why it stopped, what is not known of the patient
    votes         the explanations of the experts of an ensemble, each for itself
    called_from   the chance from which on the positive class is called (decision.py); None: the likeliest class is
    chances       how likely each class is, in the order of the model's classes, where that is known
    sentences     all of it in words, a line each
    """

    target: str
    prediction: Value
    probability: float | None
    reasons: tuple[Reason, ...]
    sentences: tuple[str, ...]
    base: float | None = None
    patients: int | None = None
    notes: tuple[str, ...] = ()
    votes: tuple[Explanation, ...] = ()
    called_from: float | None = None
    chances: tuple[float, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)
