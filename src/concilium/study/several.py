"""Several methods in one study file, or one under several releases: each a study that hospitals agree to for itself, on
the same patients, and a table of them with what each costs, how much there is to read, and which to take.

Before anything is asked, every hospital must have room for all of them together. The pick is a stated rule. A method
that is not better than chance (the interval of its AUC includes a half) is never taken. One whose risks do not come
true (calibration slope outside 0.5 to 2) is taken only if there is no other. The rest go by the one standard error rule
(Breiman et al., Classification and Regression Trees, 1984, section 3.4.3): of the methods whose figure is within one
standard error of the best, the one whose model has the fewest lines to read; of those the one for which the hospitals
released the fewest numbers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.consult.report import render_methods
from concilium.errors import CannotResume, ConciliumError, HouseError, RunStopped, StudyError, StudyPending
from concilium.evaluation.alarms import find_reversed, is_miscalibrated, tells_nothing
from concilium.evaluation.metrics import FIGURE_HEAD
from concilium.models.intervals import WITHIN_95
from concilium.models.model_file import load
from concilium.models.pictures import Picture
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon
from concilium.study.planning import plan_several, refuse_unfit
from concilium.study.results import (
    StudyResults,
    WorkInProgress,
    describe_several,
    make_folder,
    publish_file,
    publish_folder,
    write_json,
    write_results,
    write_whole,
)
from concilium.study.running import conduct, require_ledgers
from concilium.study.sources import read_tables, read_test_file

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.protocol.card import Card
    from concilium.study.study import Study

Tell = Callable[[str], None]
"""A 95 % interval is so many standard errors wide."""


@dataclass(frozen=True)
class _Pick:
    """The method to take, and why; `method` is None where nothing was measured."""

    method: str | None
    why: str


@dataclass(frozen=True, repr=False)
class SeveralResults:
    """The results of every method by its name, a table of them, and which to take; `model`, `metrics` and `card` are
    those of the one to take (of the first, where nothing was measured)."""

    study: Study
    results: Mapping[str, StudyResults]
    pick: _Pick
    files: Mapping[str, Path] = field(default_factory=dict)

    def __repr__(self) -> str:
        pick = f"take {self.pick.method}" if self.pick.method else "nothing measured"
        return f"SeveralResults({self.study.name!r}, {', '.join(self.results)}; {pick})"

    def _repr_html_(self) -> str:
        """For notebooks: which method to take, and the figures of each."""
        from html import escape  # which a hospital's process needs not, as the next

        from concilium.statistics.results import draw_html

        said = f"<p>Take {escape(self.pick.method)}: {escape(self.pick.why)}.</p>" if self.pick.method else ""
        parts = "".join(
            f"<h5>{escape(method)}</h5>{draw_html([FIGURE_HEAD, *one.list_figures()])}"
            for method, one in self.results.items()
        )
        return f"<h4>{escape(self.study.name)}</h4>{said}{parts}"

    def plot(self) -> Picture:
        """The picture of the method to take."""
        return self.picked.plot()

    @property
    def picked(self) -> StudyResults:
        return self.results[self.pick.method or self.study.variant]

    @property
    def model(self) -> Method[Any]:
        return self.picked.model

    @property
    def card(self) -> Card:
        return self.picked.card

    @property
    def alarms(self) -> list[str]:
        """What must be looked into, of every method."""
        return [f"{method}: {alarm}" for method, one in self.results.items() for alarm in one.alarms]

    @property
    def differences(self) -> list[str]:
        """How hospitals' tables differ, of every method whose release shows no single hospital; each once."""
        return list(dict.fromkeys(one for result in self.results.values() for one in result.differences))

    @property
    def metrics(self) -> dict[str, Any]:
        """metrics.json: a row for each method, and the pick."""
        plan = plan_several(self.study.several)
        return {
            "study": self.study.name,
            "target": self.study.target,
            "evaluation": describe_several(self.study.several) + _say_absent(self.results),
            "primary": _find_primary(self.study),
            "methods": {method: _tabulate_row(one) for method, one in self.results.items()},
            "pick": self.pick.method,
            "why": self.pick.why,
            "epsilon": float(say_epsilon(epsilon_from_rho(plan.total, self.study.privacy.delta), digits=7))
            if all(one.way_out.bounded for one in self.study.several)
            else None,
        }

    def report(self) -> str:
        """The page report.html, which leads to that of every method."""
        return render_methods(self.metrics, self.study.query)


