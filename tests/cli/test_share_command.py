"""`concilium share`: a file in, a randomised copy and a page out, charged first, the same copy for the same command."""

from __future__ import annotations

import errno
import json
import random
import re
import stat
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import find_expected_loss
from concilium.errors import StudyError
from concilium.privacy.accounting import rho_from_pure
from concilium.protocol.journal import Journal
from concilium.registry import RELEASES
from parameter_tables import tabulate_parameters

CHEAP = ["--epsilon", "0.1", "--max-events", "5", "--sensitive", "042,303", "--sensitive", "304"]
CLEAR = ["250.00", "401.9", "428", "486", "427.31"]


def write_codes(path: Path, count: int = 300, seed: int = 1, first: str = "patient,date,code") -> Path:
    dice = random.Random(seed)
    rows = [first]
    for patient in range(count):
        codes = [dice.choice(CLEAR) for _ in range(dice.randrange(1, 4))]
        codes += ["303.9", "571.2"] if dice.random() < 0.3 else []
        rows += [f"p{seed}-{patient},2020-01-{day + 1:02},{code}" for day, code in enumerate(codes)]
    rows.append(f"p{seed}-empty,,")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    return write_codes(tmp_path / "codes.csv")


def share(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["share", *map(str, arguments)])


def read_spent(ledger: Path) -> Fraction:
    with cc.Ledger.open_readonly(ledger) as book:
        return book.spent()


def test_a_copy_a_page_and_how_it_was_drawn(codes, tmp_path):
    out = tmp_path / "shared.csv"
    done = share(codes, "--out", out, *CHEAP, "--purpose", "readmission", "--key", tmp_path / "key.csv")
    assert done.exit_code == 0, done.output
    assert "NOT FOR CARE" in done.stdout
    ledger = Path(f"{codes}.ledger")
    assert read_spent(ledger) == rho_from_pure(Fraction(1, 2))
    lines = out.read_text().splitlines()
    assert lines[0] == "patient,time,code,notice"
    assert all(line.endswith(",not for care") for line in lines[1:])
    shared = cc.Sequences.read(out)
    assert len(shared) == 301
    assert sorted(map(int, shared.ids)) == list(range(1, 302))
    key = (tmp_path / "key.csv").read_text().splitlines()
    assert key[0] == "number,patient"
    assert len({line.split(",")[1] for line in key[1:]}) == 301
    page = (tmp_path / "shared.html").read_text()
    for words in (
        "Not for care",
        "0.1</b><span>epsilon of each event",
        "0.5</b><span>epsilon of each patient, 5 events",
        "attack",
        "lost of sensitive codes",
        "lost over all codes",
        "false sensitive entries",
        "Date, signature",
        "readmission",
        "<code>303</code> Alcohol dependence",
        "<code>571</code> Chronic liver disease and cirrhosis",
        "the public list",
    ):
        assert words in page, words
    assert "p1-" not in page
    assert not re.search(r"<script|src=|href=", page)
    for file in ("shared.html", "key.csv"):
        assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
    drawn = json.loads((tmp_path / "shared.json").read_text())
    assert drawn["notice"].startswith("Not for care")
    assert drawn["design"]["sensitive"] == ["042", "303", "304"]
    inside = drawn["probabilities"]["a protected code becomes this one of its block"]
    elsewhere = drawn["probabilities"]["any code becomes this other protected one"]
    assert inside / elsewhere == pytest.approx(2.718281828**0.1)
    assert all(len(block) == drawn["design"]["block_size"] for block in drawn["blocks"].values())


def test_the_same_command_is_the_same_copy_and_costs_nothing_and_another_draw_is_paid(codes, tmp_path):
    ledger, price = Path(f"{codes}.ledger"), rho_from_pure(Fraction(1, 2))
    files = [tmp_path / f"{name}.csv" for name in ("one", "two", "three")]
    for file, more in zip(files, ([], [], ["--again"]), strict=True):
        done = share(codes, "--out", file, *CHEAP, *more)
        assert done.exit_code == 0, done.output
        assert read_spent(ledger) == price * (1 + bool(more))
    one, two, three = (file.read_text() for file in files)
    assert one == two != three


