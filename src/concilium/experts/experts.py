"""`Experts`: a small network for each patient, ensembles that answer in noise, and a student that ships.

Under `private` each hospital answers with the experts of patients whose own outcome changes, drawn by a public seed,
and each patient is protected at the price of the study. Under `exact` and `masked` each hospital grows an ensemble,
which says more and protects nobody beyond condition (expert_answers.py). The model is the student of public stays; the
experts stay at the hospitals. docs/methods.md, part 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError, ModelError, StudyError
from concilium.experts import expert_answers, patient_windows
from concilium.experts import expert_task as declared
from concilium.experts import student as teaching
from concilium.experts.expert_answers import BESIDES, GRID
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange
from concilium.experts.patient_windows import PublicStays
from concilium.experts.site_experts import THOUSAND, GrownEnsemble, grow_ensemble
from concilium.experts.student import LINEAR, StoredStudent, StudentBody
from concilium.models.explanation import Explanation, Reason
from concilium.models.method import (
    Carry,
    Delta,
    Epsilon,
    Method,
    PrivateMethod,
    QueryText,
    ReleaseName,
    Step,
    as_written,
    documented,
)
from concilium.models.prediction import AnySeries, KnownOutcomes, lay_out_courses, match_controls
from concilium.models.threshold import Decided
from concilium.privacy.accounting import Plan, PlannedQuestion, exact_positive, rho_for_epsilon, rho_from_pure
from concilium.protocol.house import House
from concilium.protocol.questions import Conversation, Gaussian, Laplace, Learned, Noise, Partners
from concilium.protocol.schema import say_left_out
from concilium.protocol.sums import Array, pack
from concilium.records.clinical_ranges import CLINICAL_RANGES, find_range, place_limits
from concilium.records.dictionary import say_value
from concilium.records.patients import PatientPart, Patients
from concilium.records.query import Query
from concilium.records.series import Series, find_windows

# Of torch, as the paper has it; of the small network, what did best on held-out patients (docs/experts.md).
TORCH_RATE, TORCH_BATCH = 0.001, 20
STUDENT = NetworkSettings(units=16, epochs=30, rate=0.01, clip=1.0, batch=20, patience=4, least_gain=0.003)
DOUBTFUL = 0.01
# Where a variable without a clinical range is cut.
PUBLIC_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LEAST_MOVED = 0.01
"""Of severity: a term that moves it by less is not listed."""
NO_RISK = (
    "A severity is no risk, and has no interval: nobody counted how often patients of this severity have the outcome. "
    "`concilium adapt` counts it on your own patients."
)
NO_BETTER_THAN_CHANCE = (
    "Do not use this answer: the student is no better than chance. Its labels cannot be told from noise."
)


SAME_IN_PUBLIC = "the same in all public stays, or in none; give bins for it"


def _find_public_limits(name: str, values: NDArray[np.float64]) -> tuple[float, ...]:
    """Limits of a variable of public stays: those of its clinical range, or else quantiles of the stays, which are
    nobody's secret. None where it has one value, or none at all."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not len(known) or known.min() == known.max():
        return ()
    clinical = find_range(name)
    if clinical is not None and clinical.lowest <= np.median(known) <= clinical.highest:
        return place_limits(clinical)
    quantiles = np.quantile(known, PUBLIC_QUANTILES, method="inverted_cdf").tolist()
    limits = {float(f"{number:.3g}") for number in quantiles}
    return (
        tuple(sorted(limits)) if len(limits) > 1 else tuple(sorted({float(known.min()), float(known.max())}))
    )


