"""The counts of the dependence graph against plain loops, and path sums against a search that walks every path."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.codes import dependence
from concilium.codes.dependence import count_dependence
from concilium.errors import StudyError

SIZE = 5
events = st.tuples(st.integers(0, 9).map(float), st.integers(0, SIZE - 1))
populations = st.lists(st.lists(events, max_size=7), max_size=8)


def as_arrays(population):
    histories = [sorted(history, key=lambda event: event[0]) for history in population]
    flat = [event for history in histories for event in history]
    return (
        np.cumsum([0, *map(len, histories)], dtype=np.int64),
        np.array([code for _, code in flat], dtype=np.int32),
        np.array([time for time, _ in flat], dtype=np.float64),
    )


@given(populations, st.sampled_from([0, 1, 3.5, np.inf]), st.sampled_from([4_000_000, 3]))
def test_counts_are_those_of_plain_loops(population, within, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dependence, "PAIRS_AT_ONCE", at_once)
        graph = count_dependence(*as_arrays(population), SIZE, within)
    for code in range(SIZE):
        assert graph.events[code] == sum(other == code for history in population for _, other in history)
        assert graph.patients[code] == sum(any(other == code for _, other in one) for one in population)
    for a, b in itertools.product(range(SIZE), repeat=2):
        having = sum(
            any(
                abs(first[0] - second[0]) <= within
                for (i, first), (j, second) in itertools.product(enumerate(history), repeat=2)
                if i != j and first[1] == a and second[1] == b
            )
            for history in population
        )
        assert graph.joint[a, b] == having
    assert graph.population == len(population)


def sum_simple_paths(edges, start, end, steps):
    """Every path that visits no code twice, one after the other."""
    total = 0.0
    stack = [((start,), 1.0)]
    while stack:
        path, weight = stack.pop()
        if path[-1] == end:
            total += weight
        elif len(path) <= steps:
            stack += [
                ((*path, code), weight * edges[path[-1], code])
                for code in range(len(edges))
                if code not in path
            ]
    return min(total, 1.0)


@given(populations, st.integers(1, 3))
def test_path_sums_are_those_over_simple_paths(population, steps):
    graph = count_dependence(*as_arrays(population), SIZE, np.inf)
    targets = np.array([0, 3])
    conditionals = graph.find_conditionals(targets, steps)
    for row, (column, target) in itertools.product(range(SIZE), enumerate(targets)):
        expected = 0.0 if row == target else sum_simple_paths(graph.edges, row, target, steps)
        assert conditionals[row, column] == pytest.approx(expected, abs=1e-12)


def test_walks_would_count_cycles_and_are_no_probabilities():
    """Two codes that always come together: the path from one to the other is certain, walks go on for ever."""
    graph = count_dependence(*as_arrays([[(0.0, 0), (0.0, 1)]] * 3), SIZE, np.inf, prior=0)
    assert graph.find_conditionals(np.array([0]), 3)[1, 0] == 1.0
    walks = sum(np.linalg.matrix_power(graph.edges, power) for power in (1, 2, 3))
    assert walks[1, 0] == 2.0


def test_one_step_is_the_share_of_patients():
    population = [[(0.0, 0), (5.0, 1)], [(0.0, 1)], [(2.0, 1), (3.0, 1), (4.0, 0)], [(0.0, 1), (400.0, 0)]]
    graph = count_dependence(*as_arrays(population), SIZE, 300, prior=0)
    assert graph.find_conditionals(np.array([0]))[1, 0] == 2 / 4


def test_few_patients_say_little():
    """One in one has both, where one in a hundred has the sensitive code: as if five more had the other."""
    population = [[(0.0, 0), (0.0, 1)]] + [[(0.0, 2)]] * 99
    graph = count_dependence(*as_arrays(population), SIZE, 300)
    conditionals = graph.find_conditionals(np.array([0]))[:, 0]
    assert conditionals[1] == pytest.approx((1 + 5 * 0.01) / 6)
    assert conditionals[2] == pytest.approx(5 * 0.01 / 104)
    assert conditionals[3] == 0  # nobody has it, so nothing is known of it


def test_bad_windows_and_steps_are_refused():
    with pytest.raises(StudyError, match="the window must be a number of days of at least 0, not -1"):
        count_dependence(*as_arrays([]), SIZE, -1)
    graph = count_dependence(*as_arrays([]), SIZE, 1)
    with pytest.raises(StudyError, match="between 1 and 3 steps, not 4"):
        graph.find_conditionals(np.array([0]), 4)
