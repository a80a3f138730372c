"""`Consultation`: patients like mine. One release of counts, and every question of a period answered from it.

docs/methods.md, part 11. Hospitals agree once: to the outcome, the predictors, a public grid of cells, the release, its
price a month and the day it ends. Once in a period they answer one question, the cube (cube.py). Whoever may ask then
asks as often as he likes: a patient is snapped to the grid, the population is widened until enough patients match
(populations.py), and the answer is naive Bayes within that population. No question leaves the house, so no hospital
learns of the patient who is asked about, and none is charged again.

*Protects:* every patient of the hospitals, *from:* the house and whoever asks, *cost:* under `private` epsilon at delta
for each period's cube, whatever is asked; *assumes:* what the release assumes. Under `exact` and `masked` there is no
bound: whoever asks learns the counts of the cube, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import date
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.consultations.answers import (
    ConsultationAnswer,
    Following,
    find_next,
    read_request,
)
from concilium.consultations.cube import (
    MOST_CELLS,
    Chosen,
    CubeBody,
    CubeColumn,
    is_cube,
    list_cells,
    make_tree,
    round_rows,
)
from concilium.consultations.intervals import find_interval
from concilium.consultations.passes import RequesterPass
from concilium.consultations.populations import EVERYBODY, MatchingPatients, find_population, say_cells
from concilium.errors import HouseError, MaskError, ModelError, StudyError, name_some
from concilium.models.explanation import Explanation, say_share
from concilium.models.intervals import Interval
from concilium.models.method import documented
from concilium.models.prediction import AnyPatients, NewPatients
from concilium.models.private_start import plan_start, start
from concilium.models.threshold import CallingRule, decide
from concilium.parameters import MOST_COUNTED, Parameter, names, text, whole
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.privacy.identity import read_fingerprint
from concilium.protocol.attributes import recode
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners, Statistic
from concilium.protocol.schema import SharedSchema, name_classes
from concilium.protocol.terms import Draft, today
from concilium.records.dictionary import DictionaryEntry, draft_entries, say_value
from concilium.records.fhir_patient import OLDEST, is_bundle, read_bundle
from concilium.records.query import Query
from concilium.trees.body import find_path
from concilium.trees.naive_bayes import (
    NaiveBayes,
    NaiveBayesBody,
    choose_beforehand,
    explain_evidence,
    make_body,
)
from concilium.trees.private_growing import TreeBudget
from concilium.trees.schemas import (
    PLAN_CUTOFFS,
    PLAN_SCHEMA,
    TreeMethod,
    ask_schemas,
    find_oddities,
    settle_schema,
)

USUAL_GRID = ("age", "sex")
BANDS = 5
"""Cutoffs of a number without bins: few, so that a band has patients enough to say something, and to hide among."""
LEAST_NOISE = 1e-9  # of counts that have noise, and are drawn to what cells have in common


def _read_month(value: Any) -> str:
    """A month such as 2026-11, or nothing."""
    if text(value):
        date.fromisoformat(f"{value}-01")
    return str(value)


def _read_day(value: Any) -> str:
    """A day such as 2027-03-31, or nothing."""
    if text(value) and date.fromisoformat(value).isoformat() != value:
        raise ValueError
    return str(value)


@documented
@dataclass(eq=False, repr=False)
class Consultation(TreeMethod[CubeBody]):
    """`Consultation(target="death", grid=["age", "sex"], bins={"age": [40, 60, 80]}).fit(house).ask({"age": 63})`."""

    method: ClassVar[str] = "consultation"
    called: ClassVar[str] = "a Consultation"
    description: ClassVar[str] = (
        "counts by cell of a public grid, from which questions about patients are answered"
    )
    body_type: ClassVar[type[CubeBody]] = CubeBody
    compares: ClassVar[bool] = False
    memory_share: ClassVar[float] = 8.0

    _: KW_ONLY
    grid: Annotated[
        Sequence[str] | None,
        Parameter(
            "a list of names",
            names,
            "the attributes whose cells are the populations, cut at `bins` or at `values`; the last one is dropped "
            "first where too few patients match; None: age and sex, of those that are asked about",
        ),
    ] = None
    enough: Annotated[
        int,
        Parameter(
            f"a whole number from 1 to {MOST_COUNTED}",
            whole(1, MOST_COUNTED),
            "a population is widened until so many patients match",
        ),
    ] = 50
    requesters: Annotated[
        Sequence[str] | None,
        Parameter(
            "a list of names", names, "who may ask, by name or by a role of their pass; None: not said"
        ),
    ] = None
    signers: Annotated[
        Sequence[str] | None,
        Parameter(
            "a list of names",
            names,
            "the fingerprints of hospitals whose passes count; then a pass shows who asks (`--pass`); None: whoever "
            "asks states a name",
        ),
    ] = None
    month: Annotated[
        str,
        Parameter(
            "a month such as '2026-11'",
            _read_month,
            "the month (UTC) of which this is the release; hospitals answer it once, however often it is asked for; "
            "empty: a release by itself",
        ),
    ] = ""
    ends: Annotated[
        str,
        Parameter("a day such as '2027-03-31'", _read_day, "the last day of the agreement; empty: not said"),
    ] = ""

    def check(self) -> None:
        super().check()
        if self.grid is not None and self.target in self.grid:
            raise StudyError(f"{self.target!r} is the target, and cannot be in the 'grid': take it out")
        if self.grid is not None and self.attributes is not None:
            absent = [name for name in self.grid if name not in self.attributes]
            if absent:
                raise StudyError(
                    f"{absent[0]!r} is in the 'grid', and not among the 'attributes': add it there"
                )
        if self.way_out.bounded and self.grid is not None:
            stated = {*self.values, *self.bins}
            if absent := [name for name in self.grid if name not in stated]:
                raise StudyError(
                    f"a private Consultation states its grid: give bins or values of {absent[0]!r}, so that cells are "
                    "public before anybody is counted"
                )
        for one in self.signers or ():
            try:
                read_fingerprint(one)
            except MaskError as error:
                raise StudyError(f"'signers' of a Consultation: {error}") from None
        if self.ends and self.month > self.ends[:7]:
            raise StudyError(f"the agreement ended on {self.ends}, before the month {self.month}")

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.tallied:
            return "a consultation counts patients by cell, and not by risk; take 'prevalence' or a cost"
        return None

    def find_objection(self, question: Statistic) -> str | None:
        if isinstance(question, AskCounts) and (question.tree or question.classes is not None):
            grid = self.find_grid([one.name for one in question.attributes])
            everybody = self.way_out.bounded and is_cube(question, grid, whole=True)
            if not everybody and not is_cube(question, grid):
                return "it asks about other groups of patients than the cells of the agreed grid"
        return super().find_objection(question)

    def find_grid(self, known: Sequence[str]) -> list[str]:
        """The attributes of the grid, of those that are asked about."""
        return list(self.grid) if self.grid is not None else [name for name in USUAL_GRID if name in known]

    @property
    def budget(self) -> TreeBudget:
        return TreeBudget(self.rho_of_fit, depth=1)

    @property
    def required_columns(self) -> frozenset[str]:
        return super().required_columns | ({*(self.grid or ())} if self.spares_misfits else set())

    def plan(self) -> Plan:
        said = f"counts by cell of the grid, by predictor and by {self.target}: once"
        if self.month:
            said += f" for {self.month}"
        if not self.way_out.bounded:
            return Plan("rho", (PLAN_SCHEMA, PLAN_CUTOFFS, PlannedQuestion("counts", None, said)))
        half = self.rho_of_fit / 2
        first = PlannedQuestion(
            "counts", half, f"the same of all cells together{said.partition(': once')[2]}"
        )
        return Plan("rho", (*plan_start(self), PlannedQuestion("counts", half, said), first))

    def draft(self, *, models: int = 1) -> Draft:
        """What hospitals are asked to agree to. The release of a month is one study, whoever of the house asks for it
        and however often: hospitals give the answer that they stored."""
        drafted = super().draft(models=models)
        if not self.month:
            return drafted
        last = _find_last_day(self.month)
        return replace(drafted, nonce=f"consultation {self.month}", ends=min(filter(None, [last, self.ends])))

    def converse(self, partners: Partners) -> Conversation[Learned[CubeBody]]:
        return self._converse_privately(partners) if self.way_out.bounded else self._converse_plainly()

    def _converse_plainly(self) -> Conversation[Learned[CubeBody]]:
        seen = yield from ask_schemas(self)
        schema = yield from settle_schema(self, seen, unstated=BANDS)
        places = self._place(schema)
        counts = yield self._ask(schema, places)
        warnings = find_oddities(self, schema, seen)
        body, said = self._finish(schema, places, counts, 0.0)
        if revealed := body.count_revealed():
            warnings.append(
                f"at least {revealed:,} of {int(body.released[:, 0].sum()):,} patients stand in counts of one outcome "
                "only, so that whoever knows their attributes learns it: cut wider bands, ask about fewer attributes, "
                "or take release = 'private'"
            )
        return Learned(body, {site: own.patients for site, own in seen.items()}, warnings, said)

    def _converse_privately(self, partners: Partners) -> Conversation[Learned[CubeBody]]:
        study, warnings = yield from start(self, partners)
        schema = study.state_schema()
        places = self._place(schema)
        variance = partners.variance(self.rho_of_fit / 2, 1 + len(schema.attributes) - len(places))
        question = self._ask(schema, places, Gaussian(str(variance)))
        counts = yield question
        everybody = yield msgspec.structs.replace(question, tree=[], nodes=[0])
        body, said = self._finish(schema, places, counts, float(variance) * float(partners.noise_factor))
        body = msgspec.structs.replace(body, everybody=everybody[0].tolist())
        return Learned(body, {}, [self.say_price(), *warnings], said)

    def _place(self, schema: SharedSchema) -> list[int]:
        """Where the attributes of the grid stand in the schema."""
        known = [one.name for one in schema.attributes]
        grid = self.find_grid(known)
        if absent := [name for name in grid if name not in known]:
            why = schema.left_out.get(absent[0], "no hospital has it")
            raise HouseError(f"{absent[0]!r} is in the grid and cannot be asked about: {why}")
        return [known.index(name) for name in grid]

    def _ask(self, schema: SharedSchema, places: list[int], noise: Gaussian | None = None) -> AskCounts:
        """The one question of a period."""
        sizes = [schema.attributes[place].size for place in places]
        if (cells := int(np.prod(sizes))) > MOST_CELLS:
            raise HouseError(
                f"the grid has {cells:,} cells, of {MOST_CELLS:,} at most: cut it into fewer bands"
            )
        tree, leaves = make_tree(sizes, places)
        return AskCounts(
            query=self.query,
            target=self.target,
            classes=schema.classes,
            attributes=schema.attributes,
            tree=tree,
            nodes=leaves,
            counted=[place for place in range(len(schema.attributes)) if place not in places],
            noise=noise,
        )

    def _finish(
        self, schema: SharedSchema, places: list[int], counts: NDArray[np.integer], variance: float
    ) -> tuple[CubeBody, str]:
        columns = [CubeColumn.of(one) for one in schema.attributes]
        classes = list(schema.classes.values)
        totals = np.maximum(counts[:, 0].sum(axis=0), 0)
        decided, said, positive = None, "", self.find_positive(classes)
        if positive is not None:
            prevalence = float(totals[positive] / max(totals.sum(), 1))
            decided, said = decide(self.threshold, classes[positive], prevalence)
        body = CubeBody(
            target=self.target,
            classes=classes,
            query=self.query,
            by=[columns[place] for place in places],
            predictors=[one for place, one in enumerate(columns) if place not in places],
            counts=counts.tolist(),
            variance=variance,
            enough=self.enough,
            decided=decided,
        )
        return body, said

    @property
    def attributes_(self) -> list[str]:
        return sorted(one.name for one in (*self.body.by, *self.body.predictors))

    @property
    def entries(self) -> dict[str, DictionaryEntry]:
        """By what values are read: the dictionary, and for codes that it does not have the released values."""
        codes = {one.name: one.values for one in (*self.body.by, *self.body.predictors) if one.values}
        return {**draft_entries(codes), **self.card.dictionary}

    def find_cells(self, patients: NewPatients) -> list[Chosen]:
        """For each patient the cell of the grid; None in it where an attribute is missing."""
        sides: list[list[tuple[int, ...] | None]] = []
        for one in self.body.by:
            codes, cells = recode(one.attribute, patients)
            found = np.where(codes == 0, -1, cells[codes]).tolist()
            sides.append([None if cell < 0 else (cell,) for cell in found])
        return list(zip(*sides, strict=True)) if sides else [()] * len(patients)

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """For each patient how likely each class is, by the patients who are like this one; columns as in classes_."""
        table = self.read(patients)
        shares = np.empty((len(table), len(self.body.classes)))
        rows: dict[Chosen, list[int]] = {}
        for row, cells in enumerate(self.find_cells(table)):
            rows.setdefault(find_population(self.body, cells).chosen, []).append(row)
        for chosen, here in rows.items():
            bayes = NaiveBayes.of(self.learn(chosen), self.card)
            shares[here] = bayes.predict_proba(table.records.take(np.array(here)))
        return shares

    def learn(self, chosen: Chosen) -> NaiveBayesBody:
        """Naive Bayes of a population: what each attribute says among patients like these."""
        body = self.body
        spanned = body.find_spanned(chosen)
        columns = [*(body.by[place] for place in spanned), *body.predictors]
        schema = SharedSchema(
            tuple(one.attribute for one in columns), name_classes(body.target, body.classes), {}
        )
        stated = round_rows(body.tabulate(chosen, body.estimated))
        stated[body.find_hidden(chosen)] = 0
        measured = np.rint(body.tabulate(chosen, body.measured)).astype(np.int64)
        learned = make_body(body.target, body.query, schema, stated, measured, 0 if body.variance else 1)
        # What noise leaves of a count is in the estimate: but for values that hardly anybody has, none is hidden.
        variance = LEAST_NOISE if body.variance else 0.0
        trees = [
            [msgspec.structs.replace(node, variance=variance) for node in nodes]
            for nodes in learned.attributes
        ]
        said = self._find_beforehand(chosen, stated, learned.class_shares)
        return msgspec.structs.replace(learned, attributes=trees, decided=body.decided, beforehand=said)

    def _find_beforehand(
        self, chosen: Chosen, stated: NDArray[np.int64], shares: NDArray[np.float64]
    ) -> list[list[list[float]]]:
        """What each value says among all patients, which counts as much as a population should have patients
        (`enough`): of a few patients like this one a value says much by chance, or by noise. Counts with noise are
        worth as many patients as would be counted that well without it."""
        body, everyone = self.body, (None,) * len(self.body.by)
        table = body.tabulate(everyone, body.estimated)
        overall = np.maximum(table[0], 0.5) / np.maximum(table[0], 0.5).sum()
        if body.variance:
            doubt = (body.find_deviations(everyone) ** 2).sum(axis=1, keepdims=True)
            table = table * np.minimum(table.sum(axis=1, keepdims=True) / np.maximum(doubt, 1e-9), 1)
        said, start = {}, 1
        for column in [*(body.by[place] for place in body.find_spanned(everyone)), *body.predictors]:
            rows = table[start : start + column.attribute.size]
            more = choose_beforehand(rows, overall)
            moved = (rows + more * overall) / (rows.sum(axis=1, keepdims=True) + more)
            expected = moved / overall * shares
            said[column.name] = body.enough * expected / expected.sum(axis=1, keepdims=True)
            start += column.attribute.size
        found, start = [], 1
        for column in [*(body.by[place] for place in body.find_spanned(chosen)), *body.predictors]:
            size, order = column.attribute.size, column.attribute.in_branch_order
            held = [cell for cell in order if body.variance or stated[start + cell].any()]
            if held:
                found.append([shares.tolist(), *said[column.name][held].tolist()])
            start += size
        return found

    def _look_up(self, patient: Mapping[str, Any]) -> tuple[MatchingPatients, Explanation, Following | None]:
        """For this patient the population, the answer among it, and what to measure next."""
        body, dictionary = self.body, self.card.dictionary
        known = {one.name: patient.get(one.name) for one in body.by}
        reading = NewPatients([known or {body.target: None}], dictionary, by_itself=bool(body.variance))
        population = find_population(body, self.find_cells(reading)[0])
        learned = self.learn(population.chosen)
        reached = [
            find_path(tree, patient, dictionary)[-1] if name in patient else 0
            for name, tree in zip(learned.names, learned.trees, strict=True)
        ]
        reached = [node if learned.speaks(number)[node] else 0 for number, node in enumerate(reached)]
        find = None
        if body.variance:
            find = partial(self._find_interval, population.chosen, learned, reached)
        patients = max(round(population.patients), 0)
        said = explain_evidence(
            learned, reached, patient, dictionary, bool(body.variance), "these", find, patients
        )
        return population, said, find_next(learned, reached, patient, said)

    def _find_interval(
        self, chosen: Chosen, learned: NaiveBayesBody, reached: Sequence[int], best: int
    ) -> Interval:
        """The interval of a class under noise, for a patient who reaches these nodes."""
        body, start, rows = self.body, 1, []
        columns = [*(body.by[place] for place in body.find_spanned(chosen)), *body.predictors]
        nodes = dict(zip(learned.names, reached, strict=True))
        for column in columns:
            if node := nodes.get(column.name, 0):
                rows.append(start + column.attribute.in_branch_order[node - 1])
            start += column.attribute.size
        counts, measured = (body.tabulate(chosen, one) for one in (body.estimated, body.measured))
        return find_interval(counts, measured, body.find_deviations(chosen), rows, learned, reached, best)

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        population, said, following = self._look_up(patient)
        first, *rest = said.sentences
        sentences = [first, *self._say_population(population, patient), *rest]
        if following is not None:
            sentences.append(following.say(self.card.dictionary))
        sentences.append(f"Hospitals that answered: {', '.join(site.name for site in self.card.sites)}.")
        return replace(said, sentences=tuple(sentences))

    def _say_population(self, population: MatchingPatients, patient: Mapping[str, Any]) -> list[str]:
        """Whom the answer is about, and how it came to that."""
        body = self.body
        whose = say_cells(body, population.chosen, self.card.dictionary)
        said = [f"Patients like this one: {whose}; {population.say_patients()}."]
        if population.narrower:
            least = f"{body.enough}{', beyond what noise hides,' if body.variance else ''}"
            about = "about " if body.variance else ""
            fewer = [f"{one} ({about}{number})" for one, number in self._list_narrower(population).items()]
            said.append(f"Fewer than {least} match more closely, so it was widened: {'; '.join(fewer)}.")
        if population.patients - population.noise < body.enough:
            said.append(f"Even all patients are fewer than the {body.enough} that were asked for.")
        absent = [one.name for one in body.by if patient.get(one.name) is None]
        if absent:
            said.append(
                f"Not known, and so patients of any: {', '.join(absent)}. Enter it for patients who are more alike."
            )
        return said

    def _list_narrower(self, population: MatchingPatients) -> dict[str, int]:
        """The populations that had too few patients, in words, and how many they had."""
        return {
            say_cells(self.body, one.chosen, self.card.dictionary): max(round(one.patients), 0)
            for one in population.narrower
        }

    def ask(
        self,
        patient: Mapping[str, Any],
        *,
        requester: str | RequesterPass = "",
        oldest: int = OLDEST,
        entries: Mapping[str, DictionaryEntry] | None = None,
    ) -> ConsultationAnswer:
        """Answer for a patient whose values are read by the dictionary: labels and codes alike, numbers in their unit.
        A FHIR Bundle is a patient too; its observations count for so many days (`oldest`), and `entries` say where in
        it attributes are, where these are not those of the study.

        Refused at once, in one sentence, with nothing sent: an impossible value, an unknown code or attribute, a
        patient of whom no attribute of the grid is known, a requester who is not on the list, an agreement that has
        ended, or the release of another month.
        """
        self.check_request(requester)
        names_ = [one.name for one in self.body.by], [one.name for one in self.body.predictors]
        bundled = None
        if is_bundle(patient):
            known = {*names_[0], *names_[1], *Query.parse(self.query).attributes}
            bundled = read_bundle(patient, sorted(known), entries or self.card.dictionary, today(), oldest)
            patient = bundled.values
        numbers = [one.name for one in (*self.body.by, *self.body.predictors) if one.edges]
        read, unused = read_request(
            patient, *names_, self.entries, self.query, target=self.target, numbers=numbers
        )
        answer = self.explain(read)
        if answer.outside:
            raise ModelError(" ".join(answer.sentences[:-1]))
        population, _, following = self._look_up(read)
        said = tuple(bundled.say()) if bundled is not None else ()
        if unused:
            said += (f"Not part of this consultation, and so not used: {', '.join(unused)}.",)
        return ConsultationAnswer(
            **{**vars(answer), "sentences": (*answer.sentences, *said), "notes": (*answer.notes, *said)},
            population=say_cells(self.body, population.chosen, self.card.dictionary),
            matching=population.interval,
            narrower=self._list_narrower(population),
            measure_next=None if following is None else following.name,
            hospitals=tuple(site.name for site in self.card.sites),
            missing=self.card.find_missing_sites(),
            resources=bundled.used if bundled is not None else {},
            too_old=bundled.too_old if bundled is not None else {},
        )

    def check_request(self, requester: str | RequesterPass = "") -> None:
        """ModelError where nobody, or not this requester, may ask today."""
        now = today().isoformat()
        if isinstance(requester, RequesterPass):
            requester.check(self.signers if self.signers is not None else [requester.signer], now)
            who, listed = requester.name, requester.listed_as
        else:
            who, listed = requester, (requester,)
            if self.signers is not None:
                raise ModelError(
                    "this consultation is asked with a pass (--pass FILE), signed by a hospital of the agreement: "
                    f"{name_some(self.signers)}"
                )
        if self.requesters is not None and not {*listed} & {*self.requesters}:
            whose = f"{who!r} is" if who else "nobody is named who asks (--as NAME), and only some are"
            raise ModelError(
                f"{whose} {'not ' if who else ''}on the list of this consultation: {name_some(self.requesters)}"
            )
        if self.ends and now > self.ends:
            raise ModelError(f"this consultation ended on {self.ends}: hospitals must agree to a new one")
        if self.month and now[:7] != self.month:
            raise ModelError(
                f"this is the release of {self.month}: ask by the consultation's study file, which gets that of "
                f"{now[:7]}"
            )

    def importances(self) -> dict[str, float]:
        return NaiveBayes.of(self.learn((None,) * len(self.body.by)), self.card).importances()

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """What each attribute says among all patients, as SVG."""
        everyone = self.learn((None,) * len(self.body.by))
        return NaiveBayes.of(everyone, self.card).pictures(whole=whole)

    def _text(self) -> str:
        """How many patients each cell of the grid has, and the shares of the classes there."""
        body, dictionary = self.body, self.card.dictionary
        named = ", ".join(one.name for one in body.by) or EVERYBODY
        about = "about " if body.variance else ""
        lines = [f"{body.target} by {named}; predictors: {', '.join(one.name for one in body.predictors)}"]
        for chosen in list_cells(body.sizes):
            patients, _ = body.count(chosen)
            counts = body.tabulate(chosen, body.estimated)[0]
            if counts.sum() < 0.5:
                continue
            shares = ", ".join(
                f"{say_value(name, dictionary.get(body.target))} {say_share(float(count / counts.sum()))}"
                for name, count in zip(body.classes, counts, strict=True)
            )
            lines.append(
                f"{say_cells(body, chosen, dictionary)}: {about}{max(patients, 0):.0f} patients, {shares}"
            )
        return "\n".join(lines)

    def _summary(self) -> str:
        return f"{len(self.body.counts)} cells, {len(self.body.predictors)} predictors"


def _find_last_day(month: str) -> str:
    """The last day of a month."""
    year, number = map(int, month.split("-"))
    following = date(year + number // 12, number % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1).isoformat()
