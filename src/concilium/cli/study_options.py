"""What commands that run a study take alike, here and across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="Wait so long where a person must agree.",
        show_default=False,
    ),
]
MetricsJson = Annotated[bool, typer.Option("--json", help="Print metrics.json, and nothing else.")]
