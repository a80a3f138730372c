"""How a study measures its model: who is held back, the folds that leave hospitals out, ways of learning side by side.

Finished folds are kept with the work in progress, so that a resumed run does not learn them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from concilium.errors import StudyError
from concilium.evaluation.comparison import compare, learn_alone_and_pooled, learn_in_every_way, tally
from concilium.evaluation.folds import learn_folds, measure_left_out
from concilium.evaluation.leave_out import Fold, FoldResult, complete, deal_folds, hold_out
from concilium.models.measuring import RiskTable, learn_and_measure
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.site import Site
from concilium.records.columns import Value
from concilium.records.patients import Patients
from concilium.records.table import Records
from concilium.study.results import WorkInProgress
from concilium.study.sources import open_house, open_sites

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.study.study import Study

P = TypeVar("P", Records, Patients)
Tables = Mapping[str, Records]
OpenFold = Callable[[Fold | None], House]
Measure = Callable[..., FoldResult]


def hold_back(study: Study, tables: Mapping[str, P]) -> tuple[Mapping[str, P], Mapping[str, P]]:
    """Every site's patients to learn from, and those held back for evaluation: nobody without `holdout`."""
    if study.evaluate is None or study.evaluate.holdout is None or study.measures_at_gate:
        return tables, {}
    share = study.evaluate.holdout
    masks = {site: hold_out(len(table), share, site) for site, table in tables.items()}
    return (
        {site: table.take(~masks[site]) for site, table in tables.items()},
        {site: table.take(masks[site]) for site, table in tables.items()},
    )


def learn_through_gate(
    study: Study, house: House, method: Method[Any], work: WorkInProgress
) -> tuple[Method[Any], RiskTable | None]:
    """The model of all hospitals, and what they measured of it through their gates, if they do."""
    evaluation = study.find_evaluation()
    house.total, house.after = study.price_from_here, study.following
    if evaluation is None:
        return method.fit(house), None
    if evaluation.holdout is not None:
        return method, learn_and_measure(method, house, evaluation)
    assert study.evaluate is not None
    house.spare = 1
    model = method.fit(house)
    everyone = [site.name for site in model.card.sites]

    def open_part(name: str, fold: Fold | None) -> House:
        return house.limit(everyone if fold is None else fold.learn, work.journal(name))

    how: dict[str, Any] = {"positive": study.positive, "subgroups": evaluation.subgroups}
    if evaluation.rho is not None:
        how |= {"epsilon": str(study.evaluate.epsilon), "delta": study.privacy.delta}
    return model, measure_left_out(model, study.open_method, open_part, **how)


def leave_out(
    study: Study,
    tables: Tables,
    sites: Mapping[str, Site],
    measure: Measure,
    work: WorkInProgress,
    on_round: Callable[[str], None],
) -> tuple[list[FoldResult], dict[str, Any] | None]:
    """Every site or band of sites left out in turn; and what that took, where folds shared a conversation."""
    assert study.evaluate is not None
    folds = deal_folds({name: len(table) for name, table in tables.items()}, study.evaluate.bands)
    on_disk = any(hospital.ledger for hospital in study.hospitals)
    # Where no hospital keeps a ledger of its own, folds are charged in memory: thousands of charges that
    # nobody will read need not wait for the disk, and a fold is quickly run again.
    partners = sites if on_disk else open_sites(study, tables)

    def open_fold(fold: Fold | None) -> House:
        number = 0 if fold is None else folds.index(fold) + 1
        place = f"fold {number} of {len(folds)}" if number else f"{len(folds)} folds together"
        members = [partners[name] for name in (partners if fold is None else fold.learn)]
        journal = work.journal(f"fold-{number}" if number else "folds") if on_disk else None
        return open_house(study, members, journal, lambda text: on_round(f"{place}, {text}"))

    if study.way_out.by_site:
        return _learn_together(study, folds, open_fold, tables, measure, work)
    return _learn_one_by_one(study, folds, open_fold, tables, measure, work), None


