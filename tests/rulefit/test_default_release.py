"""A RuleFit is released in one way by default, from Python and from a study file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import concilium as cc
from small_study import SPLIT, lay_out


def test_python_and_study_files_have_one_default(tmp_path: Path) -> None:
    study = SPLIT.replace('"tree"', '"rulefit"').replace("[tree]\nmax_depth = 3\n", "")
    from_file = cc.Study.read(lay_out(tmp_path, study)).open_method()
    from_python = cc.RuleFit(target="death")
    assert from_file.release == from_python.release == "masked"
    for name, value in from_python.get_params().items():
        stated = from_file.get_params()[name]
        if name == "delta":
            assert Fraction(stated) == Fraction(value)
        elif name != "bins":
            assert stated == value, name
