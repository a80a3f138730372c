"""A study file: what it takes, and the one sentence for everything that is wrong with it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concilium.errors import StudyError
from concilium.records.table import Records
from concilium.registry import METHODS, load
from concilium.study import Study
from concilium.study.study import SECTIONS
from concilium.trees.voting import VotingTrees

LISTED = (
    "[study], [privacy], [sites], [site], [choose], [series], [dictionary], [schema], [values] and 16 more"
)
SMALLEST = """
[study]
name = "burns"
method = "tree"
target = "death"
[sites]
records = "burns.csv"
by = "facility"
"""

COMPLETE = """
[study]
name = "burn mortality"
method = "tree"
target = "death"
query = "age >= 18"
positive = 1
[privacy]
release = "exact"
epsilon = 1
[[site]]
name = "north"
records = "north.csv"
policy = "north.toml"
ledger = "north.ledger"
[[site]]
name = "south"
records = "postgresql://south/db"
table = "patients"
[schema]
race = "code"
age = "number"
[bins]
age = [40, 60.5, 80]
[tree]
max_depth = 4
min_leaf = 5
[house]
timeout = 30
on_loss = "stop"
[evaluate]
leave_out = "band:2"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(StudyError) as caught:
        Study.read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def test_a_small_study_has_defaults(tmp_path: Path) -> None:
    study = Study.read(write(tmp_path, SMALLEST))
    assert (study.name, study.method, study.target, study.query) == ("burns", "tree", "death", "")
    assert study.positive is None
    assert study.split is not None
    assert study.split.by == "facility"
    assert study.hospitals == ()
    assert study.privacy.release is None
    assert study.release == "exact"
    assert study.privacy.epsilon is None
    assert study.parameters == {}
    assert (study.open_method().growth, study.open_method().max_depth, study.open_method().min_leaf) == (
        "readable",
        None,
        None,
    )
    assert (study.house.timeout, study.house.on_loss) == (180.0, "continue")
    assert study.evaluate is None


def test_a_file_for_each_hospital_is_all_that_a_study_needs(tmp_path: Path) -> None:
    """`north = "north.csv"` under [sites]; and without a name, the study is called after its file."""
    short = '[study]\nmethod = "tree"\ntarget = "death"\n[sites]\nnorth = "a.csv"\nsouth = "b.csv"\n'
    study = Study.read(write(tmp_path, short))
    assert study.name == "study"
    assert study.split is None
    assert [(one.name, one.records) for one in study.hospitals] == [("north", "a.csv"), ("south", "b.csv")]
    of_series = Study.read(write(tmp_path, short.replace('"tree"', '"experts"') + "[bins]\nHR = [50, 100]\n"))
    assert [(one.name, one.series) for one in of_series.hospitals] == [("north", "a.csv"), ("south", "b.csv")]
    assert complaint(tmp_path, short.replace('"a.csv"', "5")) == (
        '[sites] must name one file per hospital, such as north = "north.csv"'
    )


def test_one_row_per_patient_under_sites_holds_for_each_named_hospital(tmp_path: Path) -> None:
    stated = """[study]
method = "tree"
target = "death"
[sites]
one_row_per_patient = true
[[site]]
name = "north"
records = "a.csv"
[[site]]
name = "south"
records = "b.csv"
one_row_per_patient = false
"""
    study = Study.read(write(tmp_path, stated))
    assert [(one.name, one.one_row_per_patient) for one in study.hospitals] == [
        ("north", True),
        ("south", False),
    ]


def test_a_complete_study_keeps_everything_it_says(tmp_path: Path) -> None:
    study = Study.read(write(tmp_path, COMPLETE))
    assert study.positive == 1
    assert study.privacy.epsilon == 1.0
    north, south = study.hospitals
    assert (north.name, north.policy, north.ledger, north.table) == (
        "north",
        "north.toml",
        "north.ledger",
        None,
    )
    assert study.locate(north.records) == str(tmp_path / "north.csv")
    assert study.locate(south.records) == "postgresql://south/db"
    assert study.schema == {"race": "code", "age": "number"}
    assert study.bins == {"age": (40.0, 60.5, 80.0)}
    assert study.parameters == {"max_depth": 4, "min_leaf": 5}
    assert (study.house.timeout, study.house.on_loss) == (30.0, "stop")
    assert study.evaluate is not None
    assert (study.evaluate.leave_out, study.evaluate.bands) == ("band:2", 2)


