"""What a study would ask, what each question costs, and whether every hospital would answer: its policy allows it, and
its ledger has room, in all and in this month. Nothing is asked or spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concilium.errors import BudgetError, ConciliumError, MaskError, StudyError
from concilium.ledger.budgets import Balance
from concilium.ledger.ledger import Ledger
from concilium.models.method import PrivateMethod
from concilium.models.private_start import NAMES_PATIENTS, find_unusable, states_attributes
from concilium.policy.policy import Policy
from concilium.privacy.accounting import Plan, PlannedQuestion, shown
from concilium.privacy.identity import Identity, has_fingerprint
from concilium.privacy.manifest import require_participants
from concilium.protocol.cohort import View
from concilium.protocol.terms import MEASURED, find_needs
from concilium.records.delimited import look
from concilium.records.sources import TEXT_FILES, is_text_file
from concilium.statistics.results import draw_html
from concilium.study.sources import read_table, read_tables, require_patients

if TYPE_CHECKING:
    from concilium.models.method import Method
    from concilium.protocol.proposal import Proposal
    from concilium.study.sections import Hospital, SplitTable
    from concilium.study.study import Study

MAY_IDENTIFY = "its name says that it identifies patients; it is left out where nearly each has another value"


@dataclass(frozen=True)
class SiteBalance:
    """What a site has spent and has left before the study, what this costs in the currency of its ledger (in rho where
    that cannot pay), and what its policy forbids of it."""

    site: str
    balance: Balance
    cost: Fraction
    forbidden: tuple[str, ...] = ()
    payable: bool = True

    @property
    def left(self) -> Fraction | None:
        """What is left of the budget; None where it is unlimited."""
        return self.balance.left

    @property
    def currency(self) -> str:
        return self.balance.currency

    @property
    def has_room(self) -> bool:
        """Whether the study fits into the budget and into this month."""
        if not self.cost:
            return True
        try:
            self.balance.check(self.cost)
        except BudgetError:
            return False
        return self.payable

    @property
    def fits(self) -> bool:
        """Whether it has room, and its policy forbids nothing of it."""
        return self.has_room and not self.forbidden

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text; an amount of None has no cap."""
        balance = self.balance
        return {
            "site": self.site,
            "currency": self.currency,
            "delta": str(balance.delta),
            "spent": str(balance.spent),
            "left": _write_exactly(self.left),
            "after": _write_exactly(self.left, self.cost),
            "budget_set_by": balance.source or None,
            "month": None
            if balance.per_month is None
            else {
                "month": balance.month,
                "spent": str(balance.month_spent),
                "left": _write_exactly(balance.month_left),
                "after": _write_exactly(balance.month_left, self.cost),
            },
            "fits": self.fits,
            "forbidden": list(self.forbidden),
        }


def _write_exactly(amount: Fraction | None, less: Fraction = Fraction(0)) -> str | None:
    return None if amount is None else str(amount - less)