def run_several(
    study: Study, out: Path | None, resume: bool, on_progress: Tell | None, warn: Tell | None
) -> SeveralResults:
    """Conduct all of them, one after the other; given a folder, put results in place when all are there."""
    tell = on_progress or (lambda text: None)
    warn_once = say_once(warn)
    if not resume:
        refuse_unfit(study)
    if out is None:
        if resume:
            raise StudyError("a run is resumed by the folder its results go to; give 'out' as well")
        with tempfile.TemporaryDirectory() as folder:
            return conduct_all(study, WorkInProgress(Path(folder)), tell, warn_once, conduct, _bind_to_tables)
    work = WorkInProgress.beside(out, resume)
    with work.until_done(resume):
        try:
            results = conduct_all(study, work, tell, warn_once, conduct, _bind_to_tables)
        except StudyPending as pending:
            for one in (pending, *pending.others):
                require_ledgers(study, one.sites)
            raise
        files = publish_all(results, work.folder, out)
    return replace(results, files=files)


def say_once(warn: Tell | None) -> Tell:
    """Warn of each thing once: what is odd about tables is so for every method."""
    import warnings

    said: set[str] = set()

    def once(text: str) -> None:
        if text not in said:
            said.add(text)
            if warn is None:
                warnings.warn(text, stacklevel=2)
            else:
                warn(text)

    return once


def conduct_all(
    study: Study,
    work: WorkInProgress,
    tell: Tell,
    warn: Tell,
    learn: Callable[[Study, WorkInProgress, Tell, Tell], StudyResults],
    bind: Callable[[Study, WorkInProgress], object],
) -> SeveralResults:
    """Every method, each in a folder of its own: `learn` has hospitals asked, in this process or across machines. Those
    that are finished are not asked again (`bind` raises CannotResume where the study is another by now). Where a person
    must decide, the others are proposed as well, so that one sitting is enough."""
    results: dict[str, StudyResults] = {}
    pending: list[StudyPending] = []
    for one in study.several:
        own = WorkInProgress(work.folder / one.variant)
        own.folder.mkdir(exist_ok=True)
        rounds = 0

        def on_round(text: str, method: str = one.variant) -> None:
            nonlocal rounds
            rounds += 1
            tell(f"{method}: {text}")

        try:
            results[one.variant] = _recall_results(one, own, bind) or learn(one, own, on_round, warn)
        except StudyPending as waits:
            pending.append(waits)
            continue
        except CannotResume:
            raise
        except ConciliumError as error:
            # What finished methods asked is paid for, and their results are kept; so are rounds of one that can go on.
            stops = one.house.on_loss == "stop" or not one.way_out.begins_anew
            if results or (stops and rounds > 1 and isinstance(error, HouseError)):
                raise RunStopped(f"{one.variant}: {error}") from None
            raise
        write_results(results[one.variant], own.folder / "results")
    if pending:
        first, *others = pending
        raise StudyPending(first.study, first.sites, others)
    return SeveralResults(study, results, _choose(study, results))


def _bind_to_tables(study: Study, work: WorkInProgress) -> None:
    work.bind(study, [*read_tables(study).values(), *read_test_file(study).values()])


def _recall_results(
    study: Study, work: WorkInProgress, bind: Callable[[Study, WorkInProgress], object]
) -> StudyResults | None:
    """The results of a method that was finished before the run was interrupted."""
    folder = work.folder / "results"
    if not (folder / "report.html").exists():
        return None
    bind(study, work)
    metrics = json.loads((folder / "metrics.json").read_bytes())
    return StudyResults(study, load(folder / "model.json"), metrics, (folder / "terms.json").read_bytes())


def publish_all(results: SeveralResults, work: Path, out: Path) -> dict[str, Path]:
    """Each method's files in a folder named after it, and the table of them."""
    files: dict[str, Path] = {}
    make_folder(out)
    for method in results.results:
        placed = publish_folder(work / method / "results", out / method)
        files |= {f"{method}/{name}": place for name, place in placed.items()}
    write_json(work / "metrics.json", results.metrics)
    write_whole(work / "report.html", results.report().encode())
    for name in ("metrics.json", "report.html"):
        files[name] = publish_file(work / name, out / name)
    return files


def _say_absent(results: Mapping[str, StudyResults]) -> str:
    """Which methods were measured without a hospital that took part in others."""
    sites = {method: {site.name for site in one.card.sites} for method, one in results.items()}
    everyone = set().union(*sites.values())
    absent = [
        f"{method} without {_say_names(sorted(everyone - own))}"
        for method, own in sites.items()
        if everyone - own
    ]
    return f"; {', '.join(absent)}" if absent else ""


def _find_primary(study: Study) -> str:
    """The figure that methods are compared by."""
    return "rmse" if study.target_range is not None else "auc"


def _tabulate_row(results: StudyResults) -> dict[str, Any]:
    """What the table says of a method."""
    overall = results.metrics["overall"]
    figures = {
        key: value for key, value in overall.items() if key not in ("rounds", "bytes", "seconds", "epsilon")
    }
    risks = results.metrics.get("risks") or {}
    return {
        **figures,
        "brier": risks.get("brier"),
        "slope": risks.get("slope"),
        "slope_interval": risks.get("slope_interval"),
        "tells_risks": results.model.tells_risks,
        "alarms": list(results.card.alarms),
        "method": results.study.method,
        "release": results.study.release,
        "lines": _count_lines(results.model),
        "epsilon": overall["epsilon"],
        "numbers": sum(release.numbers for release in results.card.releases),
        "seconds": overall["seconds"],
        "study": results.card.study,
        **({"ways": _find_ways(results)} if "comparison" in results.metrics else {}),
    }


