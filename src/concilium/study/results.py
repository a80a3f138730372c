"""What a run leaves: the model, figures under plain names, and files in full or not at all; and what it keeps until
then.

Work in progress is finished rounds (journals), finished folds, and ledgers of hospitals that name none; an interrupted
run goes on from it. Protects: the hospitals' budgets, from being charged twice for one study. The folder follows from
the path of the results alone, whatever folders exist, and nothing is resumed where there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from concilium.errors import CannotResume, ConciliumError, RunStopped, StudyError, StudyPending
from concilium.evaluation.alarms import find_alarms
from concilium.evaluation.drift import describe_performance
from concilium.evaluation.metrics import FIGURE_HEAD, FIGURES, NUMBER_FIGURES, list_figures
from concilium.evaluation.risk_tables import find_untold
from concilium.models.follow_up import FollowUp
from concilium.models.pictures import Picture
from concilium.models.threshold import Decided
from concilium.privacy.accounting import epsilon_from_rho, say_epsilon
from concilium.protocol.journal import Journal
from concilium.protocol.terms import name_study
from concilium.records.patients import Patients
from concilium.study.planning import count_models, plan_questions, price_study

if TYPE_CHECKING:
    from concilium.models.measuring import RiskTable
    from concilium.models.method import Method
    from concilium.protocol.card import Card
    from concilium.records.columns import Value
    from concilium.records.table import Records
    from concilium.study.sections import Evaluate
    from concilium.study.study import Study


T = TypeVar("T")


@dataclass(frozen=True)
class WorkInProgress:
    """A folder of work that is not finished."""

    folder: Path
    made: tuple[Path, ...] = ()

    @classmethod
    def beside(cls, out: Path, resume: bool) -> WorkInProgress:
        """Open the work of a run to `out`, hidden beside it: fresh, or what is there; CannotResume if nothing is."""
        out = Path(os.path.abspath(out))  # noqa: PTH100, a link that is made meanwhile must change nothing
        if out.exists() and not out.is_dir():
            raise StudyError(f"{out}: is a file; results go to a folder")
        folder = out.with_name(f".{out.name}.partial")
        if resume and not folder.is_dir():
            raise CannotResume(
                f"{out}: there is no work in progress for this folder, so there is nothing to go on with"
            )
        work = cls(folder, tuple(parent for parent in out.parents if not parent.exists()))
        try:
            if not resume and folder.exists():
                work.discard()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(f"{out.parent}: cannot be written to ({error.strerror})") from None
        return work

    @contextlib.contextmanager
    def until_done(self, resume: bool) -> Iterator[None]:
        """Discard the work once the results are in place, or where an error would come out the same again. It is kept
        for a run that can go on: one that was interrupted, whose house stopped, or that waits for people to agree; and
        for one that was resumed, since what people have agreed to is not thrown away."""
        try:
            yield
        except (StudyPending, RunStopped):
            raise
        except ConciliumError:
            if not resume:
                self.discard()
            raise
        self.discard()

    def discard(self) -> None:
        """Delete the work, renamed first so that a kill leaves no half of it, and folders made for it alone."""
        rest = self.folder.with_name(f"{self.folder.name}.old")
        if rest.exists():
            shutil.rmtree(rest)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)
        for folder in self.made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def bind(self, study: Study, tables: Iterable[Records | Patients]) -> None:
        """Tie the work to this study and these patients, so that only the same can resume it."""
        lines = [
            study.digest,
            *(table.digest if isinstance(table, Patients) else table.digest_in_order for table in tables),
        ]
        mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        path = self.folder / "study.sha256"
        if path.exists() and path.read_text() != mark:
            raise CannotResume(
                f"{study.path}: the study or its records have changed since the run that was interrupted"
            )
        write_whole(path, mark.encode())

    def journal(self, name: str) -> Path:
        """Where a conversation's finished rounds are kept."""
        return self.folder / f"{name}.journal"

    def keep(self, name: str, value: object) -> None:
        write_whole(self.folder / f"{name}.json", msgspec.json.encode(value))

    def recall(self, name: str, kind: type[T]) -> T | None:
        """What was kept under a name; None where nothing was."""
        path = self.folder / f"{name}.json"
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def make_folder(folder: Path) -> None:
    """A folder for results, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written to ({error.strerror})") from None


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


TAKEN = ("left_out", "rounds", "bytes", "seconds")  # what a fold took, apart from its figures
# All files that a run may leave; `tree.svg` only where the model is one picture, `table.csv` where it is a table.
RESULTS = ("model.json", "metrics.json", "card.json", "terms.json", "tree.svg", "table.csv", "report.html")


@dataclass(frozen=True, repr=False)
class StudyResults:
    """A study's fitted model with its figures, and the terms that hospitals agreed to, byte for byte (their hash is the
    study's id on the card); `files` are those written, by name: none where no folder was given. `differences` are how
    hospitals' tables differ as mistakes do, where the release shows no single hospital: they are for whoever ran this
    simulation, who has the tables, and stand in no file."""

    study: Study
    model: Method[Any]
    metrics: dict[str, Any]
    terms: bytes
    files: Mapping[str, Path] = field(default_factory=dict)
    differences: Sequence[str] = ()

    @property
    def card(self) -> Card:
        """Sites, rounds, bytes, releases with their cost, refusals, dropouts, warnings."""
        return self.model.card

    @property
    def alarms(self) -> list[str]:
        """What must be looked into before anybody believes the model."""
        return list(self.card.alarms)

    def list_figures(self) -> list[tuple[str, str, str]]:
        """The figures that were measured, each with its interval."""
        names = NUMBER_FIGURES if "range" in self.metrics else FIGURES
        return list_figures(self.metrics.get("overall", {}), names)

    def __repr__(self) -> str:
        figures = "".join(f", {name}={value}" for name, value, _ in self.list_figures()[:3])
        return f"StudyResults({self.study.name!r}, {self.study.method}{figures}, {len(self.files)} files)"

    def _repr_html_(self) -> str:
        """For notebooks: what to look into first, the figures, the model."""
        # As in `report`: a hospital's process needs none of this.
        from html import escape

        from concilium.statistics.results import draw_html

        alarms = "".join(f"<li><b>{escape(one)}</b></li>" for one in self.alarms)
        rows = [FIGURE_HEAD, *self.list_figures()]
        figures = draw_html(rows) if len(rows) > 1 else "<p>Not evaluated.</p>"
        return f"<h4>{escape(self.study.name)}</h4><ul>{alarms}</ul>{figures}{self.model._repr_html_()}"

    def plot(self) -> Picture:
        """One picture (SVG, which notebooks draw): the ROC curve of held-out patients, or else the model."""
        if risks := self.metrics.get("risks"):
            from concilium.consult.report import draw_risks

            drawn = draw_risks(risks, f"{self.metrics['target']} = {self.metrics['positive']}")
            for picture in drawn.values():
                return Picture(picture)
        return self.model.plot()

    def report(self) -> str:
        """The page report.html."""
        # Jinja2 is loaded for a report only; a hospital's process imports this module and writes none.
        from concilium.consult.report import render_report

        return render_report(
            metrics=self.metrics,
            card=self.card.to_dict(),
            drawing=self.model.text(),
            query=self.study.query,
            pictures=self.model.pictures(),
            table=self.model.rows(),
        )


def write_results(results: StudyResults, folder: Path) -> None:
    """All files in a folder of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    results.model.save(folder / "model.json")
    write_json(folder / "metrics.json", results.metrics)
    write_json(folder / "card.json", results.card.to_dict())
    write_whole(folder / "terms.json", results.terms)
    if set(pictures := results.model.pictures(whole=True)) == {"tree"}:
        write_whole(folder / "tree.svg", pictures["tree"].encode())
    if table := results.model.to_csv():
        write_whole(folder / "table.csv", table.encode())
    write_whole(folder / "report.html", results.report().encode())


def encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_json(path: Path, value: Any) -> None:
    write_whole(path, encode_json(value))


def publish_folder(folder: Path, out: Path) -> dict[str, Path]:
    """Put finished results in place; other files of an existing folder are left alone."""
    names = [name for name in RESULTS if (folder / name).exists()]
    try:
        if out.exists():
            for name in RESULTS:
                if name in names:
                    (folder / name).replace(out / name)
                else:
                    (out / name).unlink(missing_ok=True)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None
    return {name: out / name for name in names}


def publish_file(path: Path, out: Path) -> Path:
    """Put one finished file in place."""
    try:
        return path.replace(out)
    except OSError as error:
        raise StudyError(f"{out}: cannot be written ({error.strerror})") from None


def find_terms(journal: Path, study: str) -> bytes:
    """The terms of a study as they were proposed, byte for byte."""
    notes = Journal(journal)
    try:
        return next(note for note in notes.list_notes() if name_study(note) == study)
    finally:
        notes.close()


def tabulate(
    study: Study, model: Method[Any], seconds: float, summary: Mapping[str, Any], positive: Value | None
) -> dict[str, Any]:
    """metrics.json: the overall figures under plain names, then the same for each site and each fold.

    Protects: what was measured at each single hospital, from whoever reads the results, where the release shows the
    house no single hospital either (`shows_single_sites`). Does not: figures over all hospitals are exact, and as a
    simulation computes them beside the gate, no ledger is charged for them; `evaluation` says so. What is measured
    through the gate is what hospitals answered and charged (models/measuring.py).
    """
    single = shows_single_sites(study)
    epsilon = _total_epsilon(study) if study.way_out.bounded else None
    overall = {
        "patients": 0,
        **dict.fromkeys(NUMBER_FIGURES if study.target_range else FIGURES),
        **summary["overall"],
        "rounds": model.card.rounds,
        "bytes": model.card.bytes,
        "seconds": round(seconds, 3),
        "epsilon": epsilon,
    }
    return {
        "study": study.name,
        "method": study.method,
        "target": study.target,
        **({"range": list(study.target_range)} if study.target_range else {"positive": positive}),
        **_describe_decision(study, model),
        "evaluation": _describe_evaluation(study, summary.get("noise", 0.0)) + _say_follow_up(summary),
        **({"simulation": SIMULATED} if _is_simulated(study) else {}),
        **overall,
        "overall": overall,
        "sites": {site: {**row, "epsilon": epsilon} for site, row in summary["sites"].items() if single},
        "folds": [fold if single else {key: fold[key] for key in TAKEN} for fold in summary["folds"]],
        "risks": summary.get("risks"),
        **{name: summary[name] for name in ("subgroups", "follow_up") if name in summary},
        **({"notes": find_untold(summary, positive)} if "noise" in summary and positive is not None else {}),
    }


