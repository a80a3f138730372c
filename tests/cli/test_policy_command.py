"""`concilium policy`: what it says about a policy and what it shows of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concilium.cli.main import app
from concilium.console.policy_trial import _side_by_side
from concilium.policy import parse
from concilium.policy.explain import _reached_in_records, describe, find_oddities
from concilium.policy.matching import match_alone

RULES = """# what leaves
graph identity { node u exists u.name, exists u.ssn; }
graph old { node x + where x.age > 89 eliminate x.zip, substitute x.age =~ /decade()/; }
"""
GRAPH = {
    "nodes": [{"id": "a", "age": 91, "zip": "02139"}, {"id": "b", "age": 40, "zip": "10001"}],
    "edges": [],
}
TABLE = "age,zip,name,ssn\n91,02139,Ann,\n40,10001,,\n50,10001,Bob,123\n"


def write(folder: Path, name: str, content: str | Any) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["policy", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_check_says_what_graphs_do(tmp_path: Path) -> None:
    result = run("check", write(tmp_path, "rules.graph", RULES))
    assert "2 constraint graphs" in result.stdout
    assert "refuses a message that has name and ssn (any node)" in result.stdout
    assert "takes out zip of nodes where x.age > 89" in result.stdout
    assert "changes age of nodes where x.age > 89 by decade()" in result.stdout
    assert result.stderr == ""


def test_check_says_what_the_rest_of_a_policy_does(tmp_path: Path) -> None:
    text = """[release]
    modes = ["exact"]
    minimum_patients = 7
    minimum_cell = 5
    dominance = 0.9
    branch_floor = 3
    numbers_per_patient = 2
    withhold = ["religion"]
    identifiers = ["mrn"]
    [budget]
    total = "1/2"
    """
    said = run("check", write(tmp_path, "policy.toml", text)).stdout
    for words in (
        "0 constraint graphs",
        "answers exact, where at least 7 patients match",
        "but for fewer than 7",
        "branches of fewer than 3 patients as empty",
        "exact tables with a count of 1 to 4",
        "more than 90% of its row or column",
        "at most 2 exact numbers per patient",
        "withholds religion",
        "hides the identifiers mrn",
        "rho = 1/2",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph G { node x; }", "graph G has no action"),
        ("graph G { node x ? eliminate x.a; }", "if there is exactly 1, and not at all where one more"),
        ("graph G { node x {2,3} substitute x.a =~ /year()/; }", "if there are 2 to 3, and not at all"),
        ("graph G { node x {2} eliminate x.a; }", "graph G has no effect on records"),
        ("graph G { node x eliminate x.a; node y; edge (x, y); }", "graph G has no effect on records"),
        (
            "graph G { node x eliminate x.a; node y {2,} eliminate y.b; }",
            "eliminate y.b has no effect on records",
        ),
        ("graph G { node x where x.a between 9 and 5 exists x; }", "between 9 and 5 can never hold"),
        ("graph G { node x substitute x.a =~ /hash()/; }", "will use the site's identity"),
    ],
)
def test_check_warns_of_what_may_not_be_meant(tmp_path: Path, text: str, words: str) -> None:
    result = run("check", write(tmp_path, "rules.graph", text))
    assert words in result.stderr
    assert words in " ".join(
        json.loads(run("check", "--json", str(tmp_path / "rules.graph")).stdout)["warnings"]
    )


def test_usual_rules_are_not_warned_of() -> None:
    text = (
        "graph G { node x + where x.a > 1 eliminate x.b; node y {0} where y.c = 1; node z [d] exists z.e; }"
    )
    assert find_oddities(parse(text)) == []


@pytest.mark.parametrize(
    ("text", "code_words"),
    [
        ("graph G { node x eliminate y.a; }", "no node of this graph is tagged y"),
        ("graph G { node x; } graph G { node x; }", "two graphs named G"),
        ("graph G { node x {5,2} eliminate x.a; }", "can never hold"),
        ("graph G { node x substitute x.a =~ /nope()/; }", "no function nope"),
        ("[release]\nkind = []", "no key 'kind'; did you mean 'kinds'"),
        ("nonsense", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_read_is_one_error(tmp_path: Path, text: str, code_words: str) -> None:
    result = run("check", write(tmp_path, "rules.txt", text), code=2)
    assert code_words in result.stderr
    assert result.stdout == ""


def test_check_can_look_at_the_table(tmp_path: Path) -> None:
    rules, table = write(tmp_path, "rules.graph", RULES), write(tmp_path, "patients.csv", TABLE)
    said = run("check", rules, "--records", table).stdout
    assert "has 2 of 3 patients of patients.csv to answer about" in said
    misspelt = write(tmp_path, "misspelt.graph", "graph G { node x eliminate x.agee; }")
    assert "did you mean 'age'" in run("check", misspelt, "--records", table, code=2).stderr
    gone = write(tmp_path, "gone.graph", "graph G { node x eliminate x.zip; }")
    assert "does not know zip (eliminated by graph G)" in run("check", gone, "--records", table).stdout


def test_try_shows_a_graph_before_and_after(tmp_path: Path) -> None:
    said = run("try", write(tmp_path, "r.graph", RULES), write(tmp_path, "g.json", GRAPH)).stdout
    lines = [line.split("|") for line in said.splitlines() if "|" in line]
    assert [[side.strip() for side in line] for line in lines] == [
        ['"age": 91,', '"age": "90s"'],
        ['"zip": "02139"', ""],
    ]


def test_try_says_which_rule_refuses(tmp_path: Path) -> None:
    refused = {"nodes": [{"name": "Ann", "ssn": "1"}]}
    rules, graph = write(tmp_path, "r.graph", RULES), write(tmp_path, "g.json", refused)
    assert "refused by graph identity" in run("try", rules, graph).stdout
    found = json.loads(run("try", rules, graph, "--json").stdout)
    assert found == {"refused_by": "identity", "rules": ["identity"], "before": refused, "after": None}


def test_try_takes_bundles_and_single_records_and_lists_of_them(tmp_path: Path) -> None:
    rules = write(tmp_path, "r.graph", "graph E { node x + eliminate x.birthDate; }")
    patient = {"resourceType": "Patient", "id": "p", "birthDate": "1950"}
    bundle = {"resourceType": "Bundle", "entry": [{"resource": patient}]}
    found = json.loads(run("try", rules, write(tmp_path, "b.json", bundle), "--json").stdout)
    assert found["after"]["entry"] == [{"resource": {"resourceType": "Patient", "id": "p"}}]
    one = {"sex": "f", "birthDate": "1950"}
    assert json.loads(run("try", rules, write(tmp_path, "o.json", one), "--json").stdout)["after"] == {
        "sex": "f"
    }
    many = json.loads(run("try", rules, write(tmp_path, "m.json", [one, {"sex": "m"}]), "--json").stdout)
    assert [each["after"] for each in many] == [{"sex": "f"}, {"sex": "m"}]


def test_try_takes_a_table_as_a_site_would(tmp_path: Path) -> None:
    text = f"[release]\nwithhold = ['name']\n[constraints]\ntext = '''{RULES}'''"
    rules, table = write(tmp_path, "p.toml", text), write(tmp_path, "patients.csv", TABLE)
    found = json.loads(run("try", rules, table, "--json").stdout)
    assert [each["after"] for each in found] == [{"age": "90s"}, {"age": "40", "zip": "10001"}, None]
    assert "taken out" in run("try", rules, table).stdout


def test_try_shows_pseudonyms_with_a_stand_in(tmp_path: Path) -> None:
    rules = write(tmp_path, "r.graph", "graph S { node x substitute x.id =~ /hash()/; }")
    result = run("try", rules, write(tmp_path, "g.json", GRAPH))
    assert "stand-in" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("g.json", "{", "is not JSON"),
        ("g.json", '{"nodes": 5}', "no list of nodes"),
        ("g.json", "[5]", "node 1 is not an object"),
        ("none.json", None, "cannot be read"),
        ("none.csv", None, "none.csv"),
    ],
)
def test_a_record_that_cannot_be_read_is_one_error(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    rules = write(tmp_path, "r.graph", "graph E { node x + eliminate x.dob; }")
    path = str(tmp_path / name) if content is None else write(tmp_path, name, content)
    assert words in run("try", rules, path, code=2).stderr


def test_a_policy_without_graphs_does_nothing_to_messages(tmp_path: Path) -> None:
    result = run("try", write(tmp_path, "p.toml", ""), write(tmp_path, "g.json", GRAPH), code=2)
    assert "no constraint graph" in result.stderr
    started = CliRunner().invoke(app, ["gateway", str(tmp_path / "p.toml")])
    assert started.exit_code == 2
    assert "would let everything through" in started.stderr


def test_a_gateway_says_where_its_secret_belongs(tmp_path: Path) -> None:
    rules = write(tmp_path, "r.graph", "graph S { node x substitute x.id =~ /hash()/; }")
    started = CliRunner().invoke(app, ["gateway", rules])
    assert started.exit_code == 2
    assert "name a file with it as `secret` under [constraints]" in started.stderr


def test_lines_that_are_alike_stand_beside_each_other() -> None:
    assert list(_side_by_side(["a", "b", "c"], ["a", "x", "y", "c"])) == [
        ("a", "a"),
        ("b", "x"),
        ("", "y"),
        ("c", "c"),
    ]


def test_graphs_in_words() -> None:
    text = "graph G { node x + where x.sex = 'm' eliminate x; node y [a, b]; node z {2,}; edge (x, z); }"
    (graph,) = parse(text).graphs
    assert describe(graph) == [
        "takes out nodes where x.sex = 'm', in messages with nodes with one of a, b and any node if there are 2 "
        "or more, joined as (x, z)"
    ]


def test_what_reaches_records_is_what_the_matcher_says() -> None:
    """The shortcut for large motifs, against every way in which one record can fulfil the conditions."""
    texts = [
        "graph G { node x {0,2} where x.a = 1 eliminate x.b; node y ? where y.c = 1; }",
        "graph G { node x where x.a = 1 eliminate x.b; node y {0} where y.c = 1; edge (x, y); }",
        "graph G { node x {0,1} where x.a = 1 eliminate x.b; node y where y.c = 1; edge (x, y); }",
        "graph G { node x {0} where x.a = 1; node y eliminate y.c; }",
        "graph G { node x {2} where x.a = 1 eliminate x.b; }",
    ]
    for text in texts:
        for step in parse(text).rules[0].changes:
            tags = range(len(step.nodes))
            always = {t for t in tags if step.nodes[t].condition is None}
            expected = set()
            for pattern in range(1 << len(tags)):
                if all(pattern >> t & 1 for t in always):
                    fits = match_alone(step.motif, [pattern >> t & 1 for t in tags])
                    expected |= {t for t in tags if fits is not None and fits[t]}
            assert _reached_in_records(step) == expected, text


PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
PINNED = '[houses]\nnetwork = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"\n'


def test_check_reads_agree_back_as_the_page_shows(tmp_path: Path) -> None:
    shown = PAGE.split("```text\n")[1].split("```")[0]
    text = f'{PINNED}[agree]\nprice_per_study = "1/20"\n'
    assert shown in run("check", write(tmp_path, "policy.toml", text)).stdout


def test_check_warns_of_what_agree_names_in_vain(tmp_path: Path) -> None:
    text = f"""{PINNED}[release]
    modes = ["exact", "masked", "private"]
    [agree]
    releases = ["exact", "shared"]
    """
    said = run("check", write(tmp_path, "policy.toml", text))
    assert "agrees to nothing: each study waits" in said.stdout
    assert "[agree] names exact, which has no bound, but no `methods`" in said.stderr
    assert "[agree] names shared, which `modes` of [release] closes" in said.stderr
    silent = run("check", write(tmp_path, "silent.toml", "[release]\nminimum_patients = 5\n"))
    assert "there is no [agree], so that each of them waits" in silent.stdout