@dataclass(frozen=True, repr=False)
class StudyPlan:
    """The questions of one fit (`questions`), how many models each site may be asked for, and what sites have left.

    `unstated` names columns that a private study must state under [schema], or sites refuse it. `left_out` names
    columns that the model would do without, each with the reason, as far as names of columns tell.
    """

    questions: Plan
    models: int
    sites: tuple[SiteBalance, ...]
    unstated: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    steps_aside: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Kind, cost and note of each question of one fit, as people read them."""
        return self.questions.rows()[:-1]

    def __repr__(self) -> str:
        return (
            f"StudyPlan({len(self.rows)} questions, {self.models} model{'' if self.models == 1 else 's'}, "
            f"rho at most {shown(self.total)}, {'fits' if self.fits else 'does not fit'})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the questions with their prices."""
        return f"<p><code>{escape(repr(self))}</code></p>{draw_html([('kind', 'rho', 'about'), *self.rows])}"

    @property
    def total(self) -> Fraction:
        """The rho that a patient is charged at most, over all models, which are measured once.

        Exact and masked questions have no price.
        """
        return _price(self.questions, self.models)

    @property
    def fits(self) -> bool:
        """Whether every site has room for the whole study, and allows it."""
        return all(site.fits for site in self.sites)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text; `fits` counts the models, and each site says whether it fits."""
        return {
            "currency": self.questions.currency,
            "questions": [
                {"kind": q.kind, "cost": None if q.cost is None else str(q.cost), "note": q.note}
                for q in self.questions.questions
            ],
            "fits": self.models,
            "total": str(self.total),
            "sites": [site.to_dict() for site in self.sites],
            "unstated": list(self.unstated),
            "left_out": dict(self.left_out),
            "steps_aside": dict(self.steps_aside),
            "passed_over": dict(self.passed_over),
        }


def _price(questions: Plan, models: int) -> Fraction:
    """What all models cost: what measures them is asked once (evaluation/folds.py)."""
    measured = sum((q.cost for q in questions.questions if q.kind == MEASURED and q.cost), Fraction(0))
    return (questions.total - measured) * models + measured


def price_study(study: Study, questions: Plan) -> Fraction:
    """What a study costs a patient at most, in rho."""
    return _price(questions, count_models(study)) if questions.total else Fraction(0)


def plan_study(study: Study) -> StudyPlan:
    """The plan of one fit, how often it is charged, and what each hospital has left."""
    method = study.open_method()
    method.check_before_proposing()
    if not (study.elsewhere or study.method_type.reads_courses):
        require_patients(study)
    questions, models = plan_questions(study, method), count_models(study)
    sites = _find_balances(study, method, questions, models)
    columns, steps_aside = _find_misfits(study, method)
    left_out = _find_left_out(study, method, columns)
    unstated = _find_unstated(study)
    return StudyPlan(questions, models, sites, unstated, left_out, steps_aside, study.passed_over)


def plan_questions(study: Study, method: Method[Any]) -> Plan:
    """What one fit asks, and what measures the model, where that goes through the gate."""
    plan, evaluation = method.plan(), study.find_evaluation()
    return plan if evaluation is None else replace(plan, questions=(*plan.questions, evaluation.planned))


def refuse_unfit(study: Study) -> None:
    """StudyError where `--plan` says that a hospital has no room, or will refuse: then nothing is asked. No table is
    read, unless every fold has a price."""
    studies, total, found = study.several or (study,), Fraction(0), []
    for one in studies:
        method = one.open_method()
        questions = plan_questions(one, method)
        models = count_models(one) if questions.total else 1
        total += _price(questions, models)
        found.append(_find_balances(one, method, questions, models))
    methods = ", ".join(one.variant for one in studies)
    costs = f"{methods} together cost" if study.several else f"{study.name} costs"
    fewer = "name fewer methods, or" if study.several else "take"
    _refuse_unfit(study, _add_together(found, total) if study.several else found[0], costs, total, fewer)


def refuse_proposal(study: Study, method: Proposal[Any]) -> None:
    """The same for one study of the file's hospitals."""
    plan = method.plan()
    _refuse_unfit(study, _find_balances(study, method, plan, 1), f"{method.called} costs", plan.total, "take")


def plan_proposal(study: Study, method: Proposal[Any], after: Sequence[PlannedQuestion]) -> StudyPlan:
    """What a proposal would ask of every hospital, and what may be asked of some `after` it, at no price."""
    plan = method.plan()
    sites = _find_balances(study, method, plan, 1)
    return StudyPlan(replace(plan, questions=(*plan.questions, *after)), 1, sites)


def _refuse_unfit(
    study: Study, sites: Sequence[SiteBalance], costs: str, total: Fraction, fewer: str
) -> None:
    for site in sites:
        if not site.has_room:
            amounts = {"": site.left, " in this month": site.balance.month_left}
            known = {when: amount for when, amount in amounts.items() if amount is not None}
            when = min(known, key=lambda one: known[one], default="")
            left = f"{site.currency} {shown(known[when])} is left{when}" if known else "it has none"
            later = when and site.cost <= (site.balance.per_month or 0)
            raise StudyError(
                f"{study.path}: {costs} rho {shown(total)}, and {site.site} has no room for that ({left}): "
                f"{'wait for the next month, or ' if later else ''}{fewer} a smaller epsilon (nothing was asked)"
            )
        if site.forbidden:
            raise StudyError(
                f"{study.path}: {site.site} will refuse: {site.forbidden[0]} (nothing was asked)"
            )


def _find_balances(
    study: Study, method: Proposal[Any], questions: Plan, models: int
) -> tuple[SiteBalance, ...]:
    """What every hospital has left, what the study costs there, and what its policy forbids; nothing of hospitals on
    machines of their own, which say so themselves when the study is proposed (protocol/studies.py)."""
    if study.elsewhere:
        return ()
    total = _price(questions, models)
    sites = [(hospital.name, hospital.policy, hospital.ledger) for hospital in study.hospitals]
    if study.split is not None:
        sites = [("each site", study.split.policy, None)]
    policies = {name: Policy.read(study.locate(file)) if file else Policy() for name, file, _ in sites}
    alone = _find_too_few(study, method, policies)
    balances = []
    for name, _, ledger in sites:
        balance = read_balance(policies[name], Path(study.locate(ledger)) if ledger else None)
        forbidden = alone or _find_forbidden(study, method, questions, policies[name])
        pure = method.pure_price if balance.currency != questions.currency else None
        cost, payable = (
            (total, balance.currency == questions.currency) if pure is None else (pure * models, True)
        )
        balances.append(SiteBalance(name, balance, cost, forbidden, payable))
    return tuple(balances)