def raise_alarms(
    model: Method[Any],
    metrics: dict[str, Any],
    differences: Iterable[str] = (),
    table: RiskTable | None = None,
) -> None:
    """Put what must be looked into on the model's card and in its figures: what the figures tell, and how hospitals
    differ. The card also keeps the model's performance by a table of risks, where that may be shown."""
    found = find_alarms(metrics, risks=model.tells_risks, dictionary=model.card.dictionary)
    alarms = [*found, *differences]
    metrics["alarms"] = alarms
    performance = None if table is None else describe_performance(table, metrics["evaluation"])
    model.take(model.body, msgspec.structs.replace(model.card, alarms=alarms, performance=performance))


def shows_single_sites(study: Study) -> bool:
    """Whether figures of a single hospital tell no more than the release shows the house anyway."""
    return study.way_out.by_site and not study.way_out.bounded


def _describe_decision(study: Study, model: Method[Any]) -> dict[str, Any]:
    """At which threshold the figures are: the study's decision, in words, and the number; nothing where a number is
    predicted."""
    if study.target_range:
        return {}
    decided: Decided | None = getattr(model.body, "decided", None)
    if decided is None:
        return {"decision": model.decides or "predicts the likeliest class", "threshold": None}
    each = "; each fold has its own" if study.evaluate is not None and study.evaluate.leave_out else ""
    return {"decision": f"{model.card.decision}{each}", "threshold": decided.threshold}


