"""`concilium consult`: what a model says of a patient, and why."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concilium.cli.output import Json, ModelFile, say, say_json
from concilium.errors import ModelError, nearest

if TYPE_CHECKING:
    from concilium.models.explanation import Explanation
    from concilium.records.columns import Value

Patient = dict[str, "Value | list[Value | None] | None"]


def consult(
    model: ModelFile,
    patient: Annotated[
        list[str],
        typer.Argument(
            metavar="PATIENT",
            help="A JSON file (a FHIR Bundle too), a table with one row per patient (csv, parquet), - for standard "
            "input, or attribute=value pairs.",
        ),
    ],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict also for patients the model is not about.")
    ] = False,
    as_json: Json = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the patient (SVG; a page with the answer if FILE ends in .html). Temporal rules: measurements "
            "and windows. Shapes: the place on each curve.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Of a FHIR Bundle: a dictionary that adds codes of attributes to the model's own.",
        ),
    ] = None,
    oldest: Annotated[
        int, typer.Option(metavar="DAYS", min=0, help="Of a FHIR Bundle, how old an observation may be.")
    ] = 365,
) -> None:
    """Predict for one or more patients, with an interval and the reasons.

    A model answers for patients of its own query only. For others it says which condition fails.

    \b
    Examples:
      concilium consult results/model.json patient.json
      concilium consult results/model.json age=63 sex=f "blood pressure=high"
      concilium consult results/model.json HR=88,95,102 Temp=37.9,38.4,38.8
      cat patient.json | concilium consult results/model.json - --json
      concilium consult results/model.json bundle.json --map heart.toml
    """
    import msgspec

    from concilium.consult.fhir_values import add_sources
    from concilium.models.model_file import load
    from concilium.records.query import Query

    method = load(model)
    patients = read_patients(patient, courses=method.reads_courses)
    sources: list[list[str]] = [[] for _ in patients]
    if mapping is not None or any("resourceType" in one for one in patients):
        patients, sources = _read_bundles(method, patients, mapping, oldest)
    _refuse_misspelt(patients, {*method.attributes_, *Query.parse(method.query).attributes})
    explanations = [
        add_sources(method.explain(row, anyway=anyway), said)
        for row, said in zip(patients, sources, strict=True)
    ]
    if picture is not None:
        _draw(method, patients, explanations, picture)
    if as_json:
        plain = [msgspec.to_builtins(explanation) for explanation in explanations]
        say_json(plain[0] if len(plain) == 1 else plain)
        return
    for number, explanation in enumerate(explanations, start=1):
        if len(explanations) > 1:
            say(("" if number == 1 else "\n") + f"patient {number}")
        say(str(explanation))


def _read_bundles(
    method: Any, patients: list[Patient], mapping: Path | None, oldest: int
) -> tuple[list[Patient], list[list[str]]]:
    """Patients of FHIR bundles as the model takes them, and of each what was read and what is missing."""
    from concilium.consult.fhir_values import find_mapping, read_patient_bundle
    from concilium.protocol.terms import today

    if not all("resourceType" in one for one in patients):
        raise ModelError(
            "--map is for a FHIR Bundle, and this patient is none: give a Bundle, or leave it out"
        )
    entries = find_mapping(method, mapping)
    read = [read_patient_bundle(method, one, entries, today(), oldest) for one in patients]
    return [dict(one.values) for one in read], [one.say() for one in read]


def _draw(method: Any, patients: list[Patient], explanations: list[Explanation], place: Path) -> None:
    """The picture of one patient, for the hospital's own eyes."""
    if not hasattr(method, "draw_patient"):
        raise ModelError(
            f"{method.called} draws no picture of a patient: --picture is for temporal rules and shapes"
        )
    if len(patients) != 1:
        raise ModelError(f"--picture draws one patient; there are {len(patients)}")
    content = method.draw_patient(patients[0])
    if place.suffix.lower() in (".html", ".htm"):
        from concilium.consult.rule_report import render_patient_page

        content = render_patient_page(explanations[0], content)
    place.write_text(content, encoding="utf-8")


