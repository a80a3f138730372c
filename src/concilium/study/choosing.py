"""The house chooses hospitals by what they declare: the columns that they hold, and a band of how many patients.

*Protects:* every patient, *from:* being a reason why a hospital is chosen or not: what is declared stands in the study
file, and no table is looked at. *Cost:* none. *Assumes:* a hospital declares a band that one patient does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from concilium.errors import StudyError
from concilium.study.sections import Hospital, Names

Least = Annotated[int, Meta(ge=1, description="a whole number from 1")]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """[choose]: which of the hospitals take part, by what each declares under its [[site]]."""

    columns: Names | None = None
    least: Least | None = None
    most: Least | None = None


def choose_hospitals(
    path: Path, hospitals: Sequence[Hospital], choice: Choice
) -> tuple[tuple[Hospital, ...], dict[str, str]]:
    """Those who take part, and of the others why they do not; StudyError where nobody does."""
    for one in hospitals:
        if one.size is not None and not 1 <= one.size[0] <= one.size[1]:
            raise StudyError(
                f"{path}: [[site]] {one.name}: size must be a band such as [100, 999]; got {list(one.size)}"
            )
    passed_over = {one.name: why for one in hospitals if (why := _find_reason(one, choice))}
    chosen = tuple(one for one in hospitals if one.name not in passed_over)
    if hospitals and not chosen:
        raise StudyError(f"{path}: [choose] leaves no hospital: {say_passed_over(passed_over)}")
    return chosen, passed_over


def say_passed_over(passed_over: Mapping[str, str]) -> str:
    """Who was not chosen, and why."""
    return "; ".join(f"{name} {why}" for name, why in passed_over.items())


def _find_reason(hospital: Hospital, choice: Choice) -> str:
    """Why a hospital does not take part; empty where it does."""
    absent = [name for name in choice.columns or () if name not in (hospital.declares or ())]
    if absent:
        return f"declares no column {absent[0]!r}"
    if (choice.least, choice.most) == (None, None):
        return ""
    if hospital.size is None:
        return "declares no size"
    low, high = hospital.size
    if choice.least is not None and low < choice.least:
        return f"declares {low:,} to {high:,} patients, which may be fewer than {choice.least:,}"
    if choice.most is not None and high > choice.most:
        return f"declares {low:,} to {high:,} patients, which may be more than {choice.most:,}"
    return ""
