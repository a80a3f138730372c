"""A study as a TOML file: which hospitals, which question, which method, at what privacy, evaluated how.

The file is checked whole before any record is read; every key, with what it means, is in docs/studies.md.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from concilium.errors import ConciliumError, QueryError, StudyError, find_wrong_section, name_some
from concilium.registry import METHODS, RELEASES, load
from concilium.study import sections
from concilium.study.attached_files import find_attached
from concilium.study.sections import Choice, choose_hospitals

if TYPE_CHECKING:
    from concilium.models.measuring import Evaluation
    from concilium.models.method import Method
    from concilium.protocol.releases.release import Release
    from concilium.protocol.subgroups import Subgroup
    from concilium.records.dictionary import Dictionary
    from concilium.records.table import Records
    from concilium.records.table_map import TableMap
    from concilium.study.planning import StudyPlan
    from concilium.study.results import StudyResults
    from concilium.study.several import SeveralResults

AT_GATE = ("since", "epsilon", "subgroups")  # of [evaluate]: what goes through the gate only

SECTIONS: dict[str, type[msgspec.Struct] | None] = {
    "study": sections.About,
    "privacy": sections.Privacy,
    "sites": sections.SplitTable,
    "site": sections.Hospital,
    "choose": Choice,
    "series": sections.CourseColumns,
    "dictionary": None,
    "schema": None,
    "values": None,
    "bins": None,
    "house": sections.HouseRules,
    "evaluate": sections.Evaluate,
    "donors": sections.DonorRules,
    **dict.fromkeys(METHODS),
}


class Study(sections.About, frozen=True, kw_only=True):
    """`Study.read("study.toml")`: a checked study file. Paths in it are relative to its own folder.

    `plan()` says what it would ask and cost; `run("results")` learns, evaluates and writes. A file that names several
    methods is as many studies, alike but for the method and perhaps its release (`several`; this one is the first).
    `variant` tells them apart.
    """

    path: Path
    privacy: sections.Privacy
    split: sections.SplitTable | None
    hospitals: tuple[sections.Hospital, ...]
    columns: sections.CourseColumns
    dictionary: Dictionary
    schema: dict[str, sections.Kind]
    values: dict[str, tuple[sections.Value, ...]]
    bins: dict[str, tuple[float, ...]]
    parameters: dict[str, Any]
    house: sections.HouseRules
    evaluate: sections.Evaluate | None
    donors: sections.DonorRules
    digest: str
    variant: str = ""
    elsewhere: bool = False
    several: tuple[Study, ...] = ()
    after: tuple[Study, ...] = ()
    passed_over: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(one.method for one in self.several or (self,)))
        return f"Study({self.name!r}, {methods}, target={self.target!r}, release={self.release})"

    def _repr_html_(self) -> str:
        """For notebooks: what is learned about whom, where, and how it is released and measured."""
        # As in `planning`: a hospital's process needs none of this.
        from concilium.statistics.results import draw_html

        studies = self.several or (self,)
        split, named = self.split, name_some([one.name for one in self.hospitals], 12)
        hospitals = named if split is None else f"one table, dealt by {split.by or split.gateways}"
        asked = {} if self.evaluate is None else msgspec.structs.asdict(self.evaluate)
        facts = {
            "purpose": self.purpose,
            "method": ", ".join(dict.fromkeys(one.method for one in studies)),
            "target": self.target,
            "patients": self.query or "everyone",
            "release": ", ".join(dict.fromkeys(one.release for one in studies)),
            "hospitals": hospitals,
            "evaluation": ", ".join(f"{key} = {value}" for key, value in asked.items() if value) or "none",
        }
        return draw_html([("study", self.name), *((key, text) for key, text in facts.items() if text)])

    @classmethod
    def read(cls, path: str | Path, *, elsewhere: bool = False, text: str | None = None) -> Study:
        """The study in a TOML file; StudyError says in one sentence which key is wrong and how.

        Where its hospitals are `elsewhere`, on machines of their own, it names them and nothing that they hold. With
        `text`, the study that the file would be if that stood in it.
        """
        path = Path(path)
        content, document = sections.read_document(path, text)
        if sections.shares_entries(document):
            from concilium.study.code_sharing import SharingStudy

            SharingStudy.read(path)  # says what is wrong with it, if anything is
            raise StudyError(
                f"{path}: [study] method = {document['study']['method']!r} shares patients' entries and learns no "
                f"model. Share them by: concilium run {shlex.quote(str(path))} --out results (or --plan). In Python: "
                f"from concilium.study.code_sharing import SharingStudy; SharingStudy.read({str(path)!r})"
                '.run("shared.csv") (or .plan())'
            )
        if wrong := find_wrong_section(document, SECTIONS):
            raise StudyError(f"{path}: {wrong}")
        if elsewhere:
            find_attached(path, document)  # before any of them is read
        if "study" not in document:
            raise StudyError(f"{path}: the section [study] with name, method and target is missing")
        digest = hashlib.sha256(content).hexdigest()
        several = [
            cls._of(path, one, digest, variant=variant, elsewhere=elsewhere)
            for variant, one in sections.split_by_method(path, document).items()
        ]
        if len(several) == 1:
            return several[0]
        _check_together(several)
        return msgspec.structs.replace(several[0], several=tuple(several))

    @classmethod
    def _of(
        cls, path: Path, document: dict[str, Any], digest: str, *, variant: str, elsewhere: bool
    ) -> Study:
        """The study in a document with one method."""
        from concilium.records.dictionary import find_dictionary

        about = sections.read_section(path, "study", document, sections.About)
        method = sections.find_method(path, about.method, document)
        about = _settle_target(path, about, method)
        split = (
            sections.read_section(path, "sites", document, sections.SplitTable)
            if "sites" in document
            else None
        )
        dictionary = find_dictionary(path, document)
        parameters = sections.read_parameters(path, method, document)
        if dictionary and about.attributes is None and not method.reads_courses:
            # What is in a table and not in the dictionary is no part of the study.
            apart = {about.target, None if split is None else split.by, about.time}
            if about.time is None and _follows_time(method, parameters):
                apart.add(getattr(method, "time", None))
            names = tuple(name for name in dictionary if name not in apart)
            about = msgspec.structs.replace(about, attributes=names or None)
        values = {**dictionary.values, **sections.read_columns(path, "values", document, sections.Listed)}
        entry = dictionary.get(about.target)
        bins = dictionary.bins | ({about.target: entry.range} if entry is not None and entry.range else {})
        columns = sections.read_section(path, "series", document, sections.CourseColumns)
        hospitals, passed_over = choose_hospitals(
            path,
            _hospitals(path, document.get("site", [])),
            sections.read_section(path, "choose", document, Choice),
        )
        about = msgspec.structs.replace(about, query=_read_query(path, about.query, values, dictionary))
        study = cls(
            **msgspec.structs.asdict(about),
            path=path,
            privacy=sections.read_section(path, "privacy", document, sections.Privacy),
            split=split,
            dictionary=dictionary,
            hospitals=hospitals,
            passed_over=passed_over,
            columns=columns,
            schema={**dictionary.schema, **sections.read_columns(path, "schema", document, sections.Kind)},
            values=values,
            bins={**bins, **sections.read_columns(path, "bins", document, sections.Edges)},
            parameters=_join_parameters(path, about.method, columns, parameters),
            house=sections.read_section(path, "house", document, sections.HouseRules),
            evaluate=sections.read_section(path, "evaluate", document, sections.Evaluate)
            if "evaluate" in document
            else None,
            donors=sections.read_section(path, "donors", document, sections.DonorRules),
            digest=digest,
            variant=variant or about.method,
            elsewhere=elsewhere,
        )
        study._check()
        return study

    def plan(self) -> StudyPlan:
        """What the study would ask, what that costs, and whether every ledger has room. Nothing is asked or spent."""
        from concilium.study.planning import plan_several, plan_study

        return plan_several(self.several) if self.several else plan_study(self)

    def run(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        wait: float | None = None,
        on_progress: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> StudyResults | SeveralResults:
        """Learn with the study's hospitals and evaluate as it says; whatever goes wrong, no half is left behind. With
        several methods, the results are those of each and a table of them.

        out           the folder for model.json, metrics.json, card.json, report.html (and tree.svg); without it, no
                      results are written (ledgers that hospitals name are, whatever `out` is)
        resume        go on from the last finished round of a run to the same folder that was interrupted, or that ended
                      with StudyPending, in the very terms that were proposed
        wait          so many seconds where a person of a hospital must agree first; without it, as [house] says
        on_progress   is called with a line of text as the run goes on
        warn          is called with what to be warned of; without it, that is a warning of Python
        """
        from concilium.study.running import run_study
        from concilium.study.several import run_several

        study = self
        if wait is not None:
            study = study.waiting(wait)
        if study.several:
            return run_several(study, None if out is None else Path(out), resume, on_progress, warn)
        return run_study(study, None if out is None else Path(out), resume, on_progress, warn)

    def waiting(self, seconds: float) -> Study:
        """The same with so much patience where a person must agree first."""
        house = msgspec.structs.replace(self.house, patience=seconds)
        several = tuple(one.waiting(seconds) for one in self.several)
        return msgspec.structs.replace(self, house=house, several=several)

    def find_variant(self, variant: str) -> Study:
        """Of several methods, the study of this one, which knows of those after it; of one, itself."""
        for place, one in enumerate(self.several, start=1):
            if one.variant == variant:
                return msgspec.structs.replace(one, after=self.several[place:])
        return self

    @property
    def price_from_here(self) -> Fraction:
        """What this study and those of the methods after it cost a patient together, in rho."""
        from concilium.study.planning import plan_questions, price_study

        studies = (self, *self.after)
        return sum((price_study(one, plan_questions(one, one.open_method())) for one in studies), Fraction(0))

    @property
    def following(self) -> tuple[str, ...]:
        """The studies that are proposed after the first of this one, by method and release."""
        found: dict[str, None] = {}
        for one in (self, *self.after):
            folds = one.measures_at_gate and one.evaluate is not None and one.evaluate.leave_out is not None
            if folds or one is not self:
                found[f"{one.method} {one.release}"] = None
            if folds:
                found[f"validation {one.release}"] = None
        return tuple(found)

    def _check(self) -> None:
        """What no single key can tell: keys that need, exclude or contradict each other."""
        self._check_hospitals()
        self._check_method()
        for column, edges in self.bins.items():
            if any(not low < high for low, high in pairwise(edges)):
                raise StudyError(
                    f"{self.path}: [bins] {column} must be numbers in rising order; got {list(edges)}"
                )
        if self.target in self.bins and not self.method_type.reads_courses:
            self._check_range(self.bins[self.target])
        if self.evaluate is not None:
            self._check_evaluation(self.evaluate)

    def _check_hospitals(self) -> None:
        """Which hospitals there are, and what each holds."""
        if self.elsewhere:
            _check_elsewhere(self)
        else:
            _check_sources(self)
        if not self.elsewhere and (self.split is None) == (not self.hospitals):
            problem = "names no hospitals" if self.split is None else "names hospitals twice"
            raise StudyError(
                f"{self.path}: the study {problem}; give either [sites] with records and by (one table split "
                "by a column) or one [[site]] with name and records per hospital"
            )
        if self.split is not None and self.split.by == self.target:
            raise StudyError(f"{self.path}: [sites] by = {self.split.by!r} is the target itself")
        _refuse_namesakes(self.path, self.hospitals)
        _check_regions(self.path, self.hospitals)

    def _check_method(self) -> None:
        """What the study is for, and what its method needs."""
        if not self.aim.isprintable():
            raise StudyError(
                f"{self.path}: [study] purpose must be words that can be printed; got {self.aim!r}"
            )
        of_models = [name for name, listed in RELEASES.items() if listed.of_models]
        if self.release not in of_models:
            options = ", ".join(f'"{name}"' for name in of_models)
            raise StudyError(
                f"{self.path}: [privacy] release must be one of {options}; got {sections.shown(self.release)}"
            )
        if self.encounters is not None and (self.method_type.reads_courses or not self.way_out.bounded):
            raise StudyError(
                f'{self.path}: [study] encounters is for tables and release = "private"; otherwise all rows count'
            )
        self._check_keys()

    def _check_keys(self) -> None:
        """[study] has the keys that the method needs, and none that it does not take."""
        for one in self.method_type.parameters().values():
            if one.required and one.parameter.section == "study" and getattr(self, one.name) is None:
                raise StudyError(
                    f"{self.path}: [study] method = {self.method!r} needs the key {one.name!r}, {one.parameter.takes}: "
                    f"{one.parameter.about}"
                )
        if self.threshold is not None and "threshold" not in self.method_type.parameters():
            raise StudyError(
                f"{self.path}: [study] method = {self.method!r} takes no 'threshold': {self.method_type.decides}"
            )

    def _check_range(self, edges: Sequence[float]) -> None:
        """Bins of the target say that it is a number, and between which ends."""
        problem = ""
        if not self.method_type.predicts_numbers:
            problem = (
                f"is the target; bins are for attributes, since method = {self.method!r} predicts classes: a number is "
                'predicted by method = "shapes" or "rulefit"'
            )
        elif self.release not in self.method_type.predicts_numbers:
            problem = (
                f"is the target, and a {self.release} {self.method} predicts yes or no: take it out of [bins] and "
                'state its classes under [values], or predict a number with method = "shapes", or with release = '
                '"exact" or "masked"'
            )
        elif self.positive is not None:
            problem = (
                f"says that the target is a number, and [study] positive = {self.positive!r} that it is yes or no: "
                "leave one of them out"
            )
        elif self.schema.get(self.target) == "code":
            problem = (
                "says that the target is a number, and [schema] that it is a code: leave one of them out"
            )
        elif len(edges) < 2:
            problem = f"must give both ends of the target's range, such as [0, 100]; got {list(edges)}"
        if problem:
            raise StudyError(f"{self.path}: [bins] {self.target!r} {problem}")

    @property
    def target_range(self) -> tuple[float, float] | None:
        """The ends of a target that is a number; None where classes are predicted."""
        if self.method_type.reads_courses or self.target not in self.bins:
            return None
        return self.bins[self.target][0], self.bins[self.target][-1]

    def _check_evaluation(self, evaluate: sections.Evaluate) -> None:
        if self.method_type.reads_courses and (evaluate.holdout is None or evaluate.compare):
            raise StudyError(
                f"{self.path}: [evaluate] of method = {self.method!r} holds patients of every site back, "
                "holdout = 0.3, and nothing else"
            )
        ways = [name for name in sections.HELD_BACK if getattr(evaluate, name) is not None]
        if len(ways) != 1:
            problem = f"it has {' and '.join(ways)}" if ways else "it has none"
            raise StudyError(
                f"{self.path}: [evaluate] takes one of {', '.join(sections.HELD_BACK)}; {problem}"
            )
        self._check_comparing(evaluate)
        if evaluate.bands == 1:
            raise StudyError(f'{self.path}: [evaluate] leave_out = "band:1" would leave nobody to learn from')
        self._check_figures(evaluate)
        if evaluate.leave_out and not self.way_out.comparable:
            raise StudyError(
                f'{self.path}: [evaluate] leave_out does not go with release = "{self.release}": the sum with a '
                "hospital minus the sum without it is that hospital's whole answer; use holdout, or release "
                '= "exact" or "private"'
            )

    def _check_comparing(self, evaluate: sections.Evaluate) -> None:
        """What comparing with models learned alone needs."""
        if evaluate.compare and (evaluate.leave_out is None or not self.way_out.by_site):
            raise StudyError(
                f"{self.path}: [evaluate] compare puts hospitals that are left out beside what they learn alone: it "
                'goes with leave_out and release = "exact" only'
            )
        counted = [hospital.name for hospital in self.hospitals if hospital.encounters]
        if counted and (evaluate.compare or evaluate.simulation):
            raise StudyError(
                f"{self.path}: [evaluate] compare and simulation = true divide rows, and {counted[0]} has several of a "
                "patient: measure through the gate, with holdout or since"
            )
        if evaluate.compare and not self.method_type.compares:
            raise StudyError(
                f"{self.path}: [evaluate] compare does not go with method = {self.method!r}: few hospitals have enough "
                "patients with a rare condition to learn alone, or to lend their model"
            )

    def _check_figures(self, evaluate: sections.Evaluate) -> None:
        """Figures are measured through the gate and paid for, or those of a simulation that says so."""
        if evaluate.since is not None and evaluate.date is None:
            raise StudyError(f"{self.path}: [evaluate] since goes with date, the column that says when")
        if self.measures_at_gate:
            self._check_measuring(evaluate)
            return
        if found := [name for name in AT_GATE if getattr(evaluate, name) is not None]:
            raise StudyError(
                f"{self.path}: [evaluate] {found[0]} is for measuring through the gate: classes predicted from tables, "
                "with holdout or since, and without simulation = true"
            )
        if self.follows_time:
            raise StudyError(
                f"{self.path}: [evaluate] of {self.method!r} counts who was censored, at hospitals: write holdout = "
                "0.3, or measure the model at another hospital by `concilium evaluate`"
            )
        self._check_exact_figures(evaluate)

    def _check_exact_figures(self, evaluate: sections.Evaluate) -> None:
        """Where noise was paid for, exact figures are those of a simulation, or of patients of the study's own."""
        keepers = [hospital.name for hospital in self.hospitals if hospital.ledger]
        if keepers and self.way_out.bounded and evaluate.file is None:
            raise StudyError(
                f"{self.path}: [evaluate] does not go with private hospitals that keep a ledger ({keepers[0]}): its "
                "figures are exact, and charged to nobody; evaluate in a simulation, without ledgers, or measure by "
                "holdout and epsilon"
            )
        if self.way_out.bounded and evaluate.file is None and not evaluate.simulation:
            noisy = "a tree, RuleFit or naive Bayes takes holdout = 0.3 and epsilon = 0.5, say, to measure with noise"
            if self.target_range is not None:
                noisy = "models of a number are not measured with noise"
            raise StudyError(
                f"{self.path}: [evaluate] of a {self.release} study shows what was paid for: {noisy}. Where you hold "
                "all records yourself, write simulation = true: figures are exact then, and the report says so"
            )

    def _check_measuring(self, evaluate: sections.Evaluate) -> None:
        """What measuring through the gate needs."""
        if self.follows_time and evaluate.simulation:
            raise StudyError(
                f"{self.path}: [evaluate] simulation does not go with {self.method!r}: hospitals count who was "
                "censored; take the line out"
            )
        if evaluate.leave_out is not None:
            self._check_leaving_out(evaluate)
        if evaluate.simulation and self.elsewhere:
            raise StudyError(
                f"{self.path}: [evaluate] simulation is for records at hand, not across machines"
            )
        self.read_subgroups(evaluate.subgroups or ())
        self._check_held_out(evaluate.holdout)
        self._check_measured_release(evaluate)

    def _check_held_out(self, share: float | None) -> None:
        percent = None if share is None else round(100 * share, 6)
        if percent is not None and not (percent == int(percent) and 1 <= percent <= 90):
            raise StudyError(
                f"{self.path}: [evaluate] holdout through the gate is 0.01 to 0.9, in hundredths"
            )

    def _check_measured_release(self, evaluate: sections.Evaluate) -> None:
        """How counts for figures leave, and which class they are of."""
        from concilium.models.risk_counts import AskRiskCounts

        if self.way_out.bounded and evaluate.epsilon is None:
            raise StudyError(
                f"{self.path}: [evaluate] of a {self.release} study measures with noise: give epsilon = 0.5, say, "
                "beside that of [privacy], or simulation = true where you hold all records yourself (figures are "
                "exact then, and the report says so)"
            )
        if evaluate.epsilon is not None and not self.way_out.bounded:
            raise StudyError(f'{self.path}: [evaluate] epsilon is for release = "private"')
        if self.release not in AskRiskCounts.releases:
            raise StudyError(f"{self.path}: [evaluate] does not measure what is released as {self.release!r}")
        classes = self.values.get(self.target, ())
        if self.positive is None and len(classes) > 2:
            raise StudyError(f"{self.path}: [evaluate] measures one class: say which by [study] positive")

    def _check_leaving_out(self, evaluate: sections.Evaluate) -> None:
        """What leaving hospitals out needs where nobody holds all records."""
        if evaluate.leave_out != "site" or evaluate.compare:
            raise StudyError(
                f'{self.path}: [evaluate] through the gate leaves single hospitals out, leave_out = "site", and '
                "compares no ways of learning: bands go by numbers of patients, and the others by all records"
            )
        if self.follows_time and self.parameters.get("at") is None:
            raise StudyError(
                f"{self.path}: [evaluate] leave_out of {self.method!r} needs one horizon for all folds: write "
                f"at = 365, say, under [{self.method}]"
            )
        if not self.hospitals and self.split is None:
            raise StudyError(
                f"{self.path}: [evaluate] leave_out needs the hospitals' names: list each as a [[site]] with its name"
            )
        if self.hospitals:
            self.check_left_out(len(self.hospitals))

    def check_left_out(self, hospitals: int) -> None:
        """StudyError where there are too few hospitals to leave one out: under noise a fold is a sum over three."""
        least = 4 if self.way_out.bounded else 2
        if self.measures_at_gate and hospitals < least:
            raise StudyError(
                f"{self.path}: [evaluate] leave_out of a {self.release} study needs {least} hospitals or more, since "
                f"each fold is a study of the others; there are {hospitals}"
            )

    @property
    def measures_at_gate(self) -> bool:
        """Whether the model is measured on patients whom every hospital holds out itself, by counts that it answers;
        otherwise by whoever runs a simulation and holds all records."""
        evaluate = self.evaluate
        if evaluate is None or self.method_type.reads_courses or self.target_range is not None:
            return False
        if evaluate.holdout is None and evaluate.since is None and evaluate.leave_out is None:
            return False
        if self.elsewhere or evaluate.simulation is False or evaluate.since is not None:
            return True
        if self.follows_time:  # who was censored counts by how others fared
            return True
        if any(hospital.encounters for hospital in self.hospitals):  # whom only the site knows again
            return True
        return (self.way_out.bounded or evaluate.subgroups is not None) and not evaluate.simulation

    def read_subgroups(self, texts: Iterable[str]) -> tuple[Subgroup, ...]:
        """Subgroups as people write them, with the values and cutoffs that the study states."""
        from concilium.protocol.subgroups import read_subgroups

        try:
            return read_subgroups(texts, self.values, self.bins)
        except StudyError as error:
            raise StudyError(f"{self.path}: {error}") from None

    def find_evaluation(self) -> Evaluation | None:
        """How the model is measured through the gate, if it is."""
        from concilium.models.measuring import Evaluation
        from concilium.privacy.accounting import rho_for_epsilon
        from concilium.protocol.held_out import Holdout

        evaluate = self.evaluate
        if evaluate is None or not self.measures_at_gate:
            return None
        holdout = None
        if evaluate.holdout is not None:
            holdout = Holdout(percent=round(100 * evaluate.holdout))
        elif evaluate.since is not None:
            holdout = Holdout(column=evaluate.date or "", since=evaluate.since or "")
        rho = None
        if evaluate.epsilon is not None:
            rho = rho_for_epsilon(str(evaluate.epsilon), self.privacy.delta)
        return Evaluation(holdout, rho, self.positive, self.read_subgroups(evaluate.subgroups or ()))

    @property
    def aim(self) -> str:
        """What hospitals are told that the study is for: its purpose on one line, its name where it has none."""
        return " ".join((self.purpose or self.name).split())

    def find_map(self, source: sections.Hospital | sections.SplitTable) -> TableMap | None:
        """How a hospital's own table becomes the study's columns; None where it names no map."""
        from concilium.records.table_map import TableMap

        if source.map is None:
            return None
        if isinstance(source.map, str):
            return TableMap.read(self.locate(source.map))
        name = source.name if isinstance(source, sections.Hospital) else "[sites]"
        return TableMap.parse(source.map, f"{self.path}: the map of {name}")

    def locate(self, place: str) -> str:
        """A path of the study file as seen from here; a database address stays as it is."""
        return place if "://" in place else str(self.path.parent / place)

    @property
    def method_type(self) -> type[Method[Any]]:
        """The class of its method."""
        method: type[Method[Any]] = load(METHODS[self.method])
        return method

    @property
    def follows_time(self) -> bool:
        """Whether it predicts risks by a horizon, of patients who were followed for different times."""
        return self.method_type.follows_time or self.parameters.get("at") is not None

    @property
    def release(self) -> str:
        """How answers leave the hospitals: as the study says, or as its method does by itself."""
        if "release" not in self.method_type.parameters():
            return self.open_method().release
        return self.privacy.release or str(self.method_type.parameters()["release"].default)

    @property
    def way_out(self) -> Release:
        """The release, as an object."""
        from concilium.protocol.releases import find_release

        return find_release(self.release)

    @property
    def reading(self) -> dict[str, sections.Kind]:
        """How columns are read: as [schema] says, and where something is asked privately, listed values and the target
        as codes, bins as numbers."""
        if not self.asks_privately or self.method_type.reads_courses:
            return self.schema
        dates = [] if self.evaluate is None or self.evaluate.date is None else [self.evaluate.date]
        codes: dict[str, sections.Kind] = dict.fromkeys((*dates, *self.values, self.target), "code")
        numbers: dict[str, sections.Kind] = dict.fromkeys(self.bins, "number")
        return codes | numbers | self.schema

    @property
    def asks_privately(self) -> bool:
        """Whether some question has a price: all of a private study's, and a RuleFit's cutoffs under masks, or with the
        paper's noise."""
        if self.way_out.bounded:
            return True
        return any(question.cost is not None for question in self.open_method().plan().questions)

    @property
    def unstated(self) -> tuple[str, ...]:
        """The columns that are asked about privately and of which nothing says how to read them: text files leave it to
        a guess, which one patient could change for others, so that sites refuse them."""
        from concilium.records.query import Query

        if not self.asks_privately:
            return ()
        named = {
            *Query.parse(self.query).attributes,
            *((self.attributes or ()) if self.way_out.bounded else ()),
        }
        return tuple(sorted(named - set(self.reading)))

    def open_method(self) -> Method[Any]:
        """The method this study asks for, not yet fitted: what the file does not say is as the method declares it."""
        about = {
            name: getattr(self, name)
            for name in (
                "target",
                "outcome",
                "time",
                "query",
                "attributes",
                "positive",
                "threshold",
                "on_misfit",
            )
        }
        privacy = msgspec.structs.asdict(self.privacy)
        places = {"study": about, "privacy": privacy, "": self.parameters}
        columns = {"bins": self.bins, "values": self.values}
        arguments: dict[str, Any] = {}
        for one in self.method_type.parameters().values():
            section = one.parameter.section
            value = columns[section] if section in columns else places[section].get(one.name)
            if value is not None:
                arguments[one.name] = value
        if "variables" in self.method_type.parameters() and not self.bins and self.columns.variables:
            arguments.setdefault("variables", self.columns.variables)
        try:
            return self.method_type(**arguments)
        except ConciliumError as error:
            raise StudyError(f"{self.path}: {error}") from None

    def find_classes(self, tables: Iterable[Records]) -> list[sections.Value]:
        """What is told apart: all values of the target, the positive one and the rest, or nothing: it is a number."""
        from concilium.evaluation.leave_out import find_classes, set_apart

        if self.target_range is not None:
            return []
        classes = find_classes(tables, self.target)
        positive = self.find_positive(classes)
        if self.method_type.against_rest and positive is not None:
            return set_apart(classes, positive)
        return classes

    def find_positive(self, classes: list[sections.Value]) -> sections.Value | None:
        """The class that sensitivity and AUC are about: the stated one, or the second of two."""
        from concilium.records.columns import label

        if self.positive is None:
            return classes[1] if len(classes) == 2 else None
        for value in classes:
            if label(value) == label(self.positive):
                return value
        names = ", ".join(label(value) for value in classes)
        raise StudyError(
            f"{self.path}: [study] positive = {self.positive!r} is not a value of {self.target!r} "
            f"(it has {names})"
        )


