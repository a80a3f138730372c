"""What a hospital's own patients alone can teach: its model, cross-validated inside it (docs/methods.md, section 1.14).

Nothing leaves the hospital, so nothing is withheld from it and no ledger is charged that anybody keeps. Like all of
evaluation this is a simulation's privilege here; between real hospitals each would do it at home.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.evaluation.folds import M, learn_folds
from concilium.evaluation.leave_out import (
    Fold,
    Predictions,
    find_column,
    leave_sites_out,
    predict_at,
    select_patients,
)
from concilium.models.recalibration import adapt_shares, fit_classes, fit_numbers, move_decision
from concilium.models.threshold import choose
from concilium.policy.policy import Policy, WorkLimits
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.columns import Coded, Value, label
from concilium.records.table import Records

FOLDS = 10
AS_ANYWHERE = WorkLimits()


def _open_at_home(name: str, records: Records, work: WorkLimits = AS_ANYWHERE) -> Site:
    """A site that tells its own hospital everything."""
    policy = Policy(minimum_patients=0, differencing=False, allow=records.names, work=work)
    return Site(name, records, policy, division_key=SIMULATION_KEY)


def fit_alone(make: Callable[[], M], site: str, records: Records) -> M:
    """The model of one hospital's patients."""
    return make().fit(House([_open_at_home(site, records)]))


def _deal_patients(
    outcomes: Sequence[Value | None], folds: int, site: str, division: str = ""
) -> NDArray[np.intp]:
    """For each patient the fold that predicts him: class by class, in the order of the SHA-256 of division, site and
    row, dealt like cards. So folds are of like size and mixture, and the same whatever the study is called."""
    order = sorted(
        range(len(outcomes)),
        key=lambda row: (
            label(outcomes[row]),
            hashlib.sha256(f"{division}\n{site}\n{row}".encode()).digest(),
        ),
    )
    fold_of = np.empty(len(outcomes), dtype=np.intp)
    fold_of[order] = np.arange(len(outcomes)) % folds
    return fold_of


def cross_validate(
    make: Callable[[], M],
    site: str,
    records: Records,
    *,
    classes: Sequence[Value],
    division: str = "",
    folds: int = FOLDS,
    work: WorkLimits = AS_ANYWHERE,
) -> Predictions | None:
    """What a hospital's own models say of its own patients, each predicted by a model of the other nine tenths.

    None where there are fewer patients than folds: such a hospital has no model of its own to speak of. `work` is what
    learning may take at each of the sites, as many as folds, that hold its patients meanwhile.
    """
    method = make()
    patients = select_patients(method, records)
    if len(patients) < folds:
        return None
    fold_of = _deal_patients(patients.values(method.target), folds, site, division)
    parts = {f"part {number}": patients.take(fold_of == number) for number in range(folds)}
    at_home = {name: _open_at_home(name, part, work) for name, part in parts.items()}

    def open_house(fold: Fold | None) -> House:
        if fold is None:
            return House(list(at_home.values()))
        # What cannot share a conversation learns from one table: rules made of a tenth are not the hospital's own.
        rest = patients.take(fold_of != list(parts).index(fold.left_out[0]))
        return House([_open_at_home(site, rest, work)])

    splits = leave_sites_out({name: len(part) for name, part in parts.items()})
    fold_models = learn_folds(make, splits, open_house)
    predictions = [
        predict_at(site, model, parts[split.left_out[0]], classes)
        for split, model in zip(splits, fold_models.models, strict=True)
    ]
    return join(site, predictions)


def adapt_in_folds(said: Predictions, *, division: str = "", learned_from: bool = False) -> Predictions:
    """What a model that a hospital received says of its patients once it is adapted there, each patient predicted by
    what was fitted to the other nine tenths; where these are too few, the model stays as it is."""
    if len(said.truth) < FOLDS:
        return said
    fold_of = _deal_patients(said.truth, FOLDS, said.site, division)
    if not said.classes:
        received, truth = (np.array([float(v) for v in values]) for values in (said.predicted, said.truth))
        numbers = received.copy()
        for number in range(FOLDS):
            fitted = fit_numbers(
                received[fold_of != number], truth[fold_of != number], learned_from=learned_from
            )
            out = fold_of == number
            numbers[out] = fitted.shifts[0] + fitted.slope * received[out]
        return msgspec.structs.replace(said, predicted=numbers.tolist())
    shares = np.array(said.soft or said.probabilities)
    place = find_column(said.classes)
    classes = np.array([place(value) for value in said.truth], dtype=np.intp)
    adapted, called = np.array(said.probabilities), classes.copy()
    for number in range(FOLDS):
        rest, out = fold_of != number, fold_of == number
        fitted = fit_classes(shares[rest], classes[rest], learned_from=learned_from)
        shifts = np.array(fitted.shifts)
        if fitted.changes:
            adapted[out] = adapt_shares(shares[out], shifts, fitted.slope)
        decided = move_decision(said.decided, said.classes, shifts, fitted.slope)
        called[out] = choose(adapted[out], said.classes, decided)
    predicted = [said.classes[best] for best in called.tolist()]
    return msgspec.structs.replace(said, predicted=predicted, probabilities=adapted.tolist())


def join(site: str, predictions: Sequence[Predictions]) -> Predictions:
    """What was said of several groups of one site's patients, as one."""
    return Predictions(
        site=site,
        classes=predictions[0].classes,
        truth=[value for at_site in predictions for value in at_site.truth],
        predicted=[value for at_site in predictions for value in at_site.predicted],
        probabilities=[row for at_site in predictions for row in at_site.probabilities],
    )


def pool(tables: Mapping[str, Records]) -> Records:
    """All patients in one table, with the columns that every site has: what no house ever holds."""
    first, *others = tables.values()
    names = [name for name in first.names if all(name in table for table in others)]
    rows = [
        dict(zip(names, row, strict=True))
        for table in tables.values()
        for row in zip(*(table.values(name) for name in names), strict=True)
    ]
    kinds = {name: [table[name] for table in tables.values()] for name in names}
    schema = {name: "number" for name, kind in kinds.items() if not any(isinstance(c, Coded) for c in kind)}
    schema |= {
        name: "code" for name, kind in kinds.items() if any(isinstance(c, Coded) and c.stated for c in kind)
    }
    return Records.from_rows(rows, schema=schema)
