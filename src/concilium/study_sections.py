"""The sections of a study file with their keys, and what each method takes of them (docs/studies.md explains them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Value = str | int | float | bool  # as in records.columns, which is too heavy to load for reading a study
# What every method is given of the study.
GIVEN = ("target", "query", "release", "attributes", "bins")
HELD_BACK = ("leave_out", "holdout", "file")
LATER = ("discovery", "experts")

Text = Annotated[str, Meta(min_length=1, description="text")]
Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Amount = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")]
Part = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
LeaveOut = Annotated[str, Meta(pattern="^(site|band:[1-9][0-9]*)$", description='"site" or, say, "band:10"')]
Names = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of columns")]
Kind = Literal["code", "number"]
Listed = Annotated[
    tuple[str | int | float | bool, ...],
    Meta(min_length=1, description="a list of values, such as ['f', 'm']"),
]
Exact = Annotated[str, Meta(min_length=1, description='a number in quotes, such as "1e-6"')]
Edges = Annotated[
    tuple[float, ...], Meta(min_length=1, description="a list of numbers, each larger than the one before")
]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """[study]: what is asked."""

    name: Text
    method: Text
    target: Text
    query: Annotated[str, Meta(description="text")] = ""
    attributes: Names | None = None
    positive: Annotated[str | int | float | bool, Meta(description="a value of the target")] | None = None


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """[privacy]: how answers leave a hospital, and the budget of what is private."""

    release: Literal["exact", "masked", "private"] = "exact"
    epsilon: Amount | None = None
    delta: Exact = "1e-6"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """[sites]: one table split by a column, a simulation."""

    records: Text
    by: Text
    table: Text | None = None
    policy: Text | None = None


class Hospital(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: one hospital with its own table."""

    name: Text
    records: Text
    table: Text | None = None
    policy: Text | None = None
    ledger: Text | None = None


class TreeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """[tree]: how far a tree grows."""

    max_depth: Count | None = None
    min_leaf: Count = 1
    cutoffs: Count | None = None
    criterion: Literal["entropy", "gain-ratio"] = "entropy"
    reduce: Annotated[float, Meta(ge=0, lt=1, description="a share from 0 to below 1")] | None = None
    prune: Share | None = None
    group: Annotated[bool, Meta(description="true or false")] = False


class VotingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """[voting-trees]: when an ensemble is grown, from whom, how far, and how its experts vote."""

    imbalance: Part = 0.025
    negatives: Count = 3
    delta: Part = 0.001
    vote: Literal["balanced", "majority"] = "balanced"
    max_depth: Count | None = 4
    min_leaf: Count = 5


class RuleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """[rulefit]: how rules are made, where they cut, and how many are taken."""

    trees: Count = 333
    leaves: Annotated[float, Meta(ge=2, le=100, description="a number from 2 to 100")] = 4
    shrinkage: Annotated[float, Meta(gt=0, le=1, description="a number above 0, at most 1")] = 0.01
    support: Count = 10
    penalty: Annotated[
        float | tuple[float, ...] | Literal["auto"],
        Meta(description='a number above 0, a list of them, or "auto"'),
    ] = 0.01
    cutoffs: Annotated[int | Literal["all"], Meta(description='a whole number, or "all"')] = 20
    solver: Literal["newton", "fedda"] = "newton"
    seed: Annotated[int, Meta(ge=0, description="a whole number of at least 0")] = 0


class NaiveBayesLimits(msgspec.Struct, frozen=True, kw_only=True):
    """[naive-bayes]: there is nothing to set."""


@dataclass(frozen=True)
class Method:
    """What a study file has to do with a method.

    limits        the section named after the method; its keys are keyword arguments of the estimator
    takes         keyword arguments that come from the rest of the study, besides those of every method
    needs         keys of [study] that the method cannot do without; they are given to it as well
    against_rest  whether it tells the positive class from all others together
    compares      whether [evaluate] compare makes sense: every hospital must be able to learn alone
    numbers       whether it predicts a number, where [bins] gives the target's range
    """

    limits: type[msgspec.Struct]
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    against_rest: bool = False
    compares: bool = True
    numbers: bool = False


# One entry for each method; where its estimator is, closed_lists.METHODS says.
METHODS = {
    "rulefit": Method(
        RuleLimits, takes=("positive", "values", "epsilon", "delta"), against_rest=True, numbers=True
    ),
    "tree": Method(TreeLimits, takes=("values", "epsilon", "delta")),
    "voting-trees": Method(VotingLimits, needs=("positive",), against_rest=True, compares=False),
    "naive-bayes": Method(NaiveBayesLimits, takes=("values", "epsilon", "delta")),
}


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: how long the clearing house waits, and what a lost hospital means."""

    timeout: Amount = 60.0
    on_loss: Literal["continue", "stop"] = "continue"


class Evaluate(msgspec.Struct, frozen=True, kw_only=True):
    """[evaluate]: who is held back from learning, so that the model can be measured on them."""

    leave_out: LeaveOut | None = None
    holdout: Share | None = None
    file: Text | None = None
    compare: Annotated[bool, Meta(description="true or false")] = False

    @property
    def bands(self) -> int | None:
        """How many groups of sites take turns being left out; None when every site is its own."""
        return int(self.leave_out.removeprefix("band:")) if self.leave_out not in (None, "site") else None


SECTIONS: dict[str, type[msgspec.Struct] | None] = {
    "study": About,
    "privacy": Privacy,
    "sites": Split,
    "site": Hospital,
    "schema": None,
    "values": None,
    "bins": None,
    "house": HouseRules,
    "evaluate": Evaluate,
    **{name: method.limits for name, method in METHODS.items()},
}
