"""Donors at the hospitals of a study file: the ranking, the loan, and how the lent model does (evaluation/donors.py).

Each step is a study of its own, to which hospitals agree as to any other: the ranking is proposed to all of them, the
loan to the donor alone, the measuring to the borrower alone. Only the ranking may have a price. A donor that does not
lend is passed over for the next. Work in progress is kept as that of a run, so that a person of the donor's hospital
may take days to agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from concilium.errors import HouseError, StudyError, StudyPending, nearest
from concilium.evaluation.comparison import estimate_difference
from concilium.evaluation.donors import OwnModels, Ranking
from concilium.evaluation.risk_tables import summarise_table
from concilium.models.method import Method
from concilium.models.validation import Validation
from concilium.privacy.accounting import PlannedQuestion
from concilium.protocol.terms import MEASURED, MOST_PURPOSE
from concilium.records.columns import Value, label
from concilium.study.planning import plan_proposal, refuse_proposal
from concilium.study.results import WorkInProgress, make_folder, write_json
from concilium.study.running import require_ledgers
from concilium.study.sources import open_house, open_sites, read_tables

if TYPE_CHECKING:
    from concilium.models.measuring import RiskTable
    from concilium.protocol.site import Site
    from concilium.records.columns import Value
    from concilium.study.planning import StudyPlan
    from concilium.study.study import Study

Tell = Callable[[str], None]


@dataclass(frozen=True)
class _DonorResults:
    """Who may lend, who borrows from whom, and how the borrowed model does there; `metrics` has all of it."""

    study: Study
    ranked: OwnModels
    ranking: Ranking
    models: dict[str, Method[Any]] = field(default_factory=dict)
    borrowers: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, Any]:
        """All of it as plain JSON values; `interval`: of the error of borrowers' own models above lent ones."""
        weights = {donor.site: donor.weight for donor in self.ranking.donors}  # best first
        ranks = {site: rank for rank, site in enumerate(weights)}
        candidates = sorted(
            self.ranking.candidates, key=lambda one: (ranks.get(one.site, len(ranks)), one.site)
        )
        return {
            "study": self.study.name,
            "method": self.study.method,
            "target": self.study.target,
            "positive": self.ranked.positive,
            "release": self.study.release,
            "rho": float(self.ranked.plan().total) or None,
            "accuracy": self.ranking.threshold,
            "hospitals": [
                {**msgspec.to_builtins(one), "weight": weights.get(one.site)} for one in candidates
            ],
            "noise": self.ranked.deviations or None,
            "borrowers": self.borrowers,
            "interval": self._contrast(),
            "models": {donor: f"model-{place}.json" for place, donor in enumerate(self.models, start=1)},
            "notes": self.notes,
        }

    def _contrast(self) -> dict[str, Any] | None:
        both = [
            row for row in self.borrowers.values() if row.get("patients") and row.get("own_wrong") is not None
        ]
        if len(both) < 2:
            return None
        differences = [
            row["own_wrong"] / row["own_patients"] - row["wrong"] / row["patients"] for row in both
        ]
        interval = estimate_difference(differences, [row["patients"] for row in both])
        return {**msgspec.to_builtins(interval), "significant": interval.significant}

    def write(self, out: Path) -> None:
        """donors.json, and the file of every model that was lent, in a folder."""
        make_folder(out)
        metrics = self.metrics
        for donor, name in metrics["models"].items():
            self.models[donor].save(out / name)
        write_json(out / "donors.json", metrics)


def plan_donors(study: Study) -> StudyPlan:
    """What the ranking asks of every hospital and costs there, and what is asked after it of some."""
    ranked = _open_ranking(study)
    loan = ranked.open_learner()
    after = [
        PlannedQuestion(one.kind, None, f"of the donor alone, exact: {one.note}".rstrip(": "))
        for one in loan.plan().questions
    ]
    if not study.way_out.bounded:
        after.append(
            PlannedQuestion(MEASURED, None, "of each borrower alone, exact: predicted risk x outcome")
        )
    return plan_proposal(study, ranked, after)


def find_donors(
    study: Study, out: Path | None = None, *, resume: bool = False, on_progress: Tell | None = None
) -> _DonorResults:
    """Rank the hospitals of a study, have the best lend its model to the others, and measure it there."""
    ranked = _open_ranking(study)
    if not resume:
        refuse_proposal(study, ranked)
    tables = read_tables(study)
    borrowers = study.donors.borrowers
    for name in borrowers or ():
        if name not in tables:
            raise StudyError(
                f"{study.path}: [donors] borrowers names {name!r}, which is no hospital{nearest(name, tables)}"
            )
    with _open_work(out, resume) as work:
        work.bind(study, tables.values())
        sites = open_sites(study, tables, spare=work.folder)
        try:
            loans = _Loans(study, sites, work, on_progress or (lambda text: None))
            results = loans.arrange(ranked, borrowers)
        except StudyPending as pending:
            require_ledgers(study, pending.sites)
            raise
        finally:
            for site in sites.values():
                site.ledger.close()
        if out is not None:
            results.write(out)
    return results


@contextmanager
def _open_work(out: Path | None, resume: bool) -> Iterator[WorkInProgress]:
    """The work of a run to a folder; without one, work that is forgotten."""
    if out is not None:
        work = WorkInProgress.beside(out, resume)
        with work.until_done(resume):
            yield work
        return
    if resume:
        raise StudyError("a run is resumed by the folder its results go to; give 'out' as well")
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield WorkInProgress(Path(folder))
        except StudyPending as pending:
            raise HouseError(
                f"study {pending.study[:12]} waits for {', '.join(pending.sites)} to agree, and a run without a folder "
                "is forgotten: run it to a folder"
            ) from None