def _find_too_few(study: Study, method: Proposal[Any], policies: Mapping[str, Policy]) -> tuple[str, ...]:
    """That hospitals are too few for a sum to hide one, where a list of them says how many there are."""
    if method.way_out.by_site or study.split is not None:
        return ()
    try:
        require_participants(study.name, len(policies), max(policy.colluders for policy in policies.values()))
    except MaskError as error:
        return (str(error),)
    return ()


def plan_several(studies: Sequence[Study]) -> StudyPlan:
    """The same for several methods: every question of each, and what all of them cost together."""
    plans = {study.variant: plan_study(study) for study in studies}
    first = next(iter(plans.values()))
    questions = Plan(
        first.questions.currency,
        tuple(
            replace(question, note=f"{method}: {question.note}" if question.note else method)
            for method, plan in plans.items()
            for question in plan.questions.questions
        ),
    )
    total = sum((plan.total for plan in plans.values()), Fraction(0))
    sites = _add_together([plan.sites for plan in plans.values()], total)
    unstated = tuple(dict.fromkeys(name for plan in plans.values() for name in plan.unstated))
    left_out = {name: why for plan in plans.values() for name, why in plan.left_out.items()}
    return StudyPlan(questions, first.models, sites, unstated, left_out, passed_over=first.passed_over)


def _add_together(by_method: Sequence[tuple[SiteBalance, ...]], total: Fraction) -> tuple[SiteBalance, ...]:
    """The same for all methods together."""
    return tuple(
        SiteBalance(
            alike[0].site,
            alike[0].balance,
            total,
            tuple(dict.fromkeys(sentence for site in alike for sentence in site.forbidden)),
        )
        for alike in zip(*by_method, strict=True)
    )


def _find_unstated(study: Study) -> tuple[str, ...]:
    """The columns still to be stated, where a table is a text file: databases state theirs by their types."""
    sources = [study.split] if study.split is not None else study.hospitals
    return (
        study.unstated
        if any((source.records or "").lower().endswith(TEXT_FILES) for source in sources)
        else ()
    )