def test_a_plan_says_what_it_would_cost_and_charges_and_writes_nothing(codes, tmp_path):
    done = share(codes, "--plan", *CHEAP)
    assert done.exit_code == 0, done.output
    assert "301 patients would be shared" in done.stdout
    assert "sensitive: 042, 303, 304" in done.stdout
    assert "hidden with them (the public list): 176, 571, 980" in done.stdout
    assert "0.5 for every patient: rho = ~0.122" in done.stdout
    assert "it fits" in done.stdout
    dear = share(codes, "--plan")
    assert dear.exit_code == 2
    assert "it does not fit" in dear.stdout
    assert "epsilon = 1 with max_events = 1 or max_events = 100 with epsilon = 0.0154" in dear.stdout
    plain = json.loads(share(codes, "--plan", "--json", *CHEAP).stdout)
    assert (plain["fits"], plain["epsilon_per_patient"]) == (True, "1/2")
    closed = tmp_path / "closed.toml"
    closed.write_text('[release]\nmodes = ["exact"]\n')
    refused = share(codes, "--plan", *CHEAP, "--policy", closed)
    assert refused.exit_code == 2
    assert "releases nothing as 'shared'" in refused.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed.toml", "codes.csv"]


def test_a_budget_that_is_spent_is_a_sentence_that_says_what_fits(codes, tmp_path):
    done = share(codes, "--out", tmp_path / "shared.csv")
    assert done.exit_code == 2
    assert "would cost rho = 100, but 1 is left" in done.stderr
    assert "max_events * epsilon = 100" in done.stderr
    assert "max_events = 100 with epsilon = 0.0154" in done.stderr
    assert not (tmp_path / "shared.csv").exists()
    generous = tmp_path / "policy.toml"
    generous.write_text('[budget]\ntotal = "200"\n')
    done = share(codes, "--out", tmp_path / "shared.csv", "--policy", generous, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epsilon_per_patient"] == "100"


def test_auxiliary_patients_of_another_file_leave_nobody_out(codes, tmp_path):
    other = write_codes(tmp_path / "other.csv", seed=2)
    done = share(codes, "--out", tmp_path / "shared.csv", *CHEAP, "--auxiliary", other)
    assert done.exit_code == 0, done.output
    assert len(cc.Sequences.read(tmp_path / "shared.csv")) == 301
    assert "301 auxiliary patients" in (tmp_path / "shared.html").read_text()
    # Who is in both is shared and not learned from.
    both = tmp_path / "both.csv"
    both.write_text(codes.read_text() + "".join(other.read_text().splitlines(keepends=True)[1:]))
    plan = share(codes, "--plan", *CHEAP, "--auxiliary", both)
    assert "hidden with them (taught by auxiliary patients, 301 of them): " in plan.stdout
    own = share(codes, "--plan", *CHEAP, "--auxiliary", codes)
    assert own.exit_code == 2
    assert "all of its patients are among those that are shared" in own.stderr


def test_one_ledger_for_models_and_codes(codes, tmp_path):
    """A ledger of the table alone takes the codes of the same patients, and a budget spent on models is spent."""
    ids = dict.fromkeys(line.split(",")[0] for line in codes.read_text().splitlines()[1:])
    table = tmp_path / "table.csv"
    table.write_text(
        "patient,age,y\n" + "".join(f"{one},{40 + n % 50},{n % 2}\n" for n, one in enumerate(ids))
    )
    ledger, policy = tmp_path / "north.ledger", cc.Policy(budget=cc.Budget("0.2"))
    records = cc.Records.read(table, schema={"patient": "code", "age": "number", "y": "code"})
    names = ("north", "south", "west")
    sites = [cc.Site(n, records, policy, ledger if n == "north" else None) for n in names]
    cc.NaiveBayes("y", release="private", epsilon=2, bins={"age": [60]}, values={"y": [0, 1]}).fit(
        cc.House(sites)
    )
    spent = sites[0].ledger.spent()
    sites[0].ledger.close()
    assert 0 < spent < Fraction(1, 5)
    (tmp_path / "policy.toml").write_text('[budget]\ntotal = "0.2"\n')
    gate = [
        "--ledger",
        ledger,
        "--policy",
        tmp_path / "policy.toml",
        "--records",
        table,
        "--query",
        "age > 50",
    ]
    done = share(codes, "--out", tmp_path / "shared.csv", *CHEAP, *gate)
    assert done.exit_code == 2
    assert "north: this would cost rho = about 0.122" in done.stderr
    small = [*CHEAP[:3], "2", *CHEAP[4:]]
    done = share(codes, "--out", tmp_path / "shared.csv", *small, *gate)
    assert done.exit_code == 0, done.output
    assert read_spent(ledger) == spent + rho_from_pure(Fraction(1, 5))
    assert 0 < len(cc.Sequences.read(tmp_path / "shared.csv")) < 301
    cc.Site("north", records, policy, ledger).ledger.close()  # and goes on with models


def test_a_person_agrees_first_where_the_policy_says_so(codes, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("[agree]\nleast_patients = 10\n")
    arguments = [codes, "--out", tmp_path / "shared.csv", *CHEAP, "--policy", policy]
    waiting = share(*arguments)
    assert waiting.exit_code == 2
    study = re.search(r"studies show \S+ (\w+)", waiting.stderr)[1]
    shown = CliRunner().invoke(app, ["studies", "show", f"{codes}.ledger", study, "--policy", str(policy)])
    assert "code-sharing" in shown.stdout
    listed = CliRunner().invoke(app, ["studies", f"{codes}.ledger"])
    assert "code-sharing: 3 sensitive codes" in listed.stdout
    decision = [f"{codes}.ledger", study, "--who", "Dr. Meyer", "--why", "vote of 3 May"]
    assert CliRunner().invoke(app, ["studies", "agree", *decision]).exit_code == 0
    done = share(*arguments)
    assert done.exit_code == 0, done.output
    assert "unlimited" in CliRunner().invoke(app, ["ledger", f"{codes}.ledger"]).stdout


def test_icd10_own_trees_columns_and_fhir(tmp_path):
    dice = random.Random(3)
    rows = ["who,when,what"]
    for patient in range(60):
        for day in range(dice.randrange(4)):
            rows.append(f"{patient},{day},{dice.choice(['I10', 'E11.9', 'F10.20', 'K70.3'])}")
    table = tmp_path / "ten.csv"
    table.write_text("\n".join(rows) + "\n")
    columns = ["--patient", "who", "--time", "when", "--code", "what"]
    cheap = ["--epsilon", "0.1", "--max-events", "3"]
    ten = ["--taxonomy", "icd10", "--sensitive", "F10,F11", "--gamma", "1", "--gamma-max", "1"]
    done = share(table, "--out", tmp_path / "ten.csv.gz", *columns, *cheap, *ten)
    assert done.exit_code == 0, done.output
    (tmp_path / "tree.csv").write_text("parent,child\na,I10\na,E11.9\nb,F10.20\nb,K70.3\nb,other\n")
    own = ["--taxonomy", tmp_path / "tree.csv", "--sensitive", "F10.20,other", "--dates", "kept", "--again"]
    done = share(table, "--out", tmp_path / "own.parquet", *columns, *cheap, *own, "--ledger", tmp_path / "l")
    assert done.exit_code == 0, done.output
    assert set(cc.Sequences.read(tmp_path / "own.parquet").labels) <= {
        "I10",
        "E11.9",
        "F10.20",
        "K70.3",
        "other",
    }
    conditions = [
        {
            "resourceType": "Condition",
            "id": f"c{number}",
            "subject": {"reference": f"Patient/{number % 40}"},
            "onsetDateTime": f"2020-01-{number % 28 + 1:02}",
            "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": "F10.20"}]},
        }
        for number in range(60)
    ]
    entries = [{"resource": one} for one in conditions]
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    done = share(tmp_path / "bundle.json", "--out", tmp_path / "fhir.csv", *cheap, *ten)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("rows", "arguments", "said"),
    [
        ([], ["--sensitive", "999.99x"], "1 code is not in Taxonomy(ICD-9-CM"),
        (["x,2020-01-01,E11.9"], [], "codes of ICD-9-CM and ICD-10-CM are mixed"),
        (["x,2020-01-01,999.999"], [], "1 code is not in Taxonomy"),
        (["x,2020-01-01,42", "x,2020-01-01,4019"], [], "have lost both dots and leading zeros"),
        ([], ["--block-size", "50"], "a block must be smaller than the set of protected codes: a size of 50"),
        ([], ["--epsilon", "none"], "'epsilon' of a CodeSharing must be a number above 0"),
        ([], ["--mechanism", "suppression"], "suppression has no price"),
        ([], ["--max-events", "0"], "'max_events' of a CodeSharing must be a whole number from 1"),
        ([], ["--auxiliary", "nowhere.csv"], "nowhere.csv"),
        ([], ["--query", "age > 3"], "name the table of these patients"),
        ([], ["--policy", "nowhere.toml"], "nowhere.toml: cannot be read"),
        ([], ["--patient", "who"], "'who'"),
    ],
)
def test_bad_input_is_one_sentence_and_charges_nothing(codes, tmp_path, rows, arguments, said):
    codes.write_text(codes.read_text() + "".join(f"{row}\n" for row in rows))
    done = share(codes, "--out", tmp_path / "shared.csv", *CHEAP, *arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "shared.csv").exists()
    assert not Path(f"{codes}.ledger").exists() or not read_spent(Path(f"{codes}.ledger"))


