"""Every hospital measured by a model of the others, through the gate: across machines, where nobody holds all records.

Under `exact` all folds are learned in one conversation (folds.py). Under `private` each is a study of its own, charged
as the model is. Then one study measures all of them (models/validation.py): its one question carries the model of each
fold, and a hospital counts its patients by the model that had no part of them. So a patient is in one cell of one
table, whatever the number of folds, and measuring is charged once. The sum over hospitals is the table of all patients;
under `exact` the house sees that of each. Bins are those of log odds, and the threshold is that of the model of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from concilium.evaluation.folds import learn_folds
from concilium.evaluation.leave_out import Fold
from concilium.models.measuring import RiskTable
from concilium.models.method import Method
from concilium.models.validation import Validation
from concilium.protocol.house import House


def measure_left_out(
    model: Method[Any],
    make: Callable[[], Method[Any]],
    open_house: Callable[[str, Fold | None], House],
    **how: Any,
) -> RiskTable:
    """Leave every hospital of a fitted model out in turn, learn by the same method from the others, and measure.

    `open_house` opens the house of a fold's sites, or of all (None), for the part of the work that is named: folds,
    fold-1, ..., validation. `how` is what `Validation.of` takes: positive, epsilon, delta, subgroups.
    """
    names = [site.name for site in model.card.sites]
    folds = [Fold((name,), tuple(other for other in names if other != name)) for name in names]
    if model.way_out.by_site:

        def open_fold(fold: Fold | None) -> House:
            return open_house("folds" if fold is None else f"fold-{folds.index(fold) + 1}", fold)

        models = learn_folds(make, folds, open_fold).models
    else:
        models = [make().fit(open_house(f"fold-{n}", fold)) for n, fold in enumerate(folds, start=1)]
    study = Validation.of(model, release=model.release, left_out=dict(zip(names, models, strict=True)), **how)
    return study.fit(open_house("validation", None)).body