def _follows_time(method: type[Method[Any]], parameters: Mapping[str, Any]) -> bool:
    """Whether it learns the risk of an event by a time."""
    return method.follows_time or parameters.get("at") is not None


def _read_query(path: Path, query: str, values: Mapping[str, Any], dictionary: Dictionary) -> str:
    """The query in the values that the study states."""
    from concilium.records.dictionary import draft_entries
    from concilium.records.query_reading import read_query

    try:
        return read_query(query, {**draft_entries(values), **dictionary.entries})
    except QueryError as error:
        raise StudyError(f"{path}: [study] query: {error}") from None


def _check_together(several: Sequence[Study]) -> None:
    """Methods that stand side by side: all of tables, all released in one way unless the list says how each is, and all
    measured in one way."""
    path = several[0].path
    for one in several:
        if one.method_type.reads_courses:
            raise StudyError(
                f"{path}: [study] method = {one.method!r} judges courses of patients, and cannot stand beside "
                "others: name it alone"
            )
    releases = {one.method: one.release for one in several if one.variant == one.method}
    if len(set(releases.values())) > 1:
        listed = ", ".join(f"{method} as {release!r}" for method, release in releases.items())
        raise StudyError(
            f"{path}: methods are compared under one release, and by themselves these differ ({listed}): say which "
            'under [privacy], such as release = "exact", or of each, such as method = ["tree exact", "rulefit masked"]'
        )
    by_time = {
        _follows_time(one.method_type, one.parameters) for one in several if one.method_type.tells_apart
    }
    if len(by_time) > 1 and several[0].evaluate is not None:
        apart = [one.variant for one in several if not _follows_time(one.method_type, one.parameters)]
        raise StudyError(
            f"{path}: {', '.join(apart)} would take the outcome as it stands, and might learn from the time that "
            "others follow: their figures cannot be compared. Give a horizon to each that has one ('at'), and run the "
            "others in a study of their own"
        )
    if len({one.measures_at_gate for one in several}) > 1:
        apart = [one.variant for one in several if not one.measures_at_gate]
        raise StudyError(
            f"{path}: [evaluate] would measure {', '.join(apart)} beside the gate and the others through it, on other "
            "patients: write simulation = false, or give epsilon, for all of them"
        )