@dataclass(frozen=True, eq=False)
class _ExpertLabels:
    """The `labels` of public steps, how many `experts` told them, the `deviation` of their noise; how many experts'
    patients had the outcome, where that was told, and the share of patients whose outcome changes."""

    labels: NDArray[np.float64]
    experts: int
    deviation: float
    septic: int | None
    prevalence: float | None


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

    target: declared.TargetVariable
    query: QueryText = ""
    epsilon: Epsilon = 1.0
    delta: Delta = "1e-6"
    release: ReleaseName = "private"
    public: declared.Public = None
    experts: declared.Size = 200
    limit: declared.Limit = None
    conditional: declared.Conditional = None
    bins: declared.Ranges = field(default_factory=dict)
    step: Step = "1h"
    window: declared.WindowSpan = "24h"
    carry: Carry = "24h"
    lead: declared.Lead = "12h"
    bound: declared.Bound = 4
    every: declared.Every = "2h"
    grade: declared.Grade = None
    weights: declared.ExpertWeights = "uniform"
    network: declared.NetworkKind = "auto"
    units: declared.Units = 16
    layers: declared.Layers = 1
    epochs: declared.Epochs = 20
    dropout: declared.Dropout = 0.0
    alarms: declared.Alarms = 0.1
    answers: declared.Answers = "student"
    seed: declared.Seed = 1
    _house: House | None = field(init=False, default=None)
    _grown: GrownEnsemble | None = field(init=False, default=None)
    _left_out: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if not self.bins and isinstance(self.public, Series) and self.answers == "student":
            names = [name for name in self.public.names if name != self.target]
            found = {name: _find_public_limits(name, np.asarray(self.public[name])) for name in names}
            self.bins = {name: limits for name, limits in found.items() if limits}
            self._left_out = tuple(name for name, limits in found.items() if not limits)
        super().__post_init__()

    @property
    def must_know(self) -> str:
        return ""

    @property
    def reads_beside(self) -> str:
        return "series"

    def check_part(self, part: PatientPart) -> None:
        assert isinstance(part, Series)
        patient_windows.check_series(part, self.task)

    def check(self) -> None:
        try:
            self.task.check()
        except MessageError as error:
            raise StudyError(str(error)) from None
        if self.way_out.bounded and self.epsilon is None:
            raise self.wrong("epsilon", "given for release = 'private'", self.epsilon)
        if self.way_out.bounded and (self.conditional is not None or self.limit is not None):
            raise StudyError(
                "an ensemble is grown under 'exact' and 'masked' only: who is chosen depends on other patients, which "
                "no noise on its answers covers; leave limit and conditional out"
            )
        if self.weights != "uniform" and (self.way_out.bounded or self.conditional is not None):
            raise StudyError(
                f"{self.weights} weights depend on many patients, which no noise covers: they go with 'exact' and "
                "'masked' only, without conditional"
            )
        if self.task.network.kind == "linear" and (not self.way_out.bounded or self.answers != "student"):
            raise StudyError(
                'network = "linear" is told from public stays: it teaches a private student, and nothing else'
            )
        if not self.way_out.bounded and self.answers != "student":
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
        kind = self.network
        if kind == "auto":
            kind = "linear" if self.way_out.bounded and self.answers == "student" else "lstm"
        small = kind != "torch-lstm"
        network = NetworkSettings(
            kind=kind,
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
            known = find_range(name)
            stated = known is None or own != place_limits(known)
            low, high = (min(own), max(own)) if known is None or stated else (known.low, known.high)
            ranges.append(PublicRange(name, low, high if high > low else low + 1))
        return ExpertTask(
            self.target,
            tuple(ranges),
            self.step,
            self.window,
            self.carry,
            self.lead,
            self.bound,
            network,
            self.grade,
        )

    @cached_property
    def stays(self) -> PublicStays | None:
        """The public stays as hospitals are asked about them; None where there are none at hand."""
        if not isinstance(self.public, Series):
            return None
        if self.answers == "student":
            return patient_windows.lay_public(self.public, self.task, self.every)
        return patient_windows.lay_course(self.public, self.task, whole=self.answers == "course")

    @property
    def asked_about(self) -> str | None:
        """The digest of the public stays, which hospitals hold the house to."""
        if self.stays is not None:
            return self.stays.digest
        return (
            self.public
            if isinstance(self.public, str) and self.public.startswith(patient_windows.DIGEST)
            else None
        )

    @property
    def limit_agreed(self) -> tuple[int | None, str, str, str]:
        return (self.limit, *self._noise, self.weights)

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
        if self.way_out.bounded and self.answers == "step":
            return exact_positive(as_written(self.epsilon), "epsilon")
        return None

    def plan(self) -> Plan:
        if not self.way_out.bounded:
            note = "what each hospital's grown ensemble says of public stays on average, and its size"
            return Plan("rho", (PlannedQuestion("experts.grown", None, note),))
        if self.answers == "student":
            counts = PlannedQuestion(
                "experts.counts", self._rho_of_counts, "patients whose outcome changes, and all"
            )
            note = f"what about {self.experts} experts of each hospital say of public stays"
            labels = PlannedQuestion("experts.labels", self.rho - self._rho_of_counts, note)
            return Plan("rho", (counts, labels))
        what = {"step": "one step of a stay", "course": "every step of a stay"}
        note = f"what {self.experts} experts of each hospital say of {what[self.answers]}"
        return Plan("rho", (PlannedQuestion("experts.labels", self.rho, note),))

    @property
    def _rho_of_counts(self) -> Fraction:
        return self.rho * expert_answers.SHARE_OF_COUNTS

    def fit(self, house: House | Mapping[str, Any] | Iterable[Any]) -> Self:
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
        if self.way_out.bounded:
            labels = yield from self._converse_privately(partners)
        else:
            labels = yield from self._converse_plainly()
        if self.answers != "student":
            body = self._write(labels.experts, None, len(labels.labels), labels.deviation, None)
            return Learned(msgspec.structs.replace(body, answer=labels.labels.tolist()), {}, [body.protects])
        return self._teach(labels)

    def _teach(self, labels: _ExpertLabels) -> Learned[StudentBody]:
        """The student of what ensembles told, and what the card has to warn of."""
        assert self.stays is not None
        assert isinstance(self.public, Series)
        laid, asked = self.stays.open(self.task)
        laid = replace(laid, known=patient_windows.lay_out(self.public, self.task, labelled=False).known)
        centred = self.way_out.bounded
        lesson = teaching.Lesson(laid, asked, labels.labels, labels.deviation, centred)
        # Noisy labels are smoothed along window features: a network would only bend what is left of them.
        kind = LINEAR if centred else STUDENT.kind
        settings = msgspec.structs.replace(STUDENT, kind=kind, seed=self.seed)
        student = teaching.teach(lesson, settings, self.edges, self.alarms, labels.prevalence)
        body = self._write(labels.experts, labels.septic, len(labels.labels), labels.deviation, student)
        body = msgspec.structs.replace(body, prevalence=labels.prevalence, doubt=lesson.doubt)
        warnings = [body.protects]
        if self._left_out:
            warnings.append(say_left_out(dict.fromkeys(self._left_out, SAME_IN_PUBLIC)))
        if self.task.network.kind == LINEAR:
            warnings.append("severe hours were compared with public hours at the same time since admission")
        if lesson.doubt is not None and lesson.doubt > DOUBTFUL:
            warnings.append(
                "the student is no better than chance: its labels cannot be told from noise "
                f"(p = {lesson.doubt:.2g}). Do not use it; more experts or a larger epsilon would help"
            )
        return Learned(body, {}, warnings)

    def _converse_privately(self, partners: Partners) -> Conversation[_ExpertLabels]:
        """StudyError where experts are so few that they would tell noise: by what is public before anything is spent,
        and by the noisy count of patients whose outcome changes before the labels are."""
        assert self.stays is not None
        experts = self.experts * partners.hospitals
        self._check_size(experts)
        question = expert_answers.AskExpertLabels(
            query=self.query, target="", task=self.task, experts=self.experts, stays=self.stays
        )
        prevalence, rho = None, self.rho
        if self.answers == "student":
            rho -= self._rho_of_counts
            informative, patients = yield from self._count(partners)
            share = max(1, min(THOUSAND, round(THOUSAND * experts / informative)))
            experts = max(1, round(informative * share / THOUSAND))
            counted = f": about {informative:.0f} patients have an outcome that changes, and only these teach"
            expert_answers.check_student(experts, self.rho, as_written(self.delta), counted)
            prevalence = min(max(informative / max(patients, 1.0), 1e-4), 1 - 1e-4)
            question = msgspec.structs.replace(question, share=share)
        noise: Noise
        if self.answers == "step":
            noise = Laplace(str(exact_positive(as_written(self.epsilon), "epsilon")))
        else:
            noise = Gaussian(str(partners.variance(rho, question.sensitivity.squared)))
        question = msgspec.structs.replace(question, noise=noise)
        sums = yield question
        # There is more noise than is paid for, by this factor.
        deviation = math.sqrt(question.variance * partners.noise_factor) / (GRID * experts)
        return _ExpertLabels(sums / (GRID * experts), experts, deviation, None, prevalence)

    def _count(self, partners: Partners) -> Conversation[tuple[float, float]]:
        """About how many patients have an outcome that changes (at least one), and how many there are."""
        question = expert_answers.AskExpertCounts(query=self.query, target="", task=self.task)
        variance = partners.variance(self._rho_of_counts, question.sensitivity.squared)
        counts = yield msgspec.structs.replace(question, noise=Gaussian(str(variance)))
        informative, patients = (max(1.0, float(one)) for one in counts)
        return informative, patients

    def _check_size(self, experts: int) -> None:
        if self.answers == "student":
            expert_answers.check_student(experts, self.rho, as_written(self.delta))
        elif self.answers == "step":
            expert_answers.check_step(
                experts, self.bound, exact_positive(as_written(self.epsilon), "epsilon")
            )
        elif self.stays is not None:
            expert_answers.check_course(
                experts, self.bound, self.stays.steps, as_written(self.epsilon), as_written(self.delta)
            )

    def _converse_plainly(self) -> Conversation[_ExpertLabels]:
        """The same of grown ensembles, and how many of the experts' patients had the outcome."""
        assert self.stays is not None
        conditional, delta = self._noise
        truth = None
        if self.weights == "history":
            truth = self._find_truth()
        sums = yield expert_answers.AskGrownExperts(
            query=self.query,
            target="",
            task=self.task,
            experts=self.experts,
            limit=self.limit,
            stays=self.stays,
            conditional=conditional,
            delta=delta,
            weights=self.weights,
            truth=truth,
        )
        hospitals, experts, septic = (max(1, round(int(one) / GRID)) for one in sums[-BESIDES:])
        deviation = 0.0
        if conditional:
            rho = rho_for_epsilon(conditional, delta)
            # Each hospital's noise by its own size, of which the mean is known at least.
            each = expert_answers.find_course_deviation(
                max(1, experts // hospitals), self.bound, self.stays.steps, rho
            )
            deviation = each / math.sqrt(hospitals)
        return _ExpertLabels(
            sums[:-BESIDES] / (GRID * hospitals),
            experts,
            deviation,
            septic,
            None,
        )

    def _find_truth(self) -> Array:
        """The severity of the public stays, in steps of the grid; StudyError where they have none."""
        assert isinstance(self.public, Series)
        if self.target not in self.public:
            raise StudyError(
                f"weights by history need {self.target!r} in the public stays: they look at the truth of earlier steps"
            )
        severity = patient_windows.lay_out(self.public, self.task).severity
        return pack(np.nan_to_num(np.rint(severity * GRID), nan=-1.0).astype("<i4"))

    def grow(self, stays: Series) -> GrownEnsemble:
        """Grow an ensemble of a hospital's own stays, locally: `.predict(stays, weights="optimal")`. Nothing leaves,
        and nothing protects anybody."""
        patient_windows.check_target(stays, self.task)
        self._grown = grow_ensemble(patient_windows.lay_out(stays, self.task), self.experts, self.limit)
        return self._grown

    def join(self, patient: Series) -> bool:
        """Train the expert of a new patient and take it into the ensemble of `grow`, if that lowers its error. Nobody
        is trained again, and nobody leaves."""
        if self._grown is None:
            raise StudyError("a patient joins an ensemble that was grown: call grow(stays) first")
        patient_windows.check_target(patient, self.task)
        return self._grown.join(patient)

    def _write(
        self, experts: int, septic: int | None, labels: int, deviation: float, student: StoredStudent | None
    ) -> StudentBody:
        return StudentBody(
            target=self.target,
            query=self.query,
            selection="drawn by their own outcome" if self.way_out.bounded else "grown",
            size=experts,
            septic=septic,
            labels=labels,
            deviation=deviation,
            protects=self.say_protection(),
            student=student,
        )

    def say_protection(self) -> str:
        """Who is protected from whom, and at what price."""
        if self.way_out.bounded:
            return (
                "protected is each patient, whether or not an expert learned of it, from the house and as many "
                f"colluding hospitals as the study tolerates, against being there or missing: {self.say_price()}. "
                "Whose experts answer is drawn by each patient's own outcome and a public seed; the student costs "
                "no more"
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
        """For each stay, at its end, a score that ranks patients, and no risk before `cc.adapt`. Of a private student
        its level is that of the hospitals, by a noisy count, and its slope is assumed; of others a half is where an
        alarm begins."""
        _, chances = teaching.judge(self._student, self._read(patients))
        return np.column_stack([1 - chances, chances])

    @property
    def decided(self) -> Decided | None:
        return None if self._body is None or self._body.student is None else self.placed

    @property
    def placed(self) -> Decided:
        return Decided("alarm", 1, math.nextafter(self._student.risk_at_alarm, 1))

    def find_unadaptable(self) -> str | None:
        return None if self.body.student is not None else "there is no student yet, and so nothing to adapt"

    @classmethod
    def parameters_in(cls, body: StudentBody) -> dict[str, Any]:
        stored = super().parameters_in(body)
        if body.student is None:
            return stored
        task = body.student.task
        return {**stored, "step": task.step, "bound": task.bound, "grade": task.grade}

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        """Each stay up to the first step with the outcome, or without it up to a step at the same time since admission
        as some patient's with it; and whether it has it."""
        series = patients.series
        if not isinstance(series, Series):
            raise ModelError("this model is about series of patients, and there are none")
        series.check([self.target])
        patient_windows.check_target(series, self.task)
        known = series.with_stays(
            {**series.stays, self.target: patient_windows.has_outcome(series, self.task)}
        )
        ends, positive = find_windows(known, self.target, 1)
        ends = match_controls(ends, positive)
        rows = np.flatnonzero((ends > 0) & Query.parse(self.query).mask(patients.selectable))
        asked = series.cut(ends[rows], int(series.lengths.max()), rows) if len(rows) else series
        return KnownOutcomes(asked, positive[rows].astype(int).tolist(), rows)

    def find_onsets(self, series: Series) -> NDArray[np.float64]:
        """The step at which each stay first has the outcome; infinite where it never does."""
        patient_windows.check_target(series, self.task)
        return patient_windows.find_onsets(
            series, self.target, patient_windows.has_outcome(series, self.task)
        )

    def predict_severity(self, patients: AnySeries, *, whole: bool = False) -> NDArray[np.float64]:
        """The severity at the end of each stay, or with `whole` at every step of all of them, as in `series.stays`."""
        series = self._read(patients)
        if whole:
            return teaching.tell(
                self._student, patient_windows.lay_out(series, self._student.task, labelled=False)
            )
        return teaching.judge(self._student, series)[0]

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        student, series = self._student, self._read([patient])
        severity, chances = teaching.judge(student, series)
        chance = float(chances[0])
        prediction = int(chance > student.risk_at_alarm)
        named = say_value(prediction, self.card.dictionary.get(self.body.target))
        sentences = [
            f"{self.body.target} = {named} (severity {severity[0]:.2f} of {student.task.bound}; an alarm begins "
            f"above {student.alarm:.2f}).",
            NO_RISK,
        ]
        reasons: tuple[Reason, ...] = ()
        notes = [NO_RISK]
        if self.body.doubt is not None and self.body.doubt > DOUBTFUL:
            sentences.insert(0, NO_BETTER_THAN_CHANCE)
            notes.insert(0, NO_BETTER_THAN_CHANCE)
        rules = self._open_rules()
        if rules is not None:
            features = teaching.read_features(student, series)[0]
            twin = rules.explain(features)
            # A term may hold because something is missing: that is no reason.
            reasons = tuple(
                one for one in twin.reasons if all(features[name] is not None for name in one.attributes)
            )
            sentences.append(f"The readable student: {twin.sentences[0]}")
            if (float(twin.prediction or 0.0) > student.alarm) != prediction:
                sentences.append(
                    f"By the readable student alone there would be {'no' if prediction else 'an'} alarm."
                )
            sentences += _list_readable(reasons)
        missing = [
            name for name in self.attributes_ if name not in series or np.isnan(series.stays[name]).all()
        ]
        beyond = [*patient_windows.find_beyond(series, student.task)]
        notes += beyond
        sentences += beyond
        if missing:
            notes.append(f"Not measured, and no reason for or against: {', '.join(missing)}.")
            sentences.append(notes[-1])
        return Explanation(
            self.body.target,
            prediction,
            None,
            reasons,
            tuple(sentences),
            notes=tuple(notes),
            chances=(1 - chance, chance),
        )

    def _say_decided(self, explanation: Explanation) -> Explanation:
        return replace(explanation, called_from=self.placed.threshold)  # its first sentence says the alarm

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

    def _open_rules(self) -> Method[Any] | None:
        """The readable student; None where there is none."""
        return None if self.body.student is None else teaching.open_rules(self.body.student, self.card)

    def _text(self) -> str:
        rules = self._open_rules()
        return teaching.write_student(self.body, "" if rules is None else rules.text())

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """What the features of the readable student weigh, as SVG."""
        rules = self._open_rules()
        return {} if rules is None else rules.pictures(whole=whole)

    def _summary(self) -> str:
        return f"{self.body.size} experts, {'a' if self.body.student else 'no'} student"


def _list_readable(reasons: Sequence[Reason]) -> list[str]:
    """The reasons of the readable student, a sentence each; those that hardly move it in one."""
    reached = [one for one in reasons if one.moved is None or abs(one.moved) >= LEAST_MOVED]
    sentences = [
        f"{place}. {one.condition}" + ("." if one.moved is None else f": adds {one.moved:+.2f}.")
        for place, one in enumerate(reached, start=1)
    ]
    if rest := len(reasons) - len(reached):
        which = "which" if rest == 1 else "each of which"
        more = "more" if reached else "term" if rest == 1 else "terms"
        sentences.append(f"{rest} {more}, {which} adds or takes less than {LEAST_MOVED}.")
    return sentences
