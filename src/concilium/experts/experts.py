"""`Experts`: a small network for each patient, ensembles that answer in noise, and a student that ships.

Under `private` each hospital answers with the experts of a public sample of its patients, and each patient is protected
at the price of the study. Under `exact` and `masked` each hospital grows an ensemble, which says more and protects
nobody beyond condition (averaging.py). The model is the student of public stays; the experts stay at the hospitals.
docs/methods.md, part 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, ModelError, StudyError
from concilium.experts.averaging import GRID, check_course, check_step, check_student, find_course_deviation
from concilium.experts.expert_answers import BESIDES, AskExpertLabels, AskGrownExperts
from concilium.experts.expert_parameters import (
    Alarms,
    Answers,
    Bound,
    Carry,
    Conditional,
    Dropout,
    Epochs,
    Every,
    Layers,
    Lead,
    Limit,
    NetworkKind,
    Public,
    Ranges,
    Seed,
    Size,
    Step,
    TargetVariable,
    Units,
    WindowSpan,
)
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange, check_task
from concilium.experts.patient_windows import DIGEST, PublicStays, lay_course, lay_out, lay_public
from concilium.experts.student import (
    Lesson,
    StoredStudent,
    StudentBody,
    judge,
    open_rules,
    read_features,
    teach,
    tell,
    write_student,
)
from concilium.models.explanation import Explanation, Reason
from concilium.models.method import (
    Delta,
    Epsilon,
    PrivateMethod,
    QueryText,
    ReleaseName,
    as_written,
    documented,
)
from concilium.models.prediction import KnownOutcomes
from concilium.models.series_reading import AnySeries, lay_out_courses
from concilium.models.threshold import Decided
from concilium.privacy.accounting import (
    Plan,
    PlannedQuestion,
    exact_positive,
    rho_for_epsilon,
    rho_from_pure,
)
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.protocol.house import House
from concilium.protocol.questions import Gaussian, Laplace, Noise
from concilium.protocol.transport import Answering
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.series import Series
from concilium.records.series_outcomes import find_windows

# Of torch, as the paper has it; of the small network, what did best on held-out patients (docs/experts.md).
TORCH_RATE, TORCH_BATCH = 0.001, 20
STUDENT = NetworkSettings(units=16, epochs=30, rate=0.01, clip=1.0, batch=20, patience=4, least_gain=0.003)


@documented
@dataclass(eq=False, repr=False)
class Experts(PrivateMethod[StudentBody]):
    """`Experts(target="SepsisLabel", epsilon=8).fit(house).student(public)`."""

    method: ClassVar[str] = "experts"
    called: ClassVar[str] = "an Experts"
    description: ClassVar[str] = "a student, taught by what a network of each patient says"
    body_type: ClassVar[type[StudentBody]] = StudentBody
    compares: ClassVar[bool] = False
    reads_courses: ClassVar[bool] = True
    pure_releases: ClassVar[tuple[str, ...]] = ("private",)
    differs_from_pooled: ClassVar[str] = (
        "is not the model of the pooled patients: every hospital grows an ensemble of its own"
    )
    decides: ClassVar[str] = "the student calls an alarm as often as [experts] alarms says of public stays"

    target: TargetVariable
    query: QueryText = ""
    epsilon: Epsilon = 1.0
    delta: Delta = "1e-6"
    release: ReleaseName = "private"
    public: Public = None
    experts: Size = 200
    limit: Limit = None
    conditional: Conditional = None
    bins: Ranges = field(default_factory=dict)
    step: Step = "1h"
    window: WindowSpan = "24h"
    carry: Carry = "24h"
    lead: Lead = "12h"
    bound: Bound = 4
    every: Every = "2h"
    network: NetworkKind = "lstm"
    units: Units = 16
    layers: Layers = 1
    epochs: Epochs = 20
    dropout: Dropout = 0.0
    alarms: Alarms = 0.1
    answers: Answers = "student"
    seed: Seed = 1
    _house: House | None = field(init=False, default=None)

    @property
    def must_know(self) -> str:
        return ""

    def check(self) -> None:
        try:
            check_task(self.task)
        except MessageError as error:
            raise StudyError(str(error)) from None
        if self.release == "private" and self.epsilon is None:
            raise self.wrong("epsilon", "given for release = 'private'", self.epsilon)
        if self.release == "private" and (self.conditional is not None or self.limit is not None):
            raise StudyError(
                "an ensemble is grown under 'exact' and 'masked' only: who is chosen depends on other patients, which "
                "no noise on its answers covers; leave limit and conditional out"
            )
        if self.release != "private" and self.answers != "student":
            raise StudyError(
                "single answers are sold as 'private' only: they are of experts that nobody selected"
            )
        if self.answers != "student" and isinstance(self.public, Series) and len(self.public) != 1:
            raise StudyError(f"ensembles are asked about one stay at a time; got {len(self.public)}")

    @cached_property
    def edges(self) -> dict[str, tuple[float, ...]]:
        """The public numbers of each variable."""
        known = {name: place_limits(CLINICAL_RANGES[name]) for name in CLINICAL_RANGES if name != self.target}
        return {
            name: tuple(map(float, own)) for name, own in (self.bins or known).items() if name != self.target
        }

    @cached_property
    def task(self) -> ExpertTask:
        """What every question repeats of the study."""
        small = self.network == "lstm"
        network = NetworkSettings(
            kind=self.network,
            units=self.units,
            layers=1 if small else self.layers,
            epochs=self.epochs,
            rate=0.01 if small else TORCH_RATE,
            dropout=0.0 if small else self.dropout,
            batch=1 if small else TORCH_BATCH,
            seed=self.seed,
        )
        ranges = []
        for name, own in sorted(self.edges.items()):
            known = None if self.bins else CLINICAL_RANGES[name]
            low, high = (min(own), max(own)) if known is None else (known.low, known.high)
            ranges.append(PublicRange(name, low, high if high > low else low + 1))
        return ExpertTask(
            self.target, tuple(ranges), self.step, self.window, self.carry, self.lead, self.bound, network
        )

    @cached_property
    def stays(self) -> PublicStays | None:
        """The public stays as hospitals are asked about them; None where there are none at hand."""
        if not isinstance(self.public, Series):
            return None
        if self.answers == "student":
            return lay_public(self.public, self.task, self.every)
        return lay_course(self.public, self.task, whole=self.answers == "course")

    @property
    def asked_about(self) -> str | None:
        """The digest of the public stays, which hospitals hold the house to."""
        if self.stays is not None:
            return self.stays.digest
        return self.public if isinstance(self.public, str) and self.public.startswith(DIGEST) else None

    @property
    def limit_agreed(self) -> tuple[int | None, str, str]:
        return (self.limit, *self._noise)

    @property
    def _noise(self) -> tuple[str, str]:
        """The epsilon and the delta of conditional noise; empty where there is none."""
        if self.conditional is None:
            return "", ""
        epsilon = exact_positive(as_written(self.conditional), "epsilon")
        return str(epsilon), str(Fraction(as_written(self.delta)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {**super().get_params(deep), "public": self.asked_about or self.public}

    @property
    def rho(self) -> Fraction:
        """What the study costs: labels and courses by their Gaussian noise, one step by its pure epsilon."""
        if self.answers == "step":
            return rho_from_pure(exact_positive(as_written(self.epsilon), "epsilon"))
        return super().rho

    @property
    def pure_price(self) -> Fraction | None:
        if self.release == "private" and self.answers == "step":
            return exact_positive(as_written(self.epsilon), "epsilon")
        return None

    def plan(self) -> Plan:
        if self.release != "private":
            note = "what each hospital's grown ensemble says of public stays on average, and its size"
            return Plan("rho", (PlannedQuestion("experts.grown", None, note),))
        what = {"student": "public stays", "step": "one step of a stay", "course": "every step of a stay"}
        note = f"what {self.experts} experts of each hospital say of {what[self.answers]}"
        return Plan("rho", (PlannedQuestion("experts.labels", self.rho, note),))

    def fit(self, house: House | Iterable[Answering]) -> Self:
        self._house = House.of(house)
        return super().fit(self._house)

    def student(self, public: Series) -> Experts:
        """A model of these public stays: the ensembles label them once, at the price of this study.

        It is one of its own, with its own card; to be asked of the house that this was fitted with.
        """
        if self.body.student is not None:
            raise StudyError(
                "this has its student already; another one would cost once more: make another Experts"
            )
        return self._ask_again(public=public, answers="student").fit(self._find_house())

    def ask(self, patient: AnySeries, *, whole: bool = False) -> StudentBody:
        """What the ensembles themselves say of one stay, at its last step or at all of them: `.answer`, with noise of
        `.deviation`; each time at the price of this study. A stay that is asked about is known to the hospitals."""
        series = self._read([patient] if isinstance(patient, Mapping) else patient)
        answers = "course" if whole else "step"
        return self._ask_again(public=series, answers=answers).fit(self._find_house()).body

    def _ask_again(self, **changed: Any) -> Experts:
        return type(self)(**{**self.get_params(), **changed})

    def _find_house(self) -> House:
        if self._house is None:
            raise ModelError("the hospitals are asked by the house that this was fitted with: fit it anew")
        return self._house

    def converse(self, partners: Partners) -> Conversation[Learned[StudentBody]]:
        if self.stays is None:
            if isinstance(self.public, str):
                raise StudyError(f"the public stays {self.public!r} are not at hand: give them as a Series")
            body = self._write(self.experts * partners.hospitals, None, 0, 0.0, None)
            return Learned(body, {}, ["there is no student yet: student(public) asks for its labels"])
        if self.answers != "student":
            return (yield from self._converse_once(partners))
        if self.release == "private":
            lesson, experts, septic = yield from self._converse_privately(partners)
        else:
            lesson, experts, septic = yield from self._converse_plainly(partners)
        settings = msgspec.structs.replace(STUDENT, seed=self.seed)
        student = teach(lesson, settings, self.edges, self.alarms)
        body = self._write(experts, septic, len(lesson.labels), lesson.deviation, student)
        return Learned(body, {}, [body.protects])

    def _converse_privately(self, partners: Partners) -> Conversation[tuple[Lesson, int, None]]:
        assert self.stays is not None
        experts, factor = self._count(partners)
        question = self._ask_labels(partners)
        sums = yield question
        laid, asked = self.stays.open(self.task)
        deviation = math.sqrt(question.variance * factor) / (GRID * experts)
        return Lesson(laid, asked, sums / (GRID * experts), deviation), experts, None

    def _ask_labels(self, partners: Partners) -> AskExpertLabels:
        assert self.stays is not None
        question = AskExpertLabels(
            query=self.query, target="", task=self.task, experts=self.experts, stays=self.stays
        )
        noise: Noise
        if self.answers == "step":
            noise = Laplace(str(exact_positive(as_written(self.epsilon), "epsilon")))
        else:
            noise = Gaussian(str(partners.variance(self.rho, question.sensitivity.squared)))
        return msgspec.structs.replace(question, noise=noise)

    def _count(self, partners: Partners) -> tuple[int, Fraction]:
        """How many experts answer, by what is public, once it is agreed who takes part, and how much more noise there
        is than is paid for; StudyError where so few would tell noise."""
        factor = partners.noise_factor
        experts = self.experts * partners.hospitals
        self._check_size(experts)
        return experts, factor

    def _check_size(self, experts: int) -> None:
        if self.answers == "student":
            check_student(experts, as_written(self.epsilon), as_written(self.delta))
        elif self.answers == "step":
            check_step(experts, self.bound, exact_positive(as_written(self.epsilon), "epsilon"))
        elif self.stays is not None:
            check_course(
                experts, self.bound, self.stays.steps, as_written(self.epsilon), as_written(self.delta)
            )

    def _converse_plainly(self, partners: Partners) -> Conversation[tuple[Lesson, int, int]]:
        assert self.stays is not None
        conditional, delta = self._noise
        sums = yield AskGrownExperts(
            query=self.query,
            target="",
            task=self.task,
            experts=self.experts,
            limit=self.limit,
            stays=self.stays,
            conditional=conditional,
            delta=delta,
        )
        hospitals, experts, septic = (max(1, round(int(one) / GRID)) for one in sums[-BESIDES:])
        laid, asked = self.stays.open(self.task)
        deviation = 0.0
        if conditional:
            rho = rho_for_epsilon(conditional, delta)
            # Each hospital's noise by its own size, of which the mean is known at least.
            each = find_course_deviation(max(1, experts // hospitals), self.bound, len(asked), rho)
            deviation = each / math.sqrt(hospitals)
        return Lesson(laid, asked, sums[:-BESIDES] / (GRID * hospitals), deviation), experts, septic

    def _converse_once(self, partners: Partners) -> Conversation[Learned[StudentBody]]:
        """One private answer of the ensembles themselves."""
        assert self.stays is not None
        experts, factor = self._count(partners)
        question = self._ask_labels(partners)
        sums = yield question
        deviation = math.sqrt(question.variance * factor) / (GRID * experts)
        body = self._write(experts, None, len(sums), deviation, None)
        told = (sums / (GRID * experts)).tolist()
        return Learned(msgspec.structs.replace(body, answer=told), {}, [body.protects])

    def _write(
        self, experts: int, septic: int | None, labels: int, deviation: float, student: StoredStudent | None
    ) -> StudentBody:
        return StudentBody(
            target=self.target,
            query=self.query,
            selection="unselected" if self.release == "private" else "grown",
            size=experts,
            septic=septic,
            labels=labels,
            deviation=deviation,
            protects=self.say_protection(),
            student=student,
        )

    def say_protection(self) -> str:
        """Who is protected from whom, and at what price."""
        if self.release == "private":
            return (
                "protected is each patient, whether or not an expert learned of it, from the house and as many "
                "colluding hospitals as the study tolerates, against being there, missing or another in its place: "
                f"{self.say_price()}. Whose experts answer is drawn by a public seed; the student costs no more"
            )
        if self.conditional is None:
            return (
                "nobody is protected: grown ensembles told their averages as they are, and kept their experts"
            )
        return (
            f"conditional, no differential privacy: noise of epsilon = {self.conditional} at delta = {self.delta} "
            "protects the patient of an expert against being another, given who else was chosen; the choice itself "
            "depends on all candidates and validation patients, whom nothing protects. Ledgers enter it as unlimited"
        )

    @property
    def _student(self) -> StoredStudent:
        student = self.body.student
        if student is None:
            raise ModelError(
                "there is no student yet: have the ensembles label public stays by student(public)"
            )
        return student

    @property
    def attributes_(self) -> list[str]:
        return list(self.task.names if self.body.student is None else self.body.student.task.names)

    def predict_proba(self, patients: AnySeries) -> NDArray[np.float64]:
        """For each stay, at its end, on which side of an alarm the student is: above a half where there is one. Not how
        likely the outcome is: nobody told the student that."""
        _, chances = judge(self._student, self._read(patients))
        return np.column_stack([1 - chances, chances])

    @property
    def placed(self) -> Decided:
        return Decided("alarm", 1, math.nextafter(0.5, 1))

    def find_unadaptable(self) -> str | None:
        return None if self.body.student is not None else "there is no student yet, and so nothing to adapt"

    @classmethod
    def parameters_in(cls, body: StudentBody) -> dict[str, Any]:
        stored = super().parameters_in(body)
        return stored if body.student is None else {**stored, "step": body.student.task.step}

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        """Each stay up to the first step with the outcome, or to its last known one, and whether it has it."""
        series = patients.series
        if not isinstance(series, Series):
            raise ModelError("this model is about series of patients, and there are none")
        series.check([self.target])
        ends, positive = find_windows(series, self.target, 1)
        rows = np.flatnonzero((ends > 0) & Query.parse(self.query).mask(patients.selectable))
        asked = series.cut(ends[rows], int(series.lengths.max()), rows) if len(rows) else series
        return KnownOutcomes(asked, positive[rows].astype(int).tolist(), rows)

    def predict_severity(self, patients: AnySeries, *, whole: bool = False) -> NDArray[np.float64]:
        """The severity at the end of each stay, or with `whole` at every step of all of them, as in `series.stays`."""
        series = self._read(patients)
        if whole:
            return tell(self._student, lay_out(series, self._student.task, labelled=False))
        return judge(self._student, series)[0]

    def explain(self, patient: Mapping[str, Any]) -> Explanation:
        """What the student says of this patient, {"HR": [88, 95, ...], ...}, and why, by its readable twin."""
        return self._explain(patient)

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        student, series = self._student, self._read([patient])
        severity, chances = judge(student, series)
        chance = float(chances[0])
        prediction = int(chance > 0.5)
        bound = student.task.bound
        first = (
            f"{self.body.target} = {prediction} (severity {severity[0]:.2f} of {bound}; an alarm begins at "
            f"{student.alarm:.2f})."
        )
        rules = open_rules(student, self.card)
        reasons: tuple[Reason, ...] = ()
        sentences = [first]
        notes: tuple[str, ...] = ()
        if rules is not None:
            twin = rules.explain(read_features(student, series)[0])
            reasons, notes = twin.reasons, twin.notes
            sentences += [f"The readable student: {twin.sentences[0]}", *twin.sentences[1:]]
        missing = [
            name for name in self.attributes_ if name not in series or np.isnan(series.stays[name]).all()
        ]
        if missing:
            note = f"Not measured, and taken for the middle of their range: {', '.join(missing)}."
            sentences, notes = [*sentences, note], (*notes, note)
        share = chance if prediction else 1 - chance
        return Explanation(
            self.body.target, prediction, share, reasons, tuple(sentences), base=0.5, notes=notes
        )

    def _read(self, patients: AnySeries) -> Series:
        names = self.attributes_ if self._body is not None else list(self.task.names)
        if isinstance(patients, Series):
            if not any(name in patients for name in names):
                raise ModelError(
                    "the patients have none of the attributes that this model asks about: "
                    + ", ".join(sorted(names))
                )
            return patients
        student = None if self._body is None else self._body.student
        return lay_out_courses(patients, names, self.step if student is None else student.task.step)

    def text(self) -> str:
        student = self.body.student
        rules = None if student is None else open_rules(student, self.card)
        return write_student(self.body, "" if rules is None else rules.text())

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """What the features of the readable student weigh, as SVG."""
        student = self.body.student
        rules = None if student is None else open_rules(student, self.card)
        return {} if rules is None else rules.pictures(whole=whole)

    def _summary(self) -> str:
        return f"{self.body.size} experts, {'a' if self.body.student else 'no'} student"