def _find_misfits(study: Study, method: Method[Any]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The columns of every hospital that takes part, and the hospitals that do not fit, each with why. They step aside
    where the study says so, and stop it otherwise."""
    if study.method_type.reads_courses or study.elsewhere:
        return {}, {}
    columns = _list_columns(study)
    misfits = {}
    for site, known in columns.items():
        if absent := sorted(method.required_columns - known):
            misfits[site] = f"it has no column {absent[0]!r}, which the study needs"
    if method.spares_misfits and not study.way_out.bounded:
        for hospital in study.hospitals:
            if hospital.name in columns and hospital.name not in misfits:
                misfits |= _find_misfit_by_table(study, method, hospital)
    return {site: known for site, known in columns.items() if site not in misfits}, misfits


def _find_misfit_by_table(study: Study, method: Method[Any], hospital: Hospital) -> dict[str, str]:
    """What the gate will find in a table, and not in the names of its columns: rules of the policy that take a column
    out or make it coarser, and words where bins are stated."""
    policy = Policy.read(study.locate(hospital.policy)) if hospital.policy else Policy()
    try:
        view = View(read_table(study, study.locate(hospital.records or ""), hospital, study.reading), policy)
    except (ConciliumError, OSError):
        return {}
    if absent := sorted(method.required_columns - set(view.records.names)):
        why = view.hidden.get(absent[0], "")
        return {hospital.name: f"it has no column {absent[0]!r}, which the study needs{why and f' ({why})'}"}
    for name, edges in study.bins.items():
        try:
            if name in method.required_columns:
                view.binned(name, tuple(edges))
        except ConciliumError as error:
            return {hospital.name: str(error)}
    return {}


def _find_left_out(study: Study, method: Method[Any], columns: Mapping[str, set[str]]) -> dict[str, str]:
    """The columns that would be left out, and why, by the names of columns and by policies. No patient is looked at."""
    if not columns:
        return {}
    bounded = study.way_out.bounded
    if bounded and isinstance(method, PrivateMethod) and states_attributes(method):
        return {}  # what is stated is asked about, and a hospital without it refuses
    apart = {study.target, *(hospital.patient for hospital in study.hospitals)}
    if study.split is not None:
        apart.add(study.split.by)
    wanted = set().union(*columns.values()) if study.attributes is None else set(study.attributes)
    if bounded:
        return find_unusable(wanted - apart - {*study.values, *study.bins}, columns)
    left_out = find_unusable(wanted - apart, columns)
    return {name: MAY_IDENTIFY if why == NAMES_PATIENTS else why for name, why in left_out.items()}


def _list_columns(study: Study) -> dict[str, set[str]]:
    """The columns of every hospital's table after its map, but for those that its policy takes out by name.

    A table that is not at hand is left to the run.
    """
    sources: dict[str, Hospital | SplitTable] = {hospital.name: hospital for hospital in study.hospitals}
    if study.split is not None:
        sources = {"each site": study.split}
    columns = {}
    for site, source in sources.items():
        place = study.locate(source.records or "")
        if "://" in place:
            continue
        policy = Policy.read(study.locate(source.policy)) if source.policy else Policy()
        try:
            if source.map is None and is_text_file(place):
                names = look(Path(place)).names
            else:
                names = read_table(study, place, source, study.reading).names
        except (ConciliumError, OSError):
            continue
        columns[site] = set(names) - {*policy.withhold, *policy.identifiers}
    return columns


def count_models(study: Study) -> int:
    """How many models one site may be asked for: the one of all sites, and one for each fold it takes part in."""
    evaluate = study.evaluate
    if evaluate is None or evaluate.leave_out is None:
        return 1
    if evaluate.bands is not None:
        return evaluate.bands
    count = len(study.hospitals) if study.hospitals else len(read_tables(study))
    study.check_left_out(count)
    return max(1, count)


def _find_forbidden(study: Study, method: Proposal[Any], questions: Plan, policy: Policy) -> tuple[str, ...]:
    """What the study needs and a hospital's policy does not allow, in sentences."""
    modes, kinds = find_needs(method, questions)
    return (
        *(f"its policy releases nothing as {mode!r}" for mode in modes if mode not in policy.modes),
        *(f"its policy answers no {kind!r}" for kind in kinds if kind not in policy.kinds),
        *_find_withheld(study, policy),
        *_find_strange_house(study, policy),
    )


def _find_withheld(study: Study, policy: Policy) -> tuple[str, ...]:
    """What the study cannot do without and a policy withholds: target, query, and what a private study asks about."""
    from concilium.records.query import Query

    needed = {
        *Query.parse(study.query).attributes,
        *([study.target] if not study.method_type.reads_courses else []),
    }
    if (evaluation := study.find_evaluation()) is not None:
        needed |= {one.name for one in evaluation.subgroups}
    if study.way_out.bounded:
        stated = {*study.values, *study.bins}
        needed |= stated if study.attributes is None else stated & set(study.attributes)
    hidden = dict.fromkeys(policy.withhold, "withholds") | dict.fromkeys(policy.identifiers, "hides")
    return tuple(f"its policy {hidden[name]} {name!r}" for name in sorted(needed & set(hidden)))


def _find_strange_house(study: Study, policy: Policy) -> tuple[str, ...]:
    """Whether a policy pins the houses that may ask, and this study's is none of them, or revokes it."""
    file = None if study.house.identity is None else Path(study.locate(study.house.identity))
    if file is not None and file.exists() and policy.revokes(Identity.at(file).public):
        return (f"its policy revokes the house of {file.name}",)
    if not policy.houses:
        return ()
    if file is None:
        return ("its policy pins the houses that may ask, and [house] of the study names no identity",)
    if not file.exists():
        return (
            f"its [houses] cannot name a house that has no identity yet: make it by concilium identity {file.name}",
        )
    identity = Identity.at(file)
    if any(has_fingerprint(identity.public, pin) for pin in policy.houses.values()):
        return ()
    return (
        f"the house {identity.fingerprint} ({file.name}) is not known at this hospital: see its [houses]",
    )


def read_balance(policy: Policy, ledger: Path | None) -> Balance:
    """What a hospital has left: by its ledger if there is one already, under the budget of its policy."""
    if ledger is not None and ledger.exists():
        with Ledger.open_readonly(ledger) as book:
            return book.balance(policy.allowance)
    budget = policy.budget
    with Ledger(
        currency=None if budget is None else budget.currency,
        delta=None if budget is None else budget.exact_delta,
        allowance=policy.allowance,
    ) as book:
        return book.balance()
