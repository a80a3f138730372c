"""Hospitals that are not in the model are named in the terminal, with why."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from concilium.cli.main import app
from small_study import SEVERAL, lay_out


def test_a_hospital_that_refuses_is_named(tmp_path: Path) -> None:
    study = lay_out(tmp_path, SEVERAL)
    study.write_text(
        study.read_text().replace('records = "coast.csv"', 'records = "coast.csv"\npolicy = "p.toml"')
    )
    (tmp_path / "p.toml").write_text('[release]\nmodes = ["private"]\n')
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (
        "warning: coast is not in the model: it refused (mode: nothing is released as 'exact' here)"
        in result.stderr
    )