def _hospitals(path: Path, tables: object) -> tuple[sections.Hospital, ...]:
    from concilium.records.cohort_file import find_patient_column

    if not isinstance(tables, list):
        raise StudyError(f"{path}: write [[site]] with two brackets, once for every hospital")
    hospitals = (
        sections.fill(path, f"[[site]] number {n}", table, sections.Hospital)
        for n, table in enumerate(tables, start=1)
    )
    return tuple(
        msgspec.structs.replace(one, patient=find_patient_column(one.records, one.patient))
        for one in hospitals
    )


def _settle_target(path: Path, about: sections.About, method: type[Method[Any]]) -> sections.About:
    """What is to be predicted: the target, or the outcome of a method that has one, under one name from here on."""
    wanted = "outcome" if "outcome" in method.parameters() else "target"
    other = {"outcome": about.target, "target": about.outcome}[wanted]
    if other:
        found = "target" if wanted == "outcome" else "outcome"
        raise StudyError(f"{path}: [study] method = {about.method!r} takes {wanted!r}, not {found!r}")
    if not getattr(about, wanted):
        raise StudyError(f"{path}: [study] needs the key {wanted!r}")
    return msgspec.structs.replace(about, target=about.target or about.outcome or "")


def _join_parameters(
    path: Path, method: str, columns: sections.CourseColumns, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The method's parameters with what [series] states of them; StudyError where both sections state one."""
    if columns.static is not None and "static" not in load(METHODS[method]).parameters():
        raise StudyError(
            f"{path}: [series] static is for temporal rules, and [{method}] has none: leave it out"
        )
    for name in columns.static or ():
        if name in (columns.variables or ()):
            raise StudyError(
                f"{path}: [series] {name!r} is under static and under variables: keep one. A static column is read, "
                "and is no variable of rules over time"
            )
    for name in columns.parameters:
        if name in parameters:
            key = "windows" if name == "window" else name
            raise StudyError(f"{path}: [series] {key} and [{method}] {name} state the same: keep one of them")
    return {**columns.parameters, **parameters}


def _find_wanted_part(study: Study) -> tuple[str, str]:
    """What hospitals hold of patients whose courses are learned from, and why."""
    if (
        "window" in study.method_type.parameters()
        and study.method_type.parameters()["window"].default is not None
    ):
        return "series", f"[{study.method}] learns from them"
    if study.parameters.get("window") is not None:
        return "series", f"[{study.method}] window is given"
    return "rules", f"[{study.method}] gives no window"


def _check_sources(study: Study) -> None:
    """Every hospital has what the method learns from, and nothing that it does not."""
    courses = study.method_type.reads_courses
    sources: dict[str, sections.Hospital | sections.SplitTable] = {
        f"[[site]] number {place}": one for place, one in enumerate(study.hospitals, start=1)
    }
    if study.split is not None:
        sources["[sites]"] = study.split
    for place, source in sources.items():
        _check_source(study, place, source)
    if study.split is not None:
        _check_split(study, study.split, courses)


def _check_source(study: Study, place: str, source: sections.Hospital | sections.SplitTable) -> None:
    """Tables for methods that learn from tables, and of courses the one part that is learned from."""
    given = [name for name in ("series", "rules") if getattr(source, name) is not None]
    if not study.method_type.reads_courses and (given or source.records is None):
        problem = (
            f"{given[0]} are for methods that learn from courses" if given else "needs the key 'records'"
        )
        raise StudyError(f"{study.path}: {place} {problem}")
    if study.method_type.reads_courses:
        wanted, why = _find_wanted_part(study)
        if given != [wanted]:
            raise StudyError(f"{study.path}: {place} needs the key {wanted!r}, and it alone: {why}")


def _check_split(study: Study, split: sections.SplitTable, courses: bool) -> None:
    """A table is split by a column; patients with courses are dealt to gateways."""
    if courses and split.by is not None:
        raise StudyError(
            f"{study.path}: [sites] by is for tables: of series, [series] by names the column of the hospital"
        )
    if courses and split.gateways is None and study.columns.by is None:
        raise StudyError(
            f"{study.path}: [sites] deals patients with courses to gateways = 3, say, or to hospitals by a column "
            "of their file that [series] by names"
        )
    if not courses and (split.by is None or split.gateways is not None):
        problem = (
            "needs the key 'by'"
            if split.by is None
            else "has gateways for methods that learn from courses only"
        )
        raise StudyError(f"{study.path}: [sites] {problem}")
    if "release" not in study.method_type.parameters() and study.privacy.release is not None:
        raise StudyError(f"{study.path}: [privacy] release follows from [{study.method}] trust: leave it out")


def _check_elsewhere(study: Study) -> None:
    """Hospitals on machines of their own say themselves what they hold, how it is read, and what they let out."""
    problem = ""
    if study.split is not None:
        problem = "[sites] splits one table, a simulation: name hospitals by [[site]] name, or none for all"
    for place, hospital in enumerate(study.hospitals, start=1):
        of_file = [name for name in hospital.__struct_fields__ if name not in ("name", "declares", "size")]
        given = [name for name in of_file if getattr(hospital, name)]
        if given:
            problem = f"[[site]] number {place} has {given[0]!r}, which stands in the file of the hospital's own kit"
    of_files = msgspec.structs.replace(study.columns, step=None, windows=None, static=None)
    if of_files != sections.CourseColumns() and not isinstance(study.parameters.get("public"), str):
        problem = "[series] names columns of files, which each hospital does in the file of its own kit"
    if study.house.identity is not None:
        problem = "[house] identity is not for this file: the house has its own"
    if study.evaluate is not None and study.evaluate.file is None and not study.measures_at_gate:
        problem = (
            '[evaluate] of this kind needs all records at hand: take holdout = 0.3 or leave_out = "site", which '
            "hospitals measure themselves, or file = ..., patients of your own, or leave it out"
        )
    stated = study.schema != study.dictionary.schema  # which is public, and the hospitals' to read by
    if stated and (study.evaluate is None or study.evaluate.file is None):
        problem = "[schema] says how records are read, which each hospital does in the file of its own kit"
    if problem:
        raise StudyError(f"{study.path}: across machines, {problem}")


def _check_regions(path: Path, hospitals: tuple[sections.Hospital, ...]) -> None:
    """A region has a name of its own, in one place, and so does each that it is in."""
    names = {one.name for one in hospitals}
    places: dict[str, list[str]] = {}
    for hospital in hospitals:
        parts = hospital.region.split("/") if hospital.region else []
        for depth, name in enumerate(parts):
            if not name.strip() or name in names or places.setdefault(name, parts[:depth]) != parts[:depth]:
                raise StudyError(
                    f"{path}: the region of {hospital.name!r} is {hospital.region!r}: a region has a name that no "
                    'hospital has, and is in one place, such as region = "germany/bavaria"'
                )


def _refuse_namesakes(path: Path, hospitals: tuple[sections.Hospital, ...]) -> None:
    by_name: dict[str, sections.Hospital] = {}
    for hospital in hospitals:
        if hospital.name in by_name:
            raise StudyError(
                f"{path}: two sites are named {hospital.name!r} ({by_name[hospital.name].source} and "
                f"{hospital.source}); give each a name of its own"
            )
        by_name[hospital.name] = hospital
