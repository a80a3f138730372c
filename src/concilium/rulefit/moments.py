"""Second moments of a model's columns as if attributes were independent, from each attribute's shares of codes alone.

A noisy gradient says where to go, and not how far; asking for a Hessian would cost as much again. The noisy tables of
the first stage of a private fit already hold each attribute's distribution. Taking attributes for independent gives
every product of two columns in closed form; the error in that changes the way to the optimum, never the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.rulefit.rules import tabulate
from concilium.rulefit.terms import RuleTerms

# A column as a product of functions of single attributes; an attribute that it does not look at has no factor.
Product = dict[int, NDArray[np.float64]]


def find_products(terms: RuleTerms, middles: Sequence[NDArray[np.float64]]) -> list[Product]:
    """Every column as a product, the intercept first. `middles`: the value of each code of each attribute."""
    products: list[Product] = [{}]
    for rule in terms.rules:
        products.append(
            {c[0]: tabulate([c], terms.attributes[c[0]].size)[0].astype(np.float64) for c in rule}
        )
    for line in terms.lines:
        held = np.clip(middles[line.attribute], line.low, line.high)
        distance = np.where(np.isnan(held), 0.0, line.scale * (held - line.center))
        products.append({line.attribute: distance})
    products += [{steps.attribute: np.array(steps.heights)} for steps in terms.steps]
    return products


def multiply(products: Sequence[Product], shares: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of each product of two columns under these shares."""
    size = len(products)
    moments = np.ones((size, size))
    for attribute, share in enumerate(shares):
        factors = np.ones((size, len(share)))
        for column, product in enumerate(products):
            if attribute in product:
                factors[column] = product[attribute]
        moments *= (factors * share) @ factors.T
    return moments
