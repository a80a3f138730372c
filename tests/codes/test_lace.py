"""LACE against another package's Charlson conditions, code by code, and against the index written out."""

import pytest

import concilium as cc
from concilium.codes.lace import POINTS, _find_conditions, find_lace
from concilium.errors import StudyError

NAMES = {
    "Myocardial infarction": "myocardial infarction",
    "Cerebrovascular disease": "cerebrovascular disease",
    "Peripheral vascular disease": "peripheral vascular disease",
    "Diabetes without chronic complication": "diabetes without complications",
    "Congestive heart failure": "congestive heart failure",
    "Diabetes with chronic complication": "diabetes with complications",
    "Chronic pulmonary disease": "chronic pulmonary disease",
    "Mild liver disease": "mild liver disease",
    "Renal disease": "renal disease",
    "Any malignancy, including lymphoma and leukemia, except malignant neoplasm of skin": "cancer",
    "Dementia": "dementia",
    "Rheumatic disease": "connective tissue disease",
    "AIDS/HIV": "HIV",
    "Moderate or severe liver disease": "moderate or severe liver disease",
    "Metastatic solid tumor": "metastatic cancer",
}


@pytest.mark.parametrize(("version", "system"), [("icd9", "ICD-9-CM"), ("icd10", "ICD-10-CM")])
def test_each_code_stands_for_what_another_package_says(version, system):
    pycomorb = pytest.importorskip("pycomorb")
    pandas = pytest.importorskip("pandas")
    taxonomy = cc.Taxonomy.icd9(5) if version == "icd9" else cc.Taxonomy.icd10(5)
    codes = list(taxonomy.codes)
    table = pandas.DataFrame({"id": codes, "code": codes, "age": 0})
    found = pycomorb.comorbidity(
        "charlson", table, icd_version=version, implementation="quan", return_categories=True
    )
    rows = pandas.DataFrame(found[0] if isinstance(found, tuple) else found)
    rows = rows if "id" in rows else rows.reset_index()
    theirs = {
        row["id"]: {ours for name, ours in NAMES.items() if row[name]} for row in rows.to_dict("records")
    }
    differing = {
        code: (set(_find_conditions([code], system)), theirs[code])
        for code in codes
        if set(_find_conditions([code], system)) != theirs[code]
    }
    assert not differing


def test_categories_of_icd10_count_as_those_of_icd9_and_are_not_taken_for_them():
    assert _find_conditions(["E11"], "ICD-10-CM") == _find_conditions(["250"])
    assert find_lace(3, True, ["I50", "E11"], 0, "ICD-10-CM") == find_lace(3, True, ["428", "250"], 0)
    with pytest.raises(
        StudyError, match="'I50' is a code of ICD-10-CM, not of ICD-9-CM: give system='ICD-10-CM'"
    ):
        find_lace(3, True, ["I50"], 0)
    with pytest.raises(StudyError, match=r"'428\.0' is a code of ICD-9-CM, not of ICD-10-CM"):
        find_lace(3, True, ["428.0"], 0, "ICD-10-CM")
    assert (
        _find_conditions(["V10", "E850", ""]) == _find_conditions(["V10", "E85"], "ICD-10-CM") == frozenset()
    )


def test_the_index_is_the_sum_of_its_four_parts():
    assert find_lace(0.5, False, [], 0) == 0
    assert find_lace(2, False, ["250.00"], 0) == 3
    assert find_lace(5, True, ["428.0", "585.9"], 2) == 4 + 3 + 5 + 2
    assert find_lace(20, True, ["042"], 9) == 7 + 3 + 5 + 4 == 19
    assert find_lace(3, False, ["E11.9", "C78.0"], 1, "ICD-10-CM") == 3 + 5 + 1
    assert _find_conditions(["250"]) == {"diabetes without complications"}
    assert set(POINTS) >= _find_conditions(["410", "290", "042"])
    with pytest.raises(StudyError, match="LACE is known for ICD-9-CM and ICD-10-CM"):
        find_lace(1, False, [], 0, "ICD-11")