def test_where_the_copy_goes_is_looked_at_before_anything_is_charged(codes, tmp_path):
    for out, said in (
        (tmp_path / "shared.txt", "ends in .csv, .csv.gz, .parquet"),
        (tmp_path / "nowhere" / "shared.csv", "there is no folder"),
    ):
        done = share(codes, "--out", out, *CHEAP)
        assert done.exit_code == 2
        assert said in done.stderr
    assert "say where the copy goes" in share(codes, *CHEAP).stderr
    assert not Path(f"{codes}.ledger").exists()


def test_codes_with_and_without_dots_and_zeros_are_one_code(codes, tmp_path):
    """Blanks, dots and lost zeros of a category do not make another patient of it."""
    texts = ["25000", "250", " 250.00", "042", "0419", "41.9"]
    more = [f"x{number},2020-01-01,{text}\n" for number, text in enumerate(texts)]
    codes.write_text(codes.read_text() + "".join(more))
    assert share(codes, "--plan", *CHEAP).exit_code == 0
    codes.write_text(codes.read_text() + "z1,2020-01-01,42\nz2,2020-01-01,4019\n")
    assert "have lost both dots and leading zeros" in share(codes, "--plan", *CHEAP).stderr
    done = share(codes, "--plan", *CHEAP, "--zeros", "lost")
    assert "may be" in done.stderr or done.exit_code == 0, done.output