def test_the_digest_changes_with_the_file(tmp_path: Path) -> None:
    one = Study.read(write(tmp_path, SMALLEST)).digest
    assert Study.read(write(tmp_path, SMALLEST)).digest == one
    assert Study.read(write(tmp_path, SMALLEST + "\n# a remark\n")).digest != one


WRONG_KEYS = [
    ('target = "death"', 'targt = "death"', "[study] has no key 'targt'; did you mean 'target'?"),
    ('target = "death"', 'release = "masked"', "[study] has no key 'release'; it goes under [privacy]"),
    (
        'target = "death"',
        'dictionary = "heart.toml"',
        "[study] has no key 'dictionary'; write [dictionary] and file = \"...\" below it",
    ),
    ('target = "death"', "max_depth = 3", "[study] has no key 'max_depth'; it goes under [tree]"),
    (
        'by = "facility"',
        'by = "facility"\n[tree]\nquery = "age > 5"',
        "[tree] has no key 'query'; it goes under [study]",
    ),
    ("[study]", "[studdy]", "there is no section [studdy]; did you mean 'study'?"),
    (
        "[study]",
        'outcome = "death"\n[study]',
        f"outcome stands above all sections; put it below one of {LISTED}",
    ),
    ("[study]", "[xyz]\n[study]", f"there is no section [xyz]; there are {LISTED}"),
    ('target = "death"', "", "[study] needs the key 'target'"),
    ('target = "death"', "target = 5", "[study] target must be text; got 5"),
    ('target = "death"', 'target = ""', '[study] target must be text; got ""'),
    ('target = "death"', "target = true", "[study] target must be text; got true"),
    ('by = "facility"', "", "[sites] needs the key 'by'"),
    ('by = "facility"', 'by = "death"', "[sites] by = 'death' is the target itself"),
    (
        'method = "tree"',
        'method = "tre"',
        "[study] there is no method 'tre'; did you mean 'tree'? "
        "(available: tree, voting-trees, rulefit, shapes, naive-bayes, discovery, experts, consultation, cox, "
        "describe, regression, survival-curve)",
    ),
]


@pytest.mark.parametrize(("good", "bad", "sentence"), WRONG_KEYS)
def test_a_wrong_key_is_named_with_its_section(tmp_path: Path, good: str, bad: str, sentence: str) -> None:
    assert complaint(tmp_path, SMALLEST.replace(good, bad)) == sentence


WRONG_SECTIONS = [
    (
        '[privacy]\nrelease = "exakt"',
        '[privacy] release must be one of "exact", "masked", "private", "local"; got "exakt"',
    ),
    ("[privacy]\nepsilon = 0", "[privacy] epsilon must be a number above 0; got 0"),
    ("[privacy]\nepsilon = nan", "[privacy] epsilon must be a number above 0; got nan"),
    ("[house]\ntimeout = inf", "[house] timeout must be a number above 0; got inf"),
    ('[house]\non_loss = "wait"', '[house] on_loss must be one of "continue", "stop"; got "wait"'),
    ("[house]\ntime_out = 5", "[house] has no key 'time_out'; did you mean 'timeout'?"),
    ("[tree]\nmax_depth = -1", '[tree] max_depth must be a whole number from 0 to 1000, or "all"; got -1'),
    ("[tree]\nmax_depth = 2.5", '[tree] max_depth must be a whole number from 0 to 1000, or "all"; got 2.5'),
    ('[schema]\nrace = "text"', '[schema] race must be one of "code", "number"; got "text"'),
    ("[bins]\nage = 40", "[bins] age must be a list of numbers, each larger than the one before; got 40"),
    ("[bins]\nage = []", "[bins] age must be a list of numbers, each larger than the one before; got []"),
    ("[bins]\nage = [40, 40]", "[bins] age must be numbers in rising order; got [40.0, 40.0]"),
    ("[bins]\nage = [60, nan]", "[bins] age must be numbers in rising order; got [60.0, nan]"),
    (
        "[bins]\ndeath = [1, 2]",
        "[bins] 'death' is the target; bins are for attributes, since method = 'tree' predicts classes: a number is "
        'predicted by method = "shapes" or "rulefit"',
    ),
    ("[evaluate]", "[evaluate] takes one of leave_out, holdout, since, file; it has none"),
    (
        '[evaluate]\nholdout = 0.3\nfile = "test.csv"',
        "[evaluate] takes one of leave_out, holdout, since, file; it has holdout and file",
    ),
    ("[evaluate]\nholdout = 1.5", "[evaluate] holdout must be a number between 0 and 1; got 1.5"),
    (
        '[evaluate]\nleave_out = "sites"',
        '[evaluate] leave_out must be "site" or, say, "band:10"; got "sites"',
    ),
    ('[evaluate]\nleave_out = "band:1"', '[evaluate] leave_out = "band:1" would leave nobody to learn from'),
    ("evaluate = 5", "[sites] has no key 'evaluate'"),
    ('[site]\nname = "north"', "write [[site]] with two brackets, once for every hospital"),
    (
        '[[site]]\nname = "north"\nfile = "north.csv"',
        "[[site]] number 1 has no key 'file'; a hospital's table is records = \"north.csv\"",
    ),
    ('[[site]]\nname = "north"', "[[site]] number 1 needs the key 'records'"),
]


