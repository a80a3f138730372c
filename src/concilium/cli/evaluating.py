"""How `concilium run` measures a model: who is held back, the folds that leave hospitals out, ways side by side.

Finished folds are kept in the folder of the work in progress, so that a resumed run does not learn them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.cli.output import Tell
from concilium.cli.results import write_whole

if TYPE_CHECKING:
    from concilium.evaluation.leave_out import FoldResult
    from concilium.federation.card import Card
    from concilium.federation.house import House
    from concilium.federation.site import Site
    from concilium.records.table import Records, Value
    from concilium.study import Study


def hold_back(
    study: Study, tables: Mapping[str, Records], sites: Mapping[str, Site]
) -> tuple[Mapping[str, Site], dict[str, Records]]:
    """The sites as they learn, and the patients of each that are held back for evaluation (if any)."""
    from concilium.evaluation.leave_out import hold_out
    from concilium.federation.site import Site

    if study.evaluate is None or study.evaluate.holdout is None:
        return sites, {}
    learning, held_back = {}, {}
    for name, site in sites.items():
        held = hold_out(len(tables[name]), study.evaluate.holdout, study.name, name)
        # The ledger stays that of the whole table: holding patients back opens no new account.
        learns = tables[name].take(~held)
        study.refuse_identifier(name, learns, site.policy)
        learning[name] = Site(name, learns, site.policy, site.ledger, site.identity)
        held_back[name] = tables[name].take(held)
    return learning, held_back


def leave_out_together(
    study: Study,
    tables: Mapping[str, Records],
    sites: Mapping[str, Site],
    measure: Callable[..., FoldResult],
    workshop: Path,
    on_round: Tell,
) -> tuple[list[FoldResult], dict[str, Any]]:
    """The folds of leave-one-site-out or leave-one-band-out, learned in one conversation, and what that took."""
    import msgspec

    from concilium.evaluation.leave_out import Fold, FoldResult, deal_folds
    from concilium.evaluation.shared_folds import learn_folds

    assert study.evaluate is not None
    folds = deal_folds({name: len(table) for name, table in tables.items()}, study.evaluate.bands)
    kept = workshop / "folds.json"
    on_disk = any(hospital.ledger for hospital in study.hospitals)
    partners = sites if on_disk else study.open_sites(tables)
    if not kept.exists():

        def open_for(fold: Fold | None) -> House:
            place = f"{len(folds)} folds together" if fold is None else f"fold {folds.index(fold) + 1}"
            file = "folds.journal" if fold is None else f"fold-{folds.index(fold) + 1}.journal"
            members = [partners[name] for name in (partners if fold is None else fold.learn)]
            journal = workshop / file if on_disk else None
            return study.open_house(members, journal, lambda text: on_round(f"{place}, {text}"))

        begun = time.perf_counter()
        learned = learn_folds(study.open_method, folds, open_for)
        seconds = time.perf_counter() - begun
        took = describe_folds(learned.together, learned.card, seconds)
        results = []
        for fold, model in zip(folds, learned.models, strict=True):
            patients = widen({name: tables[name] for name in fold.left_out}, tables)
            result = measure(model, seconds / len(folds), patients, left_out=fold.left_out)
            # A fold that asked nothing itself has an equal share of what was exchanged for all.
            share = result.bytes or took["bytes"] // max(learned.together, 1)
            results.append(msgspec.structs.replace(result, bytes=share))
        write_whole(kept, msgspec.json.encode((results, took)))
    return msgspec.json.decode(kept.read_bytes(), type=tuple[list[FoldResult], dict[str, Any]])


def describe_folds(together: int, card: Card | None, seconds: float) -> dict[str, Any]:
    """What the conversation took in which folds were learned together, for metrics.json."""
    return {
        "together": together,
        "rounds": card.rounds if card else 0,
        "bytes": card.bytes if card else 0,
        "numbers": sum(release.numbers for release in card.releases) if card else 0,
        "seconds": round(seconds, 3),
    }


def compare_ways(
    study: Study,
    tables: Mapping[str, Records],
    results: list[FoldResult],
    classes: list[Value],
    positive: Value | None,
) -> dict[str, Any]:
    """Local, federated, pooled and donor models side by side, for metrics.json."""
    from concilium.evaluation.comparison import compare, learn_in_every_way

    federated = {outcome.site: outcome for result in results for outcome in result.outcomes}
    ways, donors = learn_in_every_way(
        study.open_method,
        tables,
        {site: federated[site] for site in tables},
        query=study.query,
        target=study.target,
        positive=positive,
        classes=classes,
        study=study.name,
    )
    return {**compare(ways, positive), "donors": donors}


def leave_out(
    study: Study,
    tables: Mapping[str, Records],
    sites: Mapping[str, Site],
    measure: Callable[..., FoldResult],
    workshop: Path,
    on_round: Tell,
) -> list[FoldResult]:
    """The folds where each must be learned and charged alone; a finished fold is kept and not run again."""
    import msgspec

    from concilium.evaluation.leave_out import FoldResult, deal_folds

    assert study.evaluate is not None
    folds = deal_folds({name: len(table) for name, table in tables.items()}, study.evaluate.bands)
    on_disk = any(hospital.ledger for hospital in study.hospitals)
    # Where no hospital keeps a ledger of its own, folds are charged in memory: thousands of charges that
    # nobody will read need not wait for the disk, and a fold is quickly run again.
    partners = sites if on_disk else study.open_sites(tables)
    results = []
    for number, fold in enumerate(folds, start=1):
        kept = workshop / f"fold-{number}.json"
        if not kept.exists():

            def tell_fold(text: str, place: str = f"fold {number} of {len(folds)}") -> None:
                on_round(f"{place}, {text}")

            journal = workshop / f"fold-{number}.journal" if on_disk else None
            house = study.open_house([partners[name] for name in fold.learn], journal, tell_fold)
            begun = time.perf_counter()
            model = study.open_method().fit(house)
            seconds = time.perf_counter() - begun
            patients = widen({name: tables[name] for name in fold.left_out}, tables)
            write_whole(kept, msgspec.json.encode(measure(model, seconds, patients, left_out=fold.left_out)))
        results.append(msgspec.json.decode(kept.read_bytes(), type=FoldResult))
    return results


def widen(patients: Mapping[str, Records], tables: Mapping[str, Records]) -> dict[str, Records]:
    """Patients to be predicted, with the columns that only other sites have as missing."""
    from concilium.evaluation.leave_out import complete

    names = {name for table in tables.values() for name in table.names}
    return {site: complete(table, sorted(names)) for site, table in patients.items()}