def write_study(folder: Path, parameters: str = "", more: str = "") -> Path:
    file = folder / "share.toml"
    file.write_text(
        '[study]\nname = "codes of the north"\nmethod = "code-sharing"\npurpose = "readmission"\n'
        f"[code-sharing]\n{parameters}"
        f'[[site]]\nname = "north"\ncodes = "codes.csv"\nledger = "north.ledger"\n{more}'
    )
    return file


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


AGREED = 'sensitive = ["042", "303", "304"]\nepsilon = 0.1\nmax_events = 5\n'


def test_a_study_file_shares_what_the_command_does(codes, tmp_path):
    study = write_study(tmp_path, AGREED)
    plan = run(study, "--plan")
    assert plan.exit_code == 0, plan.output
    assert "301 patients would be shared" in plan.stdout
    assert not (tmp_path / "north.ledger").exists()
    done = run(study, "--out", tmp_path / "results")
    assert done.exit_code == 0, done.output
    assert read_spent(tmp_path / "north.ledger") == rho_from_pure(Fraction(1, 2))
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "shared.csv",
        "shared.json",
        "shared.html",
    }
    # The same by the command: the same terms, so the same copy, free.
    gate = ["--ledger", tmp_path / "north.ledger", "--site", "north", "--purpose", "readmission"]
    assert share(codes, "--out", tmp_path / "again.csv", *CHEAP, *gate).exit_code == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "results" / "shared.csv").read_text()
    assert read_spent(tmp_path / "north.ledger") == rho_from_pure(Fraction(1, 2))


def test_a_study_file_names_columns_auxiliary_patients_a_table_and_who_agrees(tmp_path):
    write_codes(tmp_path / "codes.csv", first="who,when,what")
    write_codes(tmp_path / "other.csv", seed=2, first="who,when,what")
    ids = sorted({line.split(",")[0] for line in (tmp_path / "codes.csv").read_text().splitlines()[1:]})
    rows = [f"{one},{40 + number % 50}" for number, one in enumerate(ids)]
    (tmp_path / "table.csv").write_text("\n".join(["id,age", *rows]) + "\n")
    (tmp_path / "policy.toml").write_text("[agree]\nleast_patients = 10\n")
    study = write_study(
        tmp_path,
        AGREED + 'gamma = { "042" = 0.5, "303" = 0.05, "304" = 1 }\ndates = "kept"\n',
        'records = "table.csv"\npatient = "id"\npolicy = "policy.toml"\n'
        '[codes]\npatient = "who"\ntime = "when"\ncode = "what"\n[auxiliary]\ncodes = "other.csv"\n',
    )
    study.write_text(study.read_text().replace("[study]\n", '[study]\nquery = "age > 60"\n'))
    plan = json.loads(run(study, "--plan", "--json").stdout)
    assert (plan["auxiliary_patients"], plan["design"]["dates"]) == (301, "kept")
    waiting = run(study, "--out", tmp_path / "results")
    assert waiting.exit_code == 2
    assert "waits for a person of the hospital to agree" in waiting.stderr


