"""The attacks against Bayes' rule written out: one product after the other, and every history that could have been."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.codes.attack import (
    Precision,
    SharedView,
    _count_transitions,
    _find_lifts,
    _find_priors,
    find_largest,
    find_transitions,
    guess_events,
    guess_histories,
    judge_guesses,
    judge_patients,
)
from concilium.codes.dependence import DependenceGraph
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import SharingTest

STATES, HIDDEN = 4, 3


def draw_model(seed):
    rng = np.random.default_rng(seed)
    joint = rng.integers(0, 6, (STATES, STATES)).astype(np.int32)
    joint += joint.T
    patients = joint.max(axis=1).astype(np.int64) + rng.integers(1, 9, STATES)
    graph = DependenceGraph(patients + rng.integers(0, 5, STATES), patients, joint, int(patients.sum()))
    channel = rng.dirichlet(np.ones(HIDDEN + 1), STATES)[:, :HIDDEN]
    return graph, channel


# What is seen of one event: a hidden output, or the state in the clear.
seen = st.one_of(
    st.integers(0, HIDDEN - 1).map(lambda y: (y, -1)), st.integers(0, STATES - 1).map(lambda x: (-1, x))
)
views = st.lists(st.lists(seen, max_size=4), min_size=1, max_size=5)


def as_view(histories):
    flat = [event for history in histories for event in history]
    return SharedView(
        np.cumsum([0, *map(len, histories)], dtype=np.int64),
        np.array([y for y, _ in flat], dtype=np.intp),
        np.array([x for _, x in flat], dtype=np.intp),
    )


@given(st.integers(0, 10_000), views)
def test_the_guess_about_an_event_is_the_argmax_of_eq_3(seed, histories):
    graph, channel = draw_model(seed)
    view = as_view(histories)
    guesses = guess_events(graph, channel, view)
    priors, place = _find_priors(graph), 0
    for history in histories:
        context = {x for _, x in history if x >= 0}
        for hidden, shown in history:
            if hidden < 0:
                assert guesses[place] == shown
            else:
                weights = []
                for e in range(STATES):
                    weight = priors[e] * channel[e, hidden]
                    for c in context:
                        share = (graph.patients[c] + 0.5) / (graph.population + 1)
                        weight *= (graph.joint[e, c] + share) / (graph.patients[e] + 1) / share
                    weights.append(weight)
                assert weights[guesses[place]] >= max(weights) * (1 - 1e-4)
            place += 1


@given(st.integers(0, 10_000), views)
def test_the_guess_about_a_history_is_the_argmax_over_all_histories(seed, histories):
    graph, channel = draw_model(seed)
    counts = np.random.default_rng(seed).integers(0, 9, (STATES, STATES)).astype(np.float32)
    transitions = find_transitions(counts, graph)
    assert np.allclose(transitions.sum(axis=1), 1, atol=1e-5)
    view = as_view(histories)
    guesses = guess_histories(graph, transitions, channel, view)
    priors, place = _find_priors(graph), 0
    for history in histories:
        beliefs = np.zeros((len(history), STATES))
        for chain in itertools.product(range(STATES), repeat=len(history)):
            weight = 1.0
            for step, (x, (hidden, shown)) in enumerate(zip(chain, history, strict=True)):
                weight *= priors[x] if step == 0 else transitions[chain[step - 1], x]
                weight *= channel[x, hidden] if hidden >= 0 else float(x == shown)
            for step, x in enumerate(chain):
                beliefs[step, x] += weight
        for step, (hidden, shown) in enumerate(history):
            if hidden < 0:
                assert guesses[place] == shown
            else:
                assert beliefs[step, guesses[place]] >= beliefs[step].max() * (1 - 1e-4)
            place += 1


@given(views)
def test_many_patients_are_attacked_in_parts(histories):
    graph, channel = draw_model(1)
    transitions = find_transitions(np.ones((STATES, STATES), dtype=np.float32), graph)
    view = as_view(histories)
    whole = guess_events(graph, channel, view), guess_histories(graph, transitions, channel, view)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concilium.codes.attack.PATIENTS_AT_ONCE", 1)
        patch.setattr("concilium.codes.attack.PATIENTS_AT_ONCE", 1)
        parts = guess_events(graph, channel, view), guess_histories(graph, transitions, channel, view)
    assert all((one == other).all() for one, other in zip(whole, parts, strict=True))


def test_transitions_stay_within_a_patient():
    offsets = np.array([0, 2, 2, 5, 6], dtype=np.int64)
    codes = np.array([0, 1, 2, 1, 1, 0], dtype=np.int32)
    expected = np.zeros((3, 3))
    expected[0, 1] = expected[2, 1] = expected[1, 1] = 1
    assert (_count_transitions(offsets, codes, 3) == expected).all()


def test_independent_codes_have_no_lift():
    patients = np.array([40, 50], dtype=np.int64)
    graph = DependenceGraph(patients, patients, np.array([[0, 20], [20, 0]], dtype=np.int32), 100)
    assert abs(_find_lifts(graph)[0, 1]) < 0.02


def test_precision_counts_guesses_over_hidden_outputs_and_needs_thirty():
    guesses = np.array([0] * 40 + [1] * 29 + [0, 2])
    truth = np.array([0] * 30 + [2] * 10 + [1] * 29 + [0, 2])
    hidden = np.array([True] * 69 + [False, True])
    precisions = judge_guesses(guesses, truth, hidden, np.array([0, 1]))
    assert precisions == [Precision(40, 30, 30), Precision(29, 29, 29)]
    assert precisions[0].value == 0.75
    assert precisions[1].value is None
    assert find_largest(precisions) == 0.75
    assert find_largest(precisions[1:]) is None


def test_the_attack_on_patients_ranks_those_who_have_it_first():
    """Against ranks by hand, and where every entry is as it was nothing is left to guess."""
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 12, 200).astype(float)
    having = rng.random(200) < 0.3
    found = judge_patients(scores, having)
    pairs = [(a > b) + (a == b) / 2 for a in scores[having] for b in scores[~having]]
    assert found.auc == pytest.approx(np.mean(pairs))
    assert judge_patients(scores, np.arange(200) < 20).auc is None  # too few to tell
    perfect = judge_patients(having.astype(float), having)
    assert (perfect.auc, perfect.top) == (1.0, 1.0)
    blind = judge_patients(np.zeros(200), having)
    assert blind.auc == 0.5
    assert blind.top == pytest.approx(having.mean())


def test_the_attack_on_patients_finds_them_as_epsilon_grows_and_lengths_hide_the_number_of_entries():
    """303 makes histories longer: the number of entries tells who has it, until histories are cut to public lengths."""
    rng = np.random.default_rng(6)
    patients = []
    for _ in range(3000):
        codes = rng.choice(["250", "401", "428"], rng.integers(1, 5)).tolist()
        codes += ["303", "486"] if rng.random() < 0.15 else []
        patients.append([(float(day), code) for day, code in enumerate(codes)])
    settled = {"sensitive": ["042", "303", "304"], "max_events": 6, "block_size": 1, "hidden": []}
    low, high = (
        SharingTest(sharing, patients).measure().patients
        for sharing in (CodeSharing(epsilon=e, **settled).fit() for e in ("0.01", 8))
    )
    assert high.any_code.auc > 0.95
    assert high.any_code.top > 0.9
    assert high.worst[0] == 1
    # Nothing but the number of entries and what is in the clear is left at epsilon = 0.01.
    assert low.any_code.auc < 0.95
    assert low.by_length.auc > 0.7
    cut = CodeSharing(epsilon="0.01", lengths=[1], **settled).fit()
    assert SharingTest(cut, patients).measure().patients.by_length.auc == 0.5
