"""What a study of trees states: a DecisionTree, the one level of NaiveBayes, and every expert of VotingTrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from concilium.errors import StudyError
from concilium.federation.held_out import MOST_PERCENT, Part
from concilium.federation.histograms import read_bins
from concilium.federation.messages import Release
from concilium.federation.schema import GlobalSchema, stated_schema
from concilium.privacy.accounting import rho_for_epsilon
from concilium.records.query import Query
from concilium.records.table import Value
from concilium.trees.growing import Criterion
from concilium.trees.private_growing import Budget

PRIVATE_DEPTH = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The parameters of a DecisionTree, under the same names, checked when they are put together; `model` is whose
    they are ("a DecisionTree"), for sentences that say what is wrong with one."""

    model: str
    target: str
    query: str
    release: Release
    epsilon: str | int | Fraction | None
    delta: str | int | Fraction
    values: dict[str, list[Value]]
    bins: dict[str, list[float]]
    attributes: list[str] | None
    max_depth: int | None
    min_leaf: int
    cutoffs: int | None
    criterion: Criterion
    reduce: float | None
    prune: float | None
    group: bool

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target:
            raise self._wrong("target", "must be an attribute's name")
        if not isinstance(self.query, str):
            raise self._wrong("query", "must be text")
        Query.parse(self.query)
        if self.release not in ("exact", "masked", "private"):
            raise self._wrong("release", "must be 'exact', 'masked' or 'private'")
        if self.max_depth is not None and (not is_count(self.max_depth) or self.max_depth < 0):
            raise self._wrong("max_depth", "must be 0 or more, or None")
        if not is_count(self.min_leaf) or self.min_leaf < 1:
            raise self._wrong("min_leaf", "must be 1 or more")
        if self.criterion not in ("entropy", "gain-ratio"):
            raise self._wrong("criterion", "must be 'entropy' or 'gain-ratio'")
        if self.reduce is not None and not 0 <= self.reduce < 1:
            raise self._wrong("reduce", "must be a share from 0 to below 1")
        if self.cutoffs is not None and (not is_count(self.cutoffs) or self.cutoffs < 1):
            raise self._wrong("cutoffs", "must be 1 or more, or None")
        if not isinstance(self.group, bool):
            raise self._wrong("group", "must be True or False")
        if self.cutoffs is not None and not self.bins:
            raise StudyError(
                f"the 'cutoffs' of {self.model} are chosen among the edges of its 'bins'; give these"
            )
        if self.release == "private":
            self._check_private()

    def _wrong(self, name: str, must: str) -> StudyError:
        return wrong(self.model, name, getattr(self, name), must)

    def _check_private(self) -> None:
        """A private tree learns nothing from the data but noisy counts: the study must say all the rest."""
        model = self.model.removeprefix("a ")
        if self.epsilon is None:
            raise StudyError(f"a private {model} needs an 'epsilon', such as 1.0")
        if self.target not in self.values:
            raise StudyError(f"a private {model} needs the classes: values = {{{self.target!r}: [...]}}")
        values, bins = self.stated
        unsaid = sorted(set(self.attributes or ()) - {*values, *bins})
        if unsaid:
            raise StudyError(f"a private {model} needs 'values' or 'bins' for {', '.join(map(repr, unsaid))}")
        if not {*values, *bins} - {self.target}:
            raise StudyError(
                f"a private {model} needs its attributes: give 'values' of codes, 'bins' of numbers"
            )
        if self.max_depth == 0:
            raise StudyError(f"a private {model} must have a 'max_depth' of 1 or more")
        if self.min_leaf != 1 or self.criterion != "entropy" or self.reduce is not None:
            raise StudyError(
                f"a private {model} has no 'min_leaf', 'criterion' or 'reduce': it screens attributes and stops "
                "where counts cannot be told from noise"
            )
        if self.budget.too_small:
            raise StudyError(f"an 'epsilon' of {self.epsilon} is too small for any question to be answered")

    @property
    def parameters(self) -> dict[str, Any]:
        """All of it, as a run is told: the same parameters resume the same run."""
        named = {each.name: getattr(self, each.name) for each in fields(Settings)}
        del named["release"], named["model"]
        return {**named, "epsilon": str(self.epsilon), "delta": str(self.delta)}

    @property
    def stated(self) -> tuple[dict[str, list[Value]], dict[str, list[float]]]:
        """The values and bins of a private study, of the chosen attributes if some are."""
        chosen = {*self.values, *self.bins} if self.attributes is None else {*self.attributes, self.target}
        values = {name: listed for name, listed in self.values.items() if name in chosen}
        return values, {name: edges for name, edges in self.bins.items() if name in chosen}

    @property
    def stated_schema(self) -> GlobalSchema:
        """What a private study states, as a schema."""
        return stated_schema(*self.stated, self.target)

    @property
    def rho(self) -> Fraction:
        """What a private study costs."""
        assert self.epsilon is not None
        return rho_for_epsilon(self.epsilon, self.delta)

    @property
    def budget(self) -> Budget:
        """How a private tree spends it."""
        depth = PRIVATE_DEPTH if self.max_depth is None else self.max_depth
        return Budget(self.rho, depth, cutoffs=self.cutoffs is not None, prune=self.prune is not None)

    def part(self, *, held: bool) -> Part | None:
        """Those of the patients who are held out for pruning, or the others; everyone without pruning."""
        return None if self.prune is None else Part(percent=round(100 * self.prune), held=held)