@pytest.mark.parametrize(
    ("parameters", "more", "said"),
    [
        ("epsilom = 1\n", "", "[code-sharing] has no key 'epsilom'; did you mean 'epsilon'?"),
        ("max_events = 0\n", "", "[code-sharing] max_events must be a whole number from 1 to 100000; got 0"),
        ("", "[tree]\n", "a sharing of codes has no section [tree]"),
        ("", '[[site]]\nname = "south"\ncodes = "b.csv"\n', "name it by one [[site]]"),
        ("", "[auxiliary]\npercent = 95\n", "[auxiliary] has no key 'percent'"),
        ("", 'series = "x.csv"\n', "[[site]] has no key 'series'"),
    ],
)
def test_a_wrong_study_file_is_one_sentence(codes, tmp_path, parameters, more, said):
    done = run(write_study(tmp_path, parameters, more), "--plan")
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_a_sharing_is_no_study_of_a_model(codes, tmp_path):
    with pytest.raises(StudyError, match="shares patients' entries and learns no model"):
        cc.Study.read(write_study(tmp_path))
    assert "say where the copy goes" in run(write_study(tmp_path)).stderr


def test_the_calls_that_the_refusal_names_share_the_codes(codes, tmp_path, monkeypatch):
    """Somebody pastes what the sentence says, from Python and on a terminal."""
    monkeypatch.chdir(tmp_path)
    file = write_study(tmp_path, AGREED)
    with pytest.raises(StudyError) as refused:
        cc.Study.read(file)
    called = re.search(r"In Python: (.*) \(or \.plan\(\)\)$", str(refused.value)).group(1)
    exec(called)
    assert (tmp_path / "shared.csv").is_file()
    exec(called.replace('.run("shared.csv")', ".plan()"))
    command = re.search(r"concilium run (.*?) \(or --plan\)", str(refused.value)).group(1)
    assert run(*command.split()).exit_code == 0
    assert (tmp_path / "results" / "shared.csv").read_bytes() == (tmp_path / "shared.csv").read_bytes()


def test_a_wrong_sharing_says_what_is_wrong_with_it_in_python_too(tmp_path):
    with pytest.raises(StudyError, match="has no key 'epsilom'; did you mean 'epsilon'"):
        cc.Study.read(write_study(tmp_path, "epsilom = 1\n"))
    file = write_study(tmp_path)
    file.write_text(file.read_text().replace('"code-sharing"', '"code-counts"'))
    with pytest.raises(StudyError, match="concilium share CODES --counts EPSILON"):
        cc.Study.read(file)


def test_a_study_file_given_as_codes_is_pointed_to_the_command_that_runs_it(codes, tmp_path):
    file = write_study(tmp_path)
    done = share(file, "--out", tmp_path / "shared.csv")
    assert done.exit_code == 2
    assert (
        f"this is a study file, and CODES are dated codes. Share as it says: concilium run {file}"
        in done.stderr
    )
    assert not (tmp_path / "shared.csv").exists()


def test_the_page_about_sharing_has_the_table_of_its_parameters():
    page = (Path(__file__).parents[2] / "docs" / "code-sharing.md").read_text(encoding="utf-8")
    assert tabulate_parameters(CodeSharing) in page, tabulate_parameters(CodeSharing)


def test_what_is_shared_is_a_release_of_its_own():
    assert RELEASES["shared"].priced
    assert not RELEASES["shared"].bounded


