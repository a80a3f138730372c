"""`concilium share`: a file in, a randomised copy and a page out, charged first, the same copy for the same command."""

from __future__ import annotations

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
from concilium.privacy.accounting import rho_from_pure
from concilium.registry import RELEASES

CHEAP = ["--epsilon", "0.1", "--max-events", "5", "--sensitive", "042,303", "--sensitive", "304"]
# More codes than can be hidden at once.
MANY = [f"y{n}-{c},2020-01-01,{c}" for c in cc.Taxonomy.icd9().codes[300:430] for n in range(4)]
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
    # A fifth is held back to learn from and is not shared.
    shared = cc.Sequences.read(out)
    assert len(shared) == 301 - 61
    assert sorted(map(int, shared.ids)) == list(range(1, 241))
    key = (tmp_path / "key.csv").read_text().splitlines()
    assert key[0] == "number,patient"
    assert len({line.split(",")[1] for line in key[1:]}) == 240
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
        "<code>571</code>",
        "61 auxiliary patients",
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
    assert "240 patients would be shared; 61 auxiliary ones" in done.stdout
    assert "sensitive: 042, 303, 304" in done.stdout
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
    assert "301 patients would be shared; 301 auxiliary ones" in plan.stdout
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
    assert 0 < len(cc.Sequences.read(tmp_path / "shared.csv")) < 240
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
    own = ["--taxonomy", tmp_path / "tree.csv", "--sensitive", "F10.20,other", "--keep-dates", "--again"]
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
        (MANY, ["--gamma", "0.000001"], "the smallest gamma that can is"),
        ([], ["--block-size", "50"], "a block must be smaller than the set of protected codes: a size of 50"),
        ([], ["--epsilon", "none"], "epsilon must be"),
        ([], ["--mechanism", "suppression"], "suppression has no price"),
        ([], ["--max-events", "0"], "max_events must be a whole number of at least 1"),
        ([], ["--auxiliary-percent", "95"], "from 1 to 90 percent"),
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
    done = share(codes, "--plan", *CHEAP, "--zeros-lost")
    assert "may be" in done.stderr or done.exit_code == 0, done.output


def test_what_is_shared_is_a_release_of_its_own():
    assert RELEASES["shared"].priced
    assert not RELEASES["shared"].bounded
