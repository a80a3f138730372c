"""Regions from a study file: the same model through one or two tiers, and the same consultation."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.errors import StudyError
from concilium.study.consulting import ask
from study.test_consulting import PATIENT, write_study

TIERS = {"north": "upper", "south": "lower/coast", "east": "lower"}


def write_tiers(folder, release="exact", tiers=TIERS):
    path = write_study(folder, release)
    text = path.read_text()
    for name, region in tiers.items():
        text = text.replace(f'[[site]]\nname = "{name}"', f'[[site]]\nname = "{name}"\nregion = "{region}"')
    path.write_text(text)
    return path


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_consultation_through_regions_is_that_of_one_house(release, tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "tiers").mkdir()
    flat = ask(write_study(tmp_path / "flat", release), PATIENT, requester="weiss")
    path = write_tiers(tmp_path / "tiers", release)
    tiers = ask(path, PATIENT, requester="weiss")
    assert (tiers.patients, tiers.interval) == (flat.patients, flat.interval)
    card = cc.load(next((tmp_path / "tiers").glob("*.asked/*/model.json"))).card
    names = {site.name for site in card.sites}
    assert names == ({"upper", "lower", "west"} if release == "exact" else {*TIERS, "west"})
    again = cc.Study.read(path).run(tmp_path / "again")  # with the identities that regions keep
    assert not again.card.refusals


@pytest.mark.parametrize(
    "tiers",
    [{"north": "south"}, {"north": "upper/"}, {"north": "a/b", "south": "b"}, {"north": "a/a"}],
)
def test_regions_have_names_of_their_own(tiers, tmp_path):
    path = write_tiers(tmp_path, tiers=tiers)
    with pytest.raises(StudyError, match="a region has a name that no hospital has, and is in one place"):
        cc.Study.read(path)