def test_one_release_has_one_epsilon_wherever_it_is_shown(codes, tmp_path):
    """The epsilon of a pure mechanism is that number; what rho would make of it at some delta is another."""
    assert share(codes, "--out", tmp_path / "shared.csv", *CHEAP, "--purpose", "one epsilon").exit_code == 0
    assert "epsilon = 0.5" in (tmp_path / "shared.html").read_text()
    book = CliRunner().invoke(app, ["ledger", f"{codes}.ledger"]).stdout
    assert "epsilon 0.5 " in book
    assert "is spent (epsilon = 0.5)" in book
    listed = CliRunner().invoke(app, ["studies", f"{codes}.ledger"], env={"COLUMNS": "250"}).stdout
    shown = [line for line in listed.splitlines() if "one epsilon" in line]
    assert shown
    assert "epsilon 0.5 " in shown[0]
    study = listed.split()[-1] if not shown else shown[0].split()[-1]
    page = CliRunner().invoke(app, ["studies", "show", f"{codes}.ledger", study]).stdout
    assert "epsilon 0.5 (rho 0.123)" in " ".join(page.split())
    assert "2.8" not in book + shown[0]  # epsilon_from_rho(0.1225, 1e-6)


def read_plan(out):
    return json.loads(out.with_name(f"{out.stem}.plan.json").read_text())