@pytest.mark.parametrize(("section", "sentence"), WRONG_SECTIONS)
def test_a_wrong_value_is_named_with_what_would_do(tmp_path: Path, section: str, sentence: str) -> None:
    assert complaint(tmp_path, SMALLEST + section) == sentence


def test_a_section_must_be_a_section(tmp_path: Path) -> None:
    wrong = complaint(tmp_path, "evaluate = 5\n" + SMALLEST)
    assert wrong == "evaluate must be a section, written [evaluate]"
    wrong = complaint(tmp_path, 'bins = "x"\n' + SMALLEST)
    assert wrong == "bins must be a section, written [bins]"


def test_two_sites_of_one_name_are_both_shown(tmp_path: Path) -> None:
    wrong = complaint(tmp_path, COMPLETE.replace('name = "south"', 'name = "north"'))
    assert wrong == (
        "two sites are named 'north' (north.csv and postgresql://south/db); give each a name of its own"
    )


def test_hospitals_are_named_once_and_only_once(tmp_path: Path) -> None:
    without = SMALLEST.split("[sites]")[0]
    assert complaint(tmp_path, without).startswith("the study names no hospitals; give either [sites]")
    both = SMALLEST + '[[site]]\nname = "north"\nrecords = "north.csv"'
    assert complaint(tmp_path, both).startswith("the study names hospitals twice; give either [sites]")


def test_leaving_out_a_site_is_refused_under_masked_with_the_reason(tmp_path: Path) -> None:
    masked = SMALLEST + '[privacy]\nrelease = "masked"\n[evaluate]\n'
    wrong = complaint(tmp_path, masked + 'leave_out = "site"')
    assert "the sum with a hospital minus the sum without it is that hospital's whole answer" in wrong
    assert complaint(tmp_path, masked + 'leave_out = "band:5"') == wrong
    assert Study.read(write(tmp_path, masked + "holdout = 0.3")).privacy.release == "masked"


def test_what_is_not_toml_is_said_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in complaint(tmp_path, "[study]\nname = burns\n")
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[study]\nname = "caf\xe9"\n')
    with pytest.raises(StudyError, match="is not a TOML file"):
        Study.read(path)
    with pytest.raises(StudyError, match=r"absent.toml: cannot be read \(No such file or directory\)"):
        Study.read(tmp_path / "absent.toml")


@given(
    st.sampled_from(sorted(SECTIONS)),
    st.text("abcdefghij_", min_size=1, max_size=12),
    st.sampled_from(["5", '"x"', "[1]", "true", "1979-05-27", "{}", "nan", "-1"]),
)
def test_whatever_is_written_the_answer_is_a_study_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, section: str, key: str, value: str
) -> None:
    folder = tmp_path_factory.mktemp("study")
    head = f"[[{section}]]" if section == "site" else f"[{section}]"
    text = (
        SMALLEST.replace(head, f"{head}\n{key} = {value}")
        if head in SMALLEST
        else f"{SMALLEST}{head}\n{key} = {value}"
    )
    sentence = complaint_or_none(write(folder, text))
    assert sentence is None or ("study.toml: " in sentence and "\n" not in sentence)


def complaint_or_none(path: Path) -> str | None:
    try:
        Study.read(path)
    except StudyError as error:
        return str(error)
    return None


@pytest.mark.parametrize("method", METHODS)
def test_what_a_study_does_not_say_is_as_the_method_declares_it(tmp_path: Path, method: str) -> None:
    text = SMALLEST.replace('"tree"', f'"{method}"').replace("[sites]", "positive = 1\n[sites]")
    declared = load(METHODS[method])
    if declared.reads_courses:
        text = text.split("[sites]")[0] + COURSES
    if "outcome" in declared.parameters():
        text = text.replace("target =", "outcome =")
    elif declared.reads_courses:
        text = text.replace("rules =", "series =")
    study = Study.read(write(tmp_path, text))
    opened = study.open_method()
    assert type(opened) is study.method_type
    assert opened.method == method
    for one in opened.parameters().values():
        if one.name not in ("target", "outcome", "positive", "delta"):
            assert getattr(opened, one.name) == one.kept_default, one.name