def _refuse_misspelt(patients: list[Patient], attributes: set[str]) -> None:
    """A patient may have attributes no model asks about, but not one that looks like a slip of the pen."""
    for patient in patients:
        rest = attributes - set(patient)
        for name in patient:
            if name not in attributes and (hint := nearest(name, rest)):
                raise ModelError(f"the model does not ask about {name!r}{hint}")


def read_patients(arguments: list[str], *, courses: bool = False) -> list[Patient]:
    """The patients that the command line names: at least one, or ModelError. With `courses`, a value may be a list of
    numbers in order. A FHIR resource is left as it is."""
    first = arguments[0]
    if len(arguments) == 1 and first == "-":
        return _read_text(sys.stdin.read(), courses)
    if len(arguments) == 1 and Path(first).is_file():
        return _read_file(Path(first), courses)
    if all("=" in argument for argument in arguments):
        return [_read_pairs(arguments, courses)]
    wrong = next(argument for argument in arguments if "=" not in argument)
    raise ModelError(
        f"{wrong!r} is neither a file nor attribute=value; give a JSON or csv file, - for standard input, "
        "or pairs such as age=63 sex=f"
    )


def _read_file(path: Path, courses: bool = False) -> list[Patient]:
    """Patients of a JSON file (one object or a list of them) or of a table (one row each)."""
    if path.suffix == ".json":
        try:
            return _read_json(path.read_text(encoding="utf-8"), str(path), courses)
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: is not UTF-8 text (byte {error.start})") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    return _read_table(path, str(path))


def _read_text(text: str, courses: bool = False) -> list[Patient]:
    """Patients from standard input: JSON if it looks like it, else csv."""
    if text.lstrip()[:1] in ("{", "["):
        return _read_json(text, "standard input", courses)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patients.csv"
        path.write_text(text, encoding="utf-8")
        return _read_table(path, "standard input")


def _read_json(text: str, where: str, courses: bool = False) -> list[Patient]:
    def refuse(constant: str) -> None:
        raise ModelError(f"{where}: {constant} is not a value; leave out what is not known, or write null")

    try:
        content = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{where}: line {error.lineno}, column {error.colno}: is not JSON ({error.msg})"
        ) from None
    patients = content if isinstance(content, list) else [content]
    if not patients:
        raise ModelError(f"{where}: there is no patient in it")
    for patient in patients:
        if not isinstance(patient, dict):
            raise ModelError(
                f'{where}: a patient is an object such as {{"age": 63}}; got {json.dumps(patient)[:60]}'
            )
        for name, value in () if "resourceType" in patient else patient.items():
            if isinstance(value, dict if courses else list | dict):
                raise ModelError(f"{where}: {name!r} must be text, a number, true, false or null")
    return patients


def _read_table(path: Path, where: str) -> list[Patient]:
    from concilium.records.grammar import read_text
    from concilium.records.table import Records

    # As codes: what a patient has is read as it would be for that patient alone.
    records = Records.read(path, schema=dict.fromkeys(Records.read(path).names, "code"))
    if not len(records):
        raise ModelError(f"{where}: there is no patient in it")
    columns = {
        name: [read_text(value) if isinstance(value, str) else value for value in records.values(name)]
        for name in records.names
    }
    return [{name: values[row] for name, values in columns.items()} for row in range(len(records))]


def _read_pairs(pairs: list[str], courses: bool = False) -> Patient:
    """attribute=value pairs; a number is a number only as people write one (007 stays text)."""
    patient: Patient = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if not name:
            raise ModelError(f"{pair!r} names no attribute; write attribute=value, such as age=63")
        if name in patient:
            raise ModelError(f"{name!r} is given twice")
        patient[name] = [_read_value(one) for one in text.split(",")] if courses else _read_value(text)
    return patient


def _read_value(text: str) -> Any:
    """What a value stands for, as it would in a table of patients."""
    from concilium.records.grammar import DEFAULT_MISSING, read_cell

    return read_cell(text, frozenset(DEFAULT_MISSING))
