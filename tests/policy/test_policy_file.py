"""A policy file: what it takes, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import concilium as cc
from concilium.errors import PolicyError
from concilium.policy.explain import find_oddities
from concilium.policy.functions import Secret
from concilium.policy.policy import CONSTRAINTS, Agree, WorkLimits

COMPLETE = """
[release]
kinds = ["tree.schema", "counts"]
modes = ["exact"]
minimum_patients = 10
differencing = false
branch_floor = 3
minimum_cell = 5
dominance = 0.9
numbers_per_patient = 2
withhold = ["religion"]
identifiers = ["mrn"]
allow = ["admitted"]
colluders = 2
other_circles = true
[constraints]
text = '''
graph old { node x + where x.age > 89 eliminate x.zip; }
graph names { node x + substitute x.name =~ /hash()/; }
'''
secret = "north.secret"
[peers]
mercy = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
[budget]
currency = "rho"
total = "1/2"
delta = "1e-6"
"""
SECRET = b"a secret of this hospital alone"
RULE = "graph old { node x + where x.age >= 0 eliminate x.zip; }\n"


def write(folder: Path, text: str, name: str = "policy.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def write_secret(folder: Path, content: bytes = SECRET, mode: int = 0o600) -> Path:
    path = folder / "north.secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_complete_policy(tmp_path: Path) -> None:
    write_secret(tmp_path)
    policy = cc.Policy.read(write(tmp_path, COMPLETE))
    assert (policy.minimum_patients, policy.differencing, policy.minimum_cell, policy.dominance) == (
        10,
        False,
        5,
        0.9,
    )
    graphs = policy.graphs()
    assert graphs is not None
    assert [graph.name for graph in graphs.graphs] == ["old", "names"]
    assert policy.secret == Secret(SECRET)
    assert SECRET.decode() not in repr(policy)


def test_an_empty_policy_is_the_default_and_has_the_guards_it_should(tmp_path: Path) -> None:
    policy = cc.Policy.read(write(tmp_path, ""))
    assert policy == cc.Policy()
    assert policy.graphs() is None
    assert (policy.differencing, policy.minimum_cell, policy.dominance, policy.branch_floor) == (
        True,
        0,
        None,
        0,
    )


def test_graphs_can_be_in_a_file_of_their_own_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    write(tmp_path / "rules", "graph E { node x + eliminate x.dob; }", "dates.graph")
    policy = cc.Policy.read(write(tmp_path, '[constraints]\nfile = "rules/dates.graph"'))
    assert policy.constraints == "graph E { node x + eliminate x.dob; }"


def test_the_policy_s_own_secret_comes_before_the_site_s() -> None:
    text = "graph S { node x substitute x.a =~ /hash()/; }"
    own = cc.Policy(constraints=text, secret=Secret(SECRET))
    without = cc.Policy(constraints=text)
    node = {"nodes": [{"a": "Ann"}]}
    given = without.graphs(b"the secret of the site")
    assert given is not None
    assert own.graphs(b"the secret of the site").apply(node) == without.graphs(SECRET).apply(node)
    assert given.apply(node) != without.graphs(SECRET).apply(node)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[release]\nminimum_cel = 5", r"no key 'minimum_cel'; did you mean 'minimum_cell'"),
        ("[release]\nreveal_on_dropout = false", "no key 'reveal_on_dropout' any more: a lost site halts"),
        ("[release]\nsecret = 'x'", "no key 'secret'"),
        ("[release]\nconstraints = 'x'", "no key 'constraints'"),
        ("[constraint]\ntext = 'x'", r"no section \[constraint\]; did you mean 'constraints'"),
        ("constraints = 'graph'", r"constraints must be a section, written \[constraints\]"),
        ("[[release]]\nminimum_cell = 5", r"release must be a section, written \[release\]"),
        ("[constraints]\ntex = ''", r"\[constraints\] has no key 'tex'; did you mean 'text'"),
        ("[constraints]\ntext = 5", "text must be text in quotes"),
        ("[constraints]\nsecret = 'x'", "either text or file"),
        ("[constraints]\ntext = 'x'\nfile = 'y'", "either text or file"),
        ("[constraints]\ntext = ' '", "no constraint graph in it"),
        ("[constraints]\nfile = 'none.graph'", r"none\.graph: cannot be read"),
        (
            "[constraints]\ntext = 'graph E { node x + eliminat x.dob; }'",
            r"policy\.toml: expected .*column 20",
        ),
        ("[constraints]\ntext = 'graph E { node x; } graph E { node x; }'", "two graphs named E"),
        ("[constraints]\ntext = 'graph E { node x {3,1} eliminate x.a; }'", "can never hold"),
        ("[constraints]\ntext = 'graph E { node x eliminate y.a; }'", "no node of this graph is tagged y"),
        ("[constraints]\ntext = 'graph E { node x substitute x.a =~ /yaer()/; }'", "did you mean 'year'"),
        ("[constraints]\ntext = 'graph E { node x; }'\nsecret = 'none'", "the secret cannot be read"),
        ("[release]\nminimum_cell = -1", "minimum_cell must be 0 or more"),
        ("[release]\ndominance = 1.5", "dominance must be a share"),
        ("[release]\ndominance = nan", "dominance must be a share"),
        ("[release]\ndifferencing = 1", "Expected `bool`"),
        ("[work]\noperations_per_day = 0", "operations_per_day must be a number from 1"),
        ("[work]\noperations_per_day = nan", "operations_per_day must be a number from 1"),
        ("[work]\nmemory_per_question = '1 mile'", "must be a number of bytes, such as 512_000_000"),
        ("[work]\nhours = 3", "hours"),
        ("[budget]\ntotal = '1e999999999'", "total must be a finite number"),
        ("[budget]\ntotal = '1/2'\ndelta = '2'", "delta must lie strictly between 0 and 1"),
        ("[release\n", "is not TOML"),
        ("a = " + "[" * 100_000, "nested too deeply|is not TOML"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        cc.Policy.read(write(tmp_path, text))
    assert str(tmp_path) in str(caught.value)


def test_a_secret_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[constraints]\ntext = 'graph E { node x; }'\nsecret = 'north.secret'")
    write_secret(tmp_path, mode=0o644)
    with pytest.raises(PolicyError, match="others can read this secret"):
        cc.Policy.read(path)
    write_secret(tmp_path, b"short")
    with pytest.raises(PolicyError, match=r"north\.secret: a site's secret has at least 16 bytes") as caught:
        cc.Policy.read(path)
    assert "short" not in str(caught.value).replace("shorter", "")


@pytest.mark.parametrize("key", ["withhold", "identifiers", "allow"])
def test_a_misspelt_attribute_is_an_error_where_the_table_is_known(key: str) -> None:
    policy = cc.Policy(**{key: ("religon",)})
    with pytest.raises(PolicyError, match=rf"{key} names 'religon', .* did you mean 'religion'"):
        policy.check(["religion", "sex"])
    cc.Policy(**{key: ("religion",)}).check(["religion", "sex"])


PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_every_key_of_a_policy_is_on_the_page_with_its_default() -> None:
    text = PAGE.split("## [release]\n")[1].split("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\S+)", text, flags=re.MULTILINE))
    elsewhere = {"constraints", "secret", "peers", "houses", "revoked", "agree", "budget", "work"}
    assert set(documented) == set(cc.Policy.__struct_fields__) - elsewhere
    for name in ("minimum_patients", "branch_floor", "minimum_cell", "colluders", "support"):
        assert documented[name] == str(getattr(cc.Policy(), name))
    for name in ("differencing", "other_circles", "tell_fit"):
        assert documented[name] == str(getattr(cc.Policy(), name)).lower()
    section = PAGE.split("## [houses], [agree]\n")[1].split("\n## ")[0]
    agreed = set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    assert agreed == set(Agree.__struct_fields__)
    section = PAGE.split("## [work]\n")[1].split("\n## ")[0]
    stated = dict(re.findall(r'^\| `(\w+)` \| "?([^"|]+?)"? \|', section, flags=re.MULTILINE))
    assert set(stated) == set(WorkLimits.__struct_fields__)
    limits = WorkLimits()
    assert stated["memory_per_question"] == limits.memory_per_question
    assert float(stated["operations_per_day"]) == limits.operations_per_day
    section = PAGE.split("## [constraints]\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(text|file|secret)` \|", section, flags=re.MULTILINE)) == set(CONSTRAINTS)


def test_the_policy_that_is_shown_is_one(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    graphs = cc.Policy.read(write(tmp_path, shown)).graphs()
    assert graphs is not None
    assert find_oddities(graphs) == []


def read_or_explain(path: Path) -> cc.Policy | str:
    try:
        return cc.Policy.read(path)
    except PolicyError as error:
        return str(error)


def test_mutated_policy_files_are_read_or_explained(tmp_path: Path) -> None:
    """Whatever happens to the file, it is a policy or one error; and where it is still a policy that takes `zip` out of
    everybody's record, it does."""
    dice = random.Random(11)
    seed = COMPLETE.replace("graph old { node x + where x.age > 89 eliminate x.zip; }", RULE.strip())
    seed = seed.replace('secret = "north.secret"', "").replace("/hash()/", "/first3()/")
    pieces = [
        *"[]{}=\"'#,.\n0159-e_\\é\x00",
        "true",
        "graph ",
        "'''",
        "nan",
        "[release]",
        "node x ",
        "1e9",
        '"exact"',
    ]
    path, read, explained, filtered = tmp_path / "policy.toml", 0, 0, 0
    for _ in range(2_000):
        text = seed
        if dice.random() < 0.5:  # a value that is another value, or a name that is another name
            place = dice.choice(
                [place for place, sign in enumerate(text) if sign.isdigit() or sign in "aelx"]
            )
            text = text[:place] + dice.choice("0123456789aelx ") + text[place + 1 :]
        else:
            start = dice.randrange(len(text) + 1)
            text = (
                text[:start] + dice.choice([*pieces, ""]) + text[min(len(text), start + dice.randint(0, 3)) :]
            )
        path.write_text(text, encoding="utf-8")
        policy = read_or_explain(path)
        if isinstance(policy, str):
            explained += 1
            assert policy.startswith(f"{path}: ")
            continue
        read += 1
        graphs = policy.graphs()
        if graphs is not None and RULE in policy.constraints:
            kept = graphs.apply({"nodes": [{"age": 5, "zip": "SECRET", "name": "Ann"}]})
            assert "SECRET" not in repr(kept)
            filtered += 1
    assert min(read, explained, filtered) > 100