COURSES = '[sites]\nrules = "rules.csv"\ngateways = 3\n'

VOTING = SMALLEST.replace('"tree"', '"voting-trees"')
RARE = VOTING.replace("[sites]", 'positive = "yes"\n[sites]')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            VOTING,
            "[study] method = 'voting-trees' needs the key 'positive', a value of the target, such as 'yes': the value "
            "of the target that is predicted; all its other values together are the other class",
        ),
        (
            RARE + "[tree]\nmax_depth = 3",
            "[tree] is for method = 'tree'; the keys of this study's method go under [voting-trees]",
        ),
        (
            RARE + "[voting-trees]\nnegative = 3",
            "[voting-trees] has no key 'negative'; did you mean 'negatives'?",
        ),
        (
            RARE + "[voting-trees]\nnegatives = 0",
            "[voting-trees] negatives must be a whole number from 1 to 1000000; got 0",
        ),
        (
            RARE + "[voting-trees]\nimbalance = 2",
            "[voting-trees] imbalance must be a number from 0 to 1; got 2",
        ),
        (
            RARE + '[voting-trees]\nvote = "even"',
            '[voting-trees] vote must be "balanced" or "majority"; got "even"',
        ),
        (
            RARE + '[evaluate]\nleave_out = "site"\ncompare = true',
            "[evaluate] compare does not go with method = 'voting-trees': few hospitals have enough patients with a "
            "rare condition to learn alone, or to lend their model",
        ),
    ],
)
def test_what_a_study_of_a_rare_class_cannot_say(tmp_path: Path, text: str, sentence: str) -> None:
    assert complaint(tmp_path, text) == sentence


def test_keys_of_voting_trees_reach_the_estimator(tmp_path: Path) -> None:
    keys = 'imbalance = 0.05\nnegatives = 2\ndelta = 0\nvote = "majority"\nmax_depth = 6\nmin_leaf = 2\n'
    ensemble = Study.read(write(tmp_path, RARE + "[voting-trees]\n" + keys)).open_method()
    assert isinstance(ensemble, VotingTrees)
    assert (ensemble.target, ensemble.positive, ensemble.release) == ("death", "yes", "exact")
    assert (ensemble.imbalance, ensemble.negatives, ensemble.delta) == (Fraction(1, 20), 2, 0)
    assert (ensemble.vote, ensemble.max_depth, ensemble.min_leaf) == ("majority", 6, 2)


def test_voting_trees_are_never_private(tmp_path: Path) -> None:
    study = Study.read(write(tmp_path, RARE + '[privacy]\nrelease = "private"\n'))
    with pytest.raises(
        StudyError, match=r"study\.toml: the 'release' of VotingTrees must be 'exact' or 'masked'"
    ):
        study.open_method()


def test_a_rare_class_is_told_from_all_others_together(tmp_path: Path) -> None:
    table = Records.from_rows([{"death": value} for value in ("no", "yes", "lost")])
    study = Study.read(write(tmp_path, RARE))
    assert study.find_classes([table]) == ["not yes", "yes"]
    assert study.find_classes([table.take([0, 1])]) == ["no", "yes"]
    assert Study.read(write(tmp_path, SMALLEST)).find_classes([table]) == ["lost", "no", "yes"]


@pytest.mark.parametrize("classes", [[0, 1], [False, True], ["alive", "dead"]])
def test_the_second_of_two_classes_is_the_positive_one(
    tmp_path: Path, classes: list[str | int | bool]
) -> None:
    study = Study.read(write(tmp_path, SMALLEST))
    assert study.find_positive(classes) == classes[1]
    assert study.find_positive([*classes, "moved"]) is None


def test_a_stated_positive_class_must_exist(tmp_path: Path) -> None:
    study = Study.read(
        write(tmp_path, SMALLEST.replace('target = "death"', 'target = "death"\npositive = "0"'))
    )
    assert study.find_positive([0, 1]) == 0
    with pytest.raises(
        StudyError, match=r"\[study\] positive = '0' is not a value of 'death' \(it has no, yes\)"
    ):
        study.find_positive(["no", "yes"])