def _learn_together(
    study: Study,
    folds: Sequence[Fold],
    open_fold: OpenFold,
    tables: Tables,
    measure: Measure,
    work: WorkInProgress,
) -> tuple[list[FoldResult], dict[str, Any]]:
    """The folds learned in one conversation, and what that took."""
    previous = work.recall("folds", tuple[list[FoldResult], dict[str, Any]])
    if previous is not None:
        return previous
    start = time.perf_counter()
    fold_models = learn_folds(study.open_method, folds, open_fold)
    seconds = time.perf_counter() - start
    took = _describe_folds(fold_models.together, fold_models.card, seconds)
    results = []
    for fold, model in zip(folds, fold_models.models, strict=True):
        patients = widen({name: tables[name] for name in fold.left_out}, tables.values())
        result = measure(model, seconds / len(folds), patients, left_out=fold.left_out)
        # A fold that asked nothing itself has an equal share of what was exchanged for all.
        share = result.bytes or took["bytes"] // max(fold_models.together, 1)
        results.append(msgspec.structs.replace(result, bytes=share))
    work.keep("folds", (results, took))
    return results, took


def _learn_one_by_one(
    study: Study,
    folds: Sequence[Fold],
    open_fold: OpenFold,
    tables: Tables,
    measure: Measure,
    work: WorkInProgress,
) -> list[FoldResult]:
    """The folds where each must be learned and charged alone; a finished fold is kept and not run again."""
    results = []
    for number, fold in enumerate(folds, start=1):
        result = work.recall(f"fold-{number}", FoldResult)
        if result is None:
            house = open_fold(fold)
            start = time.perf_counter()
            model = study.open_method().fit(house)
            seconds = time.perf_counter() - start
            patients = widen({name: tables[name] for name in fold.left_out}, tables.values())
            result = measure(model, seconds, patients, left_out=fold.left_out)
            work.keep(f"fold-{number}", result)
        results.append(result)
    return results


def _describe_folds(together: int, card: Card | None, seconds: float) -> dict[str, Any]:
    """What the conversation took in which folds were learned together, for metrics.json."""
    return {
        "together": together,
        "rounds": card.rounds if card else 0,
        "bytes": card.bytes if card else 0,
        "numbers": sum(release.numbers for release in card.releases) if card else 0,
        "seconds": round(seconds, 3),
    }


def widen(patients: Tables, tables: Iterable[Records]) -> dict[str, Records]:
    """Patients to be predicted, with the columns that only other sites have as missing."""
    names = sorted({name for table in tables for name in table.names})
    return {site: complete(table, names) for site, table in patients.items()}


def compare_ways(
    study: Study,
    tables: Tables,
    results: Sequence[FoldResult],
    classes: list[Value],
    positive: Value | None,
) -> dict[str, Any]:
    """Local, federated, pooled and donor models side by side, for metrics.json."""
    federated = {at_site.site: at_site for result in results for at_site in result.predictions}
    ways, donors = learn_in_every_way(
        study.open_method,
        tables,
        {site: federated[site] for site in tables},
        positive=positive,
        classes=classes,
    )
    return {**compare(ways, positive), "donors": donors}


def compare_held_back(study: Study, tables: Tables) -> tuple[dict[str, dict[str, Any]], Method[Any]]:
    """What models of each hospital alone (`local`) and of one table (`pooled`) are worth on the patients whom the study
    holds back, as figures beside those of its own model; and the pooled model."""
    rest, held_back = hold_back(study, tables)
    if not held_back or not study.way_out.by_site:
        raise StudyError(
            f"{study.path}: what hospitals learn alone is compared on patients held back: it goes with [evaluate] "
            'holdout and release = "exact" only'
        )
    classes = study.find_classes(tables.values())
    ways, pooled_model = learn_alone_and_pooled(
        study.open_method,
        rest,
        widen(held_back, tables.values()),
        classes,
    )
    positive = study.find_positive(classes)
    return {way: tally(list(by_site.values()), positive) for way, by_site in ways.items()}, pooled_model