@dataclass(frozen=True)
class _Loans:
    """The three kinds of study, over the sites of one file."""

    study: Study
    sites: Mapping[str, Site]
    work: WorkInProgress
    tell: Tell

    def arrange(self, ranked: OwnModels, borrowers: tuple[str, ...] | None) -> _DonorResults:
        """All of them, one after the other."""
        self._propose(ranked, self.sites.values(), "ranking", "how well each hospital's own model does")
        ranking = ranked.rank(self.study.donors.accuracy)
        donors = ranking.others()
        results = _DonorResults(self.study, ranked, ranking)
        results.notes.extend(f"{one.site}: {one.reason}" for one in ranked.card.refusals)
        if borrowers is None:
            borrowers = tuple(name for name in self.sites if name not in donors)
        for name in borrowers:
            own = ranked.body.sites.get(name) if ranked.blocks is None else None
            row: dict[str, Any] = {"donor": None}
            if own and own[0]:
                row |= {"own_patients": own[0], "own_wrong": own[0] - own[1]}
            results.borrowers[name] = row
            donor = next((one for one in ranking.others(name) if self._lends(one, ranked, results)), None)
            if donor is None:
                row["why"] = (
                    ranking.why_none(name) if not ranking.others(name) else "no donor lends its model"
                )
                continue
            row["donor"] = donor
            if ranked.blocks is None:
                row |= self._measure(results.models[donor], name, ranked.positive, results.notes)
        return results

    def _lends(self, donor: str, ranked: OwnModels, results: _DonorResults) -> bool:
        """Whether a hospital lends its model, which is asked for once."""
        refused = f"{donor}: does not lend its model"
        if donor in results.models or any(note.startswith(refused) for note in results.notes):
            return donor in results.models
        if ranked.blocks is None and not ranked.body.sites[donor][2]:
            results.notes.append(
                f"{refused} (no patient there has {ranked.target} = {label(ranked.positive)}: is it coded otherwise?)"
            )
            return False
        learner = ranked.open_learner()
        purpose = "to lend this hospital's own model to other hospitals of the study"
        try:
            self._propose(learner, [self.sites[donor]], f"loan-{self._place(donor)}", purpose)
        except StudyPending:
            raise
        except HouseError as error:
            results.notes.append(f"{refused} ({error})")
            return False
        results.models[donor] = learner
        return True

    def _measure(
        self, model: Method[Any], borrower: str, positive: Value, notes: list[str]
    ) -> dict[str, Any]:
        """How a lent model does at a hospital."""
        measuring = Validation.of(model, positive=positive)
        purpose = "how a model that another hospital lends does here"
        try:
            self._propose(measuring, [self.sites[borrower]], f"measuring-{self._place(borrower)}", purpose)
        except StudyPending:
            raise
        except HouseError as error:
            notes.append(f"{borrower}: the model could not be measured there ({error})")
            return {}
        overall = summarise_table(measuring.body)["overall"]
        patients = sum(map(sum, measuring.body.counts))
        return {"patients": patients, "wrong": _count_wrong(measuring.body), "auc": overall["auc"]}

    def _propose(self, proposal: Any, sites: Any, name: str, purpose: str) -> None:
        house = open_house(
            self.study, sites, self.work.journal(name), lambda text: self.tell(f"{name}, {text}")
        )
        house.purpose = f"{purpose}: {self.study.aim}"[:MOST_PURPOSE]
        proposal.fit(house)

    def _place(self, site: str) -> int:
        return list(self.sites).index(site) + 1


def _count_wrong(table: RiskTable) -> int:
    """How many patients a table says are wrongly called, at the threshold."""
    cells = enumerate(table.counts)
    return round(sum(counts[0] if place >= table.called else counts[1] for place, counts in cells))


def _find_positive(study: Study) -> Value:
    """The class of positive patients: as stated, or the second of two."""
    if study.positive is not None:
        return study.positive
    stated = study.values.get(study.target, ())
    if len(stated) != 2:
        raise StudyError(f"{study.path}: donors are ranked by positive patients: give [study] positive")
    return stated[1]


def _open_ranking(study: Study) -> OwnModels:
    """The ranking that a study file asks for; StudyError where it cannot be."""
    if study.several:
        raise StudyError(f"{study.path}: donors lend models of one method: name one under [study] method")
    if not (study.way_out.by_site or study.way_out.bounded):
        raise StudyError(
            f"{study.path}: donors are ranked by each hospital's own figures, which {study.release!r} does not show: "
            'write release = "exact", or "private" with an epsilon, under [privacy]'
        )
    method, blocks = study.open_method(), study.donors.blocks
    positive = _find_positive(study)
    if study.way_out.bounded and blocks is None:
        raise StudyError(
            f"{study.path}: noisy figures of hospitals' own models are means over blocks of patients: give [donors] "
            "blocks, such as 50 (each block should have a hundred patients or more)"
        )
    if not study.way_out.bounded and blocks is not None:
        raise StudyError(f'{study.path}: [donors] blocks goes with release = "private" only')
    epsilon = None if not study.way_out.bounded else str(study.privacy.epsilon)
    try:
        return OwnModels.of(method, positive=positive, epsilon=epsilon, blocks=blocks)
    except StudyError as error:
        raise StudyError(f"{study.path}: {error}") from None
