"""The rules that a site answers for: those that it holds, or those that its series teach, of each patient by itself.

Learning is done once for a hospital and a task, whatever is asked after; an index is kept for the patients of the last
few questions. Nothing of it leaves the site.

docs/methods.md, section 6.11.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from concilium.errors import DoesNotFit, ModelError
from concilium.models.series_reading import AnySeries, lay_out_courses
from concilium.protocol.cohort import Cohort
from concilium.records.patients import PatientPart
from concilium.records.series import Series
from concilium.records.series_outcomes import find_windows
from concilium.records.time_grid import count_steps, read_step
from concilium.temporal.formula import Formula
from concilium.temporal.rule_sets import RuleSets
from concilium.temporal.rule_task import RuleTask, open_grammar, open_learner
from concilium.temporal.template_index import TemplateIndex
from concilium.temporal.windows import Duration

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

REMEMBERED = 6
ANYBODY = "anybody"

_lock = threading.RLock()
_kept: WeakKeyDictionary[PatientPart, OrderedDict[Hashable, RuleSets | TemplateIndex]] = WeakKeyDictionary()


def open_index(cohort: Cohort, task: RuleTask) -> TemplateIndex:
    """The rules of these patients, indexed."""
    part = cohort.view.find_part("rules" if task.learning is None else "series")
    rows = cohort.population.rows
    key = ("index", task, hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int64).tobytes()).digest())
    with _lock:
        own = _kept.setdefault(part, OrderedDict())
        index = own.get(key)
        if not isinstance(index, TemplateIndex):
            rule_sets = part if isinstance(part, RuleSets) else learn_rules(part, task)
            everyone = len(rows) == len(part)
            index = TemplateIndex(rule_sets if everyone else rule_sets.take(rows.astype(np.intp)))
            if everyone:
                _warn_of_foreign(index, task)
            _keep(own, key, index)
        own.move_to_end(key)
        return index


def prepare(part: PatientPart, task: RuleTask) -> Series:
    """The series as they are learned from and judged: the study's variables and its outcome, values carried forward.

    An outcome that is neither 0 nor 1 is missing: no patient's odd value decides whether there is an answer.
    """
    learning = task.learning
    assert isinstance(part, Series)
    assert learning is not None
    if part.step_hours != read_step(learning.step):
        raise DoesNotFit(
            f"the series of this hospital have a step of {part.step}, and the study's is {learning.step}: read "
            f'them with step="{learning.step}"'
        )
    if learning.outcome not in part or not any(name in part for name in task.names):
        raise DoesNotFit(
            f"this hospital's series have no {learning.outcome!r}, or none of the variables that the study is about"
        )
    truth = part.stays[learning.outcome]
    carried = part.state(task.names).carry_forward(learning.carry)
    outcome = np.where((truth == 0) | (truth == 1), truth, np.float32(np.nan))
    return carried.with_stays({**carried.stays, learning.outcome: outcome})


def learn_rules(part: PatientPart, task: RuleTask) -> RuleSets:
    """Each patient's rules from that patient's windows alone: the limits are public, and chance is the same for all.

    (By itself the learner draws by a patient's id, or place; one who comes or goes would move all places after.)
    """
    key = ("rules", task)
    own = _kept.setdefault(part, OrderedDict())
    learned = own.get(key)
    if not isinstance(learned, RuleSets):
        assert task.learning is not None
        outcome, window = task.learning.outcome, task.learning.window
        series, learner = prepare(part, task), open_learner(task)
        alike = Series.from_stays(
            series.stays, series.lengths, step=series.step, ids=[ANYBODY] * len(series), points=series.points
        )
        ends, _ = find_windows(series, outcome, task.learning.steps)
        # Where nobody has a window with an outcome that is no error, or one patient would decide whether there is one.
        known = bool(ends.any())
        learned = RuleSets.learn(alike, learner, outcome, window) if known else RuleSets([()] * len(series))
        learned.ids = part.ids
        _keep(own, key, learned)
    own.move_to_end(key)  # what took longest is forgotten last
    return learned


def _warn_of_foreign(index: TemplateIndex, task: RuleTask) -> None:
    """For the hospital's own log: whether the study looks for rules of the kind that its patients have."""
    reached = index.find_reached(open_grammar(task))
    if len(reached) and not reached.any():
        log.warning(
            "no patient here has a rule that this study can find: its variables are %s, and its rules have at most %d "
            "limits",
            ", ".join(task.names[:10]),
            task.limits,
        )


def _keep(
    own: OrderedDict[Hashable, RuleSets | TemplateIndex],
    key: Hashable,
    value: RuleSets | TemplateIndex,
) -> None:
    own[key] = value
    while len(own) > REMEMBERED:
        own.popitem(last=False)


def read_courses(
    patients: AnySeries,
    rules: Sequence[Formula],
    names: Sequence[str],
    step: str,
    window: str | None,
    carry: str,
) -> Series:
    """The courses of these variables: the last window of each stay with values carried forward as
    where the rules were learned, or all of it; ModelError where there is none."""
    series = patients if isinstance(patients, Series) else lay_out_courses(patients, names, step)
    if not any(name in series for name in names):
        raise ModelError(
            "the patients have none of the attributes that this model asks about: " + ", ".join(sorted(names))
        )
    series = series.state(names)
    if len(series) and window is not None:
        steps = count_steps(window, step, "window")
        series = series.carry_forward(carry)
        series = series.cut(series.lengths, steps) if int(series.lengths.max()) > steps else series
    return Series.from_stays(
        series.stays,
        series.lengths,
        step=series.step,
        ids=series.ids,
        points=max([series.points, *(count_points(rule, series.step_hours) for rule in rules)]),
    )


def count_points(rule: Formula, step_hours: float) -> int:
    """How many points in time a rule looks at, at most: where a stay is shorter, what comes after it is unknown."""
    last = 0
    for part in rule.walk():
        window = getattr(part, "window", None)
        if window is not None:
            high = window.high
            last += (high.steps(step_hours) or 0) if isinstance(high, Duration) else int(high)
    return last + 1