def _find_ways(results: StudyResults) -> dict[str, float | None]:
    """The figure that methods are compared by, of each way of learning, on the patients of whom all ways speak."""
    key = _find_primary(results.study)
    ways = results.metrics["comparison"]["ways"]
    return {way: row["same_patients"].get(key) for way, row in ways.items()}


def _count_lines(model: Method[Any]) -> int:
    """How much there is to read of a model: the lines of it as text."""
    return len(model.text().splitlines())


def _choose(study: Study, results: Mapping[str, StudyResults]) -> _Pick:
    """Which method to take: of those that tell patients apart and whose risks can be believed, by the one standard
    error rule."""
    key = _find_primary(study)
    rows = {method: _tabulate_row(one) for method, one in results.items()}
    measured = {method: row for method, row in rows.items() if row.get(key) is not None}
    if not measured:
        notes = [note for one in results.values() for note in one.metrics.get("notes", ())]
        return _Pick(None, f"nothing was measured: {notes[-1] if notes else 'give the study [evaluate]'}")
    telling = {method: row for method, row in measured.items() if key == "rmse" or not tells_nothing(row)}
    if not telling:
        return _Pick(
            None, f"none to take: of {_say_names(list(measured))} none is better than chance by its interval"
        )
    wrong = {method: find_reversed(results[method].metrics.get("sites") or {}) for method in telling}
    if all(wrong.values()):
        where = _say_names(sorted({site for sites in wrong.values() for site in sites}))
        return _Pick(
            None,
            f"none to take: patients of {where} are ranked the wrong way round; is the outcome inverted?",
        )
    telling = {method: row for method, row in telling.items() if not wrong[method]}
    believed = {
        method: row for method, row in telling.items() if not (row["tells_risks"] and is_miscalibrated(row))
    }
    taken, why = _choose_readable(believed or telling, key)
    unmeasured = [method for method in rows if method not in measured]
    return _Pick(taken, why + _say_passed_over(unmeasured, measured, wrong, telling, believed))


def _say_passed_over(
    unmeasured: Sequence[str],
    measured: Collection[str],
    wrong: Mapping[str, Collection[str]],
    telling: Collection[str],
    believed: Collection[str],
) -> str:
    """Which methods were not taken, for each reason."""
    why = f"; could not be measured: {_say_names(unmeasured)}" if unmeasured else ""
    if left := [method for method in measured if method not in wrong]:
        why += f"; cannot be told from chance: {_say_names(left)}"
    if left := [method for method, sites in wrong.items() if sites]:
        why += (
            f"; passed over for a hospital whose patients are ranked the wrong way round: {_say_names(left)}"
        )
    if believed and (left := [method for method in telling if method not in believed]):
        why += f"; passed over for a calibration slope outside 0.5 to 2: {_say_names(left)}"
    elif not believed:
        why += "; no method's risks come true (calibration slope outside 0.5 to 2): adapt it before use"
    return why


def _choose_readable(rows: Mapping[str, Mapping[str, Any]], key: str) -> tuple[str, str]:
    """The method with the least to read of those within one standard error of the best, and why."""
    sign = -1 if key == "rmse" else 1
    name = "RMSE" if key == "rmse" else "AUC"
    best = max(rows, key=lambda method: sign * rows[method][key])
    error = _find_error(rows[best], key)
    near = [m for m, row in rows.items() if sign * (rows[best][key] - row[key]) <= error]
    taken = min(near, key=lambda method: (rows[method]["lines"], rows[method]["numbers"]))
    lines = f"{rows[taken]['lines']} lines to read"
    figure = f"{rows[best][key]:.3f}"
    if len(rows) == 1:
        return (
            taken,
            f"its {name} is {figure} (standard error {error:.3f}), and no other can be taken; {lines}",
        )
    if taken == best and len(near) == 1:
        return (
            taken,
            f"its {name} is the best, {figure}, by more than one standard error ({error:.3f}); {lines}",
        )
    if taken == best:
        return taken, (
            f"its {name} is the best, {figure}, and of those within one standard error ({error:.3f}) of it "
            f"({_say_names(near)}) it has the least to read: {lines}"
        )
    return taken, (
        f"its {name}, {rows[taken][key]:.3f}, is within one standard error ({error:.3f}) of the best "
        f"({best}, {figure}), and it has the least to read of {_say_names(near)}: {lines}"
    )


def _find_error(row: Mapping[str, Any], key: str) -> float:
    """The standard error of a figure, by its interval; 0 where that is not known."""
    known = (row.get("intervals") or {}).get(key)
    return 0.0 if known is None else float(known[1] - known[0]) / (2 * WITHIN_95)


def _say_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