def _total_epsilon(study: Study) -> float:
    """What the study spends per patient: that of its model, and of every fold a site takes part in."""
    models = count_models(study)
    method = study.open_method()
    plan = plan_questions(study, method)
    if models == 1 and plan.total == method.plan().total:
        return float(Fraction(method.get_params()["epsilon"]))
    return float(say_epsilon(epsilon_from_rho(price_study(study, plan), study.privacy.delta), digits=7))


def _say_follow_up(summary: Mapping[str, Any]) -> str:
    """Whose outcome by the horizon is not known, of a model of survival."""
    follow_up = summary.get("follow_up")
    return "" if follow_up is None else f"; {msgspec.convert(follow_up, FollowUp).say()}"


SIMULATED = (
    "A simulation: whoever ran this study holds all records. The figures of performance are exact, and not covered by "
    "epsilon."
)


def _is_simulated(study: Study) -> bool:
    """Whether figures of a private study were measured beside the gate, by whoever holds all records."""
    measured = study.evaluate is not None and study.evaluate.file is None
    return measured and study.way_out.bounded and not study.measures_at_gate


def _describe_evaluation(study: Study, noise: float = 0.0) -> str:
    """How the figures came about, in a sentence; `noise` is the standard deviation of each count's."""
    if study.evaluate is None:
        return "not evaluated: the study file has no [evaluate]"
    about = _describe_held_back(study.evaluate)
    if study.measures_at_gate:
        deviation = f"noise with a standard deviation of {noise:.3g} patients in each count, charged"
        noisy = f" ({deviation}, and in the intervals)" if noise else ""
        counted = "counted by predicted risk and outcome and released as"
        by = ", " if study.evaluate.leave_out else " by the site itself, "
        several = any(one.encounters for one in study.hospitals) or (study.encounters or 1) > 1
        rows = "; figures count encounters, and intervals take those of one patient for independent"
        return f"{about}{by}{counted} {study.release}{noisy}{rows if several else ''}"
    if shows_single_sites(study):
        return about
    # In a simulation all records are at hand; between hospitals such figures would be releases of their own.
    covered = "not covered by epsilon" if study.way_out.bounded else "for which no ledger was charged"
    return f"{about} (exact figures of a simulation, {covered}; figures of single sites are withheld)"


def describe_several(studies: Sequence[Study]) -> str:
    """The same for several methods."""
    first = studies[0]
    if first.evaluate is None or len({one.release for one in studies}) == 1:
        return _describe_evaluation(first)
    how = "by the site itself, counted and released as" if first.measures_at_gate else "and released as"
    return f"{_describe_held_back(first.evaluate)} {how} each line says"


def _describe_held_back(evaluate: Evaluate) -> str:
    """Whom the figures are about."""
    if evaluate.bands is not None:
        return (
            f"{evaluate.bands} bands of sites, each left out in turn and predicted by a model of the others"
        )
    if evaluate.leave_out is not None:
        return "every site left out in turn and predicted by a model of the others"
    if evaluate.since is not None:
        return f"the patients of every site since {evaluate.since}, held back from learning"
    if evaluate.holdout is not None:
        return f"{evaluate.holdout:.0%} of the patients of every site, held back from learning"
    return f"the patients of {evaluate.file}"
