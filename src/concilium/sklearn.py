"""Methods as estimators of scikit-learn: `fit(X, y)` and `score(X, y)`, in pipelines, `cross_val_score` and searches.

    from concilium.sklearn import RuleFitClassifier
    cross_val_score(RuleFitClassifier(trees=100), X, y)

All rows are one hospital's. `fit(X, y, site=names)` deals them to hospitals, a name for each row; the model is that of
`fit(house)`, and stands in `model_`. A missing value (NaN, None) stays missing: nothing has to be imputed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concilium.errors import ConciliumError, MissingExtra
from concilium.models.method import Method
from concilium.models.threshold import choose
from concilium.records.columns import label
from concilium.registry import METHODS, load

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise MissingExtra("notebook", "concilium.sklearn") from None

ELSEWHERE = {"target", "query", "time", "at", "family"}
"""Parameters that name columns of a table or choose among its rows: X and y say that here."""


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What classifiers and regressors share: parameters, tables made of X and y, the fitted model."""

    _method: ClassVar[type[Method[Any]]]
    _fixed: ClassVar[dict[str, Any]] = {}
    model_: Method[Any]

    def __init_subclass__(cls, method: str = "", **fixed: Any) -> None:
        """A class for a method, with the method's parameters as its own."""
        super().__init_subclass__()
        if not method:
            return
        cls._method, cls._fixed = load(METHODS[method]), fixed
        listed = cls._method.parameters()
        defaults = {
            name: None if isinstance(one.default, dict) else one.default
            for name, one in listed.items()
            if name not in ELSEWHERE
        }
        if "release" in defaults:
            defaults["release"] = "exact"  # one table alone can be neither masked nor without a stated domain
        if "positive" in defaults:
            defaults["positive"] = None

        def __init__(self: Any, **given: Any) -> None:
            if unknown := sorted(set(given) - set(defaults)):
                raise TypeError(f"{cls.__name__} has no parameter {unknown[0]!r}")
            vars(self).update({**defaults, **given})

        keys = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in defaults.items()
        ]
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(__init__)["__signature__"] = inspect.Signature([own, *keys])
        setattr(cls, "__init__", __init__)  # noqa: B010

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _fit_model(self, X: Any, target: str, outcomes: Sequence[Any], site: Any, **more: Any) -> Self:
        columns = self._read_table(X, reset=True)
        if target in columns:
            raise ValueError(f"a column of X has the name of the outcome, {target!r}; rename one of them")
        table = pa.table({**columns, target: list(outcomes)})
        sites = {"here": table} if site is None else _deal(table, site)
        given = {**self.get_params(deep=False), **self._fixed, **more}
        parameters = {name: value for name, value in given.items() if value is not None}
        try:
            method: Any = self._method
            self.model_ = method(target=target, **parameters).fit(sites)
        except ConciliumError as error:
            raise ValueError(str(error)) from error
        return self

    def _read_table(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """The columns of X by name: those of a DataFrame, or x0, x1, ..."""
        if hasattr(X, "columns"):
            validate_data(self, X, skip_check_array=True, reset=reset)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            return {str(name): X[name] for name in X.columns}
        matrix = validate_data(self, X, dtype="numeric", ensure_all_finite="allow-nan", reset=reset)
        return {
            f"x{place}": pa.array(column, from_pandas=True) for place, column in enumerate(matrix.T.copy())
        }

    def _ask(self, X: Any) -> pa.Table:
        check_is_fitted(self, "model_")
        return pa.table(self._read_table(X, reset=False))

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """How important each column of X is, as shares of 1."""
        check_is_fitted(self, "model_")
        known = self.model_.importances()
        names = getattr(self, "feature_names_in_", [f"x{place}" for place in range(self.n_features_in_)])
        found = np.array([known.get(name, 0.0) for name in names])
        return found / found.sum() if found.sum() else found

    def _repr_html_inner(self) -> str:
        fitted = getattr(self, "model_", None)
        return str(super()._repr_html_inner() if fitted is None else fitted._repr_html_())


def _deal(table: pa.Table, site: Any) -> dict[str, pa.Table]:
    """The rows of each hospital."""
    names = column_or_1d(site)
    if len(names) != len(table):
        raise ValueError(f"site has {len(names)} names for {len(table)} rows; give one for each row")
    return {str(name): table.filter(pa.array(names == name)) for name in np.unique(names)}


class _Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A method that predicts one of the classes of y."""

    classes_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not self._method.against_rest
        return tags

    def fit(self, X: Any, y: Any, site: Any = None) -> Self:
        """Learn from X and y; `site` names the hospital of each row."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        target, y = _name(y), column_or_1d(y, warn=True)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError("y has one class only; a classifier needs two")
        more = {}
        if self._method.against_rest:
            if len(classes) > 2:
                kind = type_of_target(y, input_name="y")
                raise ValueError(
                    f"Only binary classification is supported. The type of the target is {kind}."
                )
            more = {"positive": _plain(classes[1]) if self.positive is None else self.positive}
        plain = [_plain(value) for value in classes]
        self._fit_model(X, target, [plain[code] for code in codes], site, **more)
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """How likely each class is for each row; columns as in `classes_`."""
        asked = self._ask(X)
        found = np.zeros((len(asked), len(self.classes_)))
        found[:, self._places] = self.model_.predict_proba(asked)
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row, by the parameter `threshold`."""
        asked = self._ask(X)
        best = choose(self.model_.predict_proba(asked), self.model_.classes_, self.model_.decided)
        return np.asarray(self.classes_[np.array(self._places)[best]])

    @property
    def _places(self) -> list[int]:
        """The place of each of the model's classes among those of y; of one against the rest, the rest is the other."""
        places = {label(_plain(value)): place for place, value in enumerate(self.classes_)}
        found = [places.get(label(value), -1) for value in self.model_.classes_]
        return [1 - max(found) if place < 0 else place for place in found]


class _Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A method that predicts the number y."""

    def fit(self, X: Any, y: Any, site: Any = None) -> Self:
        """Learn from X and y; `site` names the hospital of each row."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        target, numbers = _name(y), column_or_1d(y, warn=True).astype(float)
        if not np.isfinite(numbers).all():
            raise ValueError("y contains NaN or infinity")
        ends = [float(numbers.min()), float(numbers.max())]
        if ends[0] == ends[1]:
            raise ValueError(
                f"y has one value only, in {len(numbers)} sample(s); there is nothing to predict"
            )
        bins = {target: ends, **(self.bins or {})}
        return self._fit_model(X, target, numbers.tolist(), site, bins=bins)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number of each row."""
        asked = self._ask(X)
        return np.asarray(self.model_.predict(asked), dtype=float)


def _name(y: Any) -> str:
    """What sentences of the model call the outcome: the name of a Series."""
    name = getattr(y, "name", None)
    return "y" if name is None else str(name)


def _plain(value: Any) -> Any:
    """A class as a table holds it."""
    plain = value.item() if isinstance(value, np.generic) else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


class DecisionTreeClassifier(_Classifier, method="tree"):
    """One tree."""


class VotingTreesClassifier(_Classifier, method="voting-trees"):
    """Trees for rare outcomes, of two classes."""


class RuleFitClassifier(_Classifier, method="rulefit"):
    """Rules and linear terms, of two classes."""


class ShapeModelClassifier(_Classifier, method="shapes"):
    """One curve per column, of two classes."""


class NaiveBayesClassifier(_Classifier, method="naive-bayes"):
    """What each column says by itself."""


class LogisticRegression(_Classifier, method="regression", family="binomial"):
    """Odds ratios with intervals, of two classes."""


class LinearRegression(_Regressor, method="regression", family="gaussian"):
    """Differences with intervals."""


class ShapeModelRegressor(_Regressor, method="shapes"):
    """One curve per column, which add up to a number."""


class RuleFitRegressor(_Regressor, method="rulefit"):
    """Rules and linear terms that add up to a number."""
