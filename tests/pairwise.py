"""Fewer cases of many settings: every two values of two settings meet in some case."""

from __future__ import annotations

import itertools


def meet_in_pairs(*settings):
    """Cases, each with one value of every setting, chosen greedily and always the same."""
    every = [list(one) for one in settings]
    left = {
        (one, a, other, b)
        for one, other in itertools.combinations(range(len(every)), 2)
        for a, b in itertools.product(range(len(every[one])), range(len(every[other])))
    }
    cases = []
    places = list(itertools.product(*(range(len(one)) for one in every)))
    while left:
        best = max(places, key=lambda case: len(find_pairs(case) & left))
        left -= find_pairs(best)
        cases.append(tuple(values[place] for values, place in zip(every, best, strict=True)))
    return cases


def find_pairs(case):
    return {
        (one, case[one], other, case[other]) for one, other in itertools.combinations(range(len(case)), 2)
    }