def test_what_is_planned_is_what_is_shared(codes, tmp_path):
    """The same plan whoever makes it and however often; what follows it is what it fixed."""
    out = tmp_path / "shared.csv"
    plans = []
    for name in ("shared.csv", "a.csv", "b.csv"):
        assert share(codes, "--plan", *CHEAP, "--out", tmp_path / name).exit_code == 0
        plans.append(read_plan(tmp_path / name))
    assert len({plan["plan"] for plan in plans}) == 1
    assert not list(tmp_path.glob("*.ledger*"))
    assert stat.S_IMODE((tmp_path / "shared.plan.json").stat().st_mode) == 0o600
    assert share(codes, "--out", out, *CHEAP).exit_code == 0
    assert json.loads((tmp_path / "shared.json").read_text())["design"] == plans[0]["design"]
    assert plans[0]["plan"][:12] in (tmp_path / "shared.html").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("records", "the records have changed since this plan was made"),
        ("options", "epsilon is 1/5, and 1/10 was planned"),
        ("edited", "this is no plan of a sharing, or it was edited since"),
        ("auxiliary", "the auxiliary file has changed since this plan was made"),
    ],
)
def test_a_plan_that_does_not_hold_any_more_is_refused_before_anything_is_charged(
    codes, tmp_path, change, said
):
    out, other = tmp_path / "shared.csv", write_codes(tmp_path / "other.csv", seed=2)
    options = [*CHEAP, *(["--auxiliary", other] if change == "auxiliary" else [])]
    assert share(codes, "--plan", *options, "--out", out).exit_code == 0
    if change == "records":
        codes.write_text(codes.read_text() + "new,2020-01-01,250.00\n")
    elif change == "options":
        options = ["--epsilon", "0.2", *CHEAP[2:]]
    elif change == "auxiliary":
        other.write_text(other.read_text() + "new,2020-01-01,250.00\n")
    else:
        file = tmp_path / "shared.plan.json"
        file.write_text(file.read_text().replace('"571"', '"572"'))
    done = share(codes, "--out", out, *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "Error" in done.stderr
    assert not out.exists()
    assert not Path(f"{codes}.ledger").exists() or not read_spent(Path(f"{codes}.ledger"))


def test_another_draw_that_is_refused_leaves_the_copy_that_was_paid_for(codes, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[budget]\ntotal = "0.2"\n')
    gate, out = ["--policy", policy, *CHEAP], tmp_path / "shared.csv"
    assert share(codes, "--out", out, *gate).exit_code == 0
    paid, spent = out.read_text(), read_spent(Path(f"{codes}.ledger"))
    refused = share(codes, "--out", out, *gate, "--again")
    assert refused.exit_code == 2
    assert "would cost" in refused.stderr
    out.unlink()
    assert share(codes, "--out", out, *gate).exit_code == 0
    assert out.read_text() == paid
    assert read_spent(Path(f"{codes}.ledger")) == spent


def test_no_patient_who_is_shared_decides_what_is_hidden(codes, tmp_path):
    """The hidden set leaves in the terms, uncharged: no record may move it."""
    designs = []
    for more in (
        "",
        "one,2020-01-01,303\none,2020-01-02,729\n" * 1,
        "".join(f"x{n},2020-01-01,303\nx{n},2020-01-01,729\n" for n in range(90)),
    ):
        file = tmp_path / "changed.csv"
        file.write_text(codes.read_text() + more)
        designs.append(json.loads(share(file, "--plan", "--json", *CHEAP).stdout)["design"])
    assert designs[0] == designs[1] == designs[2]
    named = json.loads(share(codes, "--plan", "--json", *CHEAP, "--hidden", "571,070").stdout)
    assert (named["design"]["hidden"], named["source"]) == (["070", "571"], "named by the study")


def test_with_few_patients_the_page_says_that_it_cannot_tell(tmp_path):
    few = write_codes(tmp_path / "few.csv", count=25)
    done = share(few, "--out", tmp_path / "shared.csv", *CHEAP)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "shared.html").read_text()
    assert "too few to tell" in page
    assert "too few to tell" in done.stdout
    assert "none named" not in page + done.stdout


def test_a_plan_says_what_each_budget_buys(codes, tmp_path):
    plan = json.loads(share(codes, "--plan", "--json", *CHEAP).stdout)
    points = plan["curve"]
    assert [point["price"] for point in points] == sorted(point["price"] for point in points)
    assert {0.5, 1.5, 50.0} <= {point["price"] for point in points}
    false = [point["false"] for point in points]
    assert false == sorted(false, reverse=True)
    assert false[0] > 0.8 > 0.4 > false[-1]
    assert [point["fits"] for point in points] == sorted((point["fits"] for point in points), reverse=True)
    # What is expected is what a draw brings.
    assert share(codes, "--out", tmp_path / "shared.csv", *CHEAP, "--json").exit_code == 0
    done = json.loads(share(codes, "--out", tmp_path / "shared.csv", *CHEAP, "--json").stdout)
    planned = next(point for point in points if point["price"] == 0.5)
    assert done["false"] == pytest.approx(planned["false"], abs=0.06)
    assert done["loss_all"] == pytest.approx(planned["loss"], abs=0.06)


def test_what_is_left_is_said_in_pure_epsilon_on_the_page_in_the_plan_and_in_refusals(codes, tmp_path):
    out = tmp_path / "shared.csv"
    assert share(codes, "--out", out, *CHEAP).exit_code == 0
    left = "enough for one {}release of epsilon = 1.4298"  # e tanh(e/2) = 1 - 0.5 tanh(0.25)
    assert left.format("more ") in (tmp_path / "shared.html").read_text()
    assert left.format("") in share(codes, "--plan", *CHEAP).stdout
    done = share(codes, "--out", tmp_path / "counts.json", "--counts", "2")
    assert done.exit_code == 2
    assert "these counts cost epsilon = 2, and epsilon = 1.4298 would fit" in done.stderr
    assert share(codes, "--out", tmp_path / "counts.json", "--counts", "1.4298").exit_code == 0


def test_a_disk_that_fills_after_the_charge_is_one_sentence_and_charges_once(codes, tmp_path, monkeypatch):
    """The ledger is charged, and the answer cannot be kept: the same command gets the same answer, free."""

    def fill_up(journal, replies):
        journal._database.execute("PRAGMA max_page_count = 1")
        keep(journal, replies)

    keep = Journal.keep
    for out, more in (("shared.csv", []), ("counts.json", ["--counts", "0.3"])):
        monkeypatch.setattr(Journal, "keep", fill_up)
        done = share(codes, "--out", tmp_path / out, *CHEAP, *more)
        assert done.exit_code == 2
        assert "database or disk is full" in done.stderr
        assert "run the same command again: nothing is charged twice" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        spent = read_spent(Path(f"{codes}.ledger"))
        assert spent > 0
        monkeypatch.setattr(Journal, "keep", keep)
        assert share(codes, "--out", tmp_path / out, *CHEAP, *more).exit_code == 0
        assert read_spent(Path(f"{codes}.ledger")) == spent


def test_counts_that_cannot_be_written_leave_those_before(codes, tmp_path, monkeypatch):
    out = tmp_path / "counts.json"
    assert share(codes, "--out", out, "--counts", "0.3").exit_code == 0
    before = out.read_text()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    done = share(codes, "--out", out, "--counts", "0.2")
    assert done.exit_code == 2
    assert "counts.json: cannot be written (No space left on device); what was there before" in done.stderr
    assert out.read_text() == before
    assert not list(tmp_path.glob(".part*"))


@pytest.mark.parametrize("more", [[], ["--plan"], ["--counts", "0.5"]])
def test_codes_of_another_classification_are_one_sentence_that_names_the_file(tmp_path, more):
    file = tmp_path / "codes.csv"
    file.write_text("patient,date,code\n1,2020-01-01,E11.9\n2,2020-01-01,F10.10\n")
    done = share(file, "--out", tmp_path / f"shared.{'json' if '--counts' in more else 'csv'}", *CHEAP, *more)
    assert done.exit_code == 2
    said = "these are codes of ICD-10-CM ('E11.9', 'F10.10'), not of ICD-9-CM; taxonomy = 'icd10' reads them"
    assert done.stderr == f"{file}: {said}\n"
    assert {one.name for one in tmp_path.iterdir()} == {"codes.csv"}


def test_a_disk_that_fills_midway_loses_nothing_and_charges_once(codes, tmp_path, monkeypatch):
    out = tmp_path / "shared.csv"
    assert share(codes, "--out", out, *CHEAP).exit_code == 0
    before, ledger = out.read_text(), Path(f"{codes}.ledger")
    spent = read_spent(ledger)
    with monkeypatch.context() as patch:

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("concilium.study.code_sharing._write_owned", fail)
        done = share(codes, "--out", out, *CHEAP, "--again")
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert "writes this copy again, free" in done.stderr
    assert out.read_text() == before
    assert not list(tmp_path.glob(".part*"))
    paid = read_spent(ledger)
    assert paid == 2 * spent
    assert share(codes, "--out", out, *CHEAP).exit_code == 0
    assert out.read_text() != before
    assert read_spent(ledger) == paid


def test_errors_call_options_by_their_names(codes, tmp_path):
    """`--time`, as the command has it, and [codes] time, as a study file has it: not time=."""
    codes.write_text(codes.read_text().replace("patient,date,code", "patient,whenever,code"))
    for done in (share(codes, "--plan", *CHEAP), run(write_study(tmp_path, AGREED), "--plan")):
        assert done.exit_code == 2
        assert "--time COLUMN (time = under [codes] of a study file)" in done.stderr
        assert "time=..." not in done.stderr
    done = share(codes, "--plan", *CHEAP, "--time", "nowhere")
    assert "[codes] of a study file) names a column 'nowhere' that is not there" in done.stderr
    assert ": time names" not in done.stderr


def test_alpha_of_the_distance_is_a_parameter_of_the_design(codes):
    designs = [
        json.loads(share(codes, "--plan", "--json", *CHEAP, "--alpha", alpha).stdout)["design"]
        for alpha in ("0", "0.5", "1")
    ]
    assert [design["alpha"] for design in designs] == [0, 0.5, 1]
    sharing = CodeSharing(sensitive=["042", "303", "304"], alpha=1, block_size=2).fit()
    other = CodeSharing(sensitive=["042", "303", "304"], alpha=0, block_size=2).fit()
    ours = sharing.taxonomy.distances(["042", "303"], 1)[0, 1]
    assert ours == pytest.approx(1.0)  # with alpha = 1 chapters apart are as far as can be
    assert find_expected_loss(sharing) != find_expected_loss(other)


def test_counts_instead_of_a_copy_by_a_command(codes, tmp_path):
    done = share(codes, "--counts", "0.5", "--out", tmp_path / "counts.json", *CHEAP)
    assert done.exit_code == 0, done.output
    assert "standard deviation of 59.4, at epsilon = 1/2" in done.stdout
    assert read_spent(Path(f"{codes}.ledger")) == rho_from_pure(Fraction(1, 2))
    plan = share(codes, "--plan", *CHEAP, "--auxiliary", tmp_path / "counts.json")
    assert "noisy counts that were charged" in plan.stdout
    assert "say where the counts go" in share(codes, "--counts", "0.5", *CHEAP).stderr


def test_what_a_patient_wants_hidden_is_hidden_for_everyone_so_that_no_wish_shows(codes, tmp_path):
    wishes = tmp_path / "wishes.csv"
    wishes.write_text("patient,hide\np1-1,428\np1-2,\np1-3,303; 428\n")
    refused = share(codes, "--plan", *CHEAP, "--wishes", wishes)
    assert refused.exit_code == 2
    assert "patients want codes hidden that are not hidden: 428; name them under choices" in refused.stderr
    assert "p1-" not in refused.stderr
    options = [*CHEAP, "--choices", "428,493", "--json"]
    with_wishes = json.loads(share(codes, "--plan", *options, "--wishes", wishes).stdout)
    wishes.write_text("patient,hide\n")
    without = json.loads(share(codes, "--plan", *options).stdout)
    assert with_wishes["design"] == without["design"]
    assert {"428", "493"} <= set(without["design"]["sensitive"])