class Stated:
    """A model whose parameters are read as its attributes, such as `tree.max_depth`. They are not set: what was checked
    together stays together. `release` is that of the model, which a file may bring."""

    settings: Settings
    release: Release
    target: str
    query: str

    def __getattr__(self, name: str) -> Any:
        if name in Settings.__dataclass_fields__ and "settings" in vars(self):
            return getattr(self.settings, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Settings.__dataclass_fields__ and "settings" in vars(self) and name != "release":
            raise AttributeError(f"the {name!r} of a {type(self).__name__} is settled: make another with it")
        super().__setattr__(name, value)


def state(
    model: str,
    target: str,
    query: str,
    release: Release,
    *,
    epsilon: float | str | Fraction | None = None,
    delta: float | str | Fraction = "1/1000000",
    values: Mapping[str, Sequence[Value]] | None = None,
    bins: Mapping[str, Sequence[float]] | None = None,
    attributes: Sequence[str] | None = None,
    max_depth: int | None = None,
    min_leaf: int = 1,
    cutoffs: int | None = None,
    criterion: Criterion = "entropy",
    reduce: float | None = None,
    prune: float | None = None,
    group: bool = False,
) -> Settings:
    """The settings that these parameters of a model make; StudyError for what cannot be one."""
    if isinstance(attributes, str):
        raise wrong(model, "attributes", attributes, "must be a list of names")
    return Settings(
        model,
        target,
        query,
        release,
        # As they are written: a float stands for its shortest decimal, 0.1 for one tenth.
        str(epsilon) if isinstance(epsilon, float) else epsilon,
        str(delta) if isinstance(delta, float) else delta,
        {name: list(listed) for name, listed in (values or {}).items()},
        read_bins(model, bins or {}),
        None if attributes is None else list(attributes),
        plain(max_depth),
        plain(min_leaf),
        plain(cutoffs),
        criterion,
        reduce,
        None if prune is None else read_share(model, prune),
        group,
    )


def read_share(model: str, prune: Any) -> float:
    """The share of patients to hold out; in whole percent, for there to be few ways to divide the same patients."""
    number = isinstance(prune, int | float | np.number) and not isinstance(prune, bool)
    percent = round(100 * prune) if number and 0 < prune < 1 else 0
    if not 1 <= percent <= MOST_PERCENT or abs(percent / 100 - prune) > 1e-9:
        most = f"{MOST_PERCENT / 100:g}"
        raise wrong(model, "prune", prune, f"must be a share in whole percent, from 0.01 to {most}, or None")
    return percent / 100


def wrong(model: str, name: str, given: Any, must: str) -> StudyError:
    return StudyError(f"the {name!r} of {model} {must}; got {given!r}")


def plain(count: T) -> T | int:
    """Python's own whole number for numpy's; anything else as it is."""
    return int(count) if isinstance(count, np.integer) else count


def is_count(value: Any) -> bool:
    """Whether this is a whole number, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)
