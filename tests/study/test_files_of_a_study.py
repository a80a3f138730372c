"""Files that travel with a study: what comes out is what went in, and no name leads out of the study's folder."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concilium.errors import StudyError
from concilium.study import attached_files
from concilium.study.attached_files import pack_attached, unpack_attached
from concilium.study.study import Study

STUDY = """
[study]
name = "words"
method = "tree"
target = "death"
[privacy]
release = "exact"
[dictionary]
file = {name}
"""


def pack(content):
    return base64.b64encode(zlib.compress(content)).decode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_what_arrives_is_what_was_sent(tmp_path, text):
    sent, arrived = tmp_path / "sent", tmp_path / "arrived"
    sent.mkdir(exist_ok=True)
    arrived.mkdir(exist_ok=True)
    (arrived / "words.toml").unlink(missing_ok=True)
    text = "".join(character for character in text if character.isprintable())
    content = f"# {text}\n[dictionary.age]\ntype = 'number'\n".encode()
    (sent / "study.toml").write_text(STUDY.format(name='"words.toml"'))
    (sent / "words.toml").write_bytes(content)
    unpack_attached(pack_attached(sent / "study.toml"), arrived)
    assert [path.name for path in arrived.iterdir()] == ["words.toml"]
    assert (arrived / "words.toml").read_bytes() == content


@pytest.mark.parametrize("name", ["../words.toml", "/etc/passwd", "a/b.toml", "..", "study.toml", "a\nb"])
def test_no_name_leads_elsewhere(tmp_path, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "study.toml").write_text(STUDY.format(name=repr(name).replace("'", '"')))
    with pytest.raises(StudyError, match="must be the name of a file beside the study"):
        Study.read(inner / "study.toml", elsewhere=True)
    with pytest.raises(StudyError, match="a name that leads elsewhere"):
        unpack_attached({name: pack(b"x")}, inner)
    assert [path.name for path in inner.iterdir()] == ["study.toml"]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


def test_a_dictionary_that_came_along_names_no_other_file(tmp_path):
    (tmp_path / "secret.toml").write_text("[dictionary.age]\ntype = 'number'\n")
    (tmp_path / "words.toml").write_text('[dictionary]\nfile = "secret.toml"\n')
    (tmp_path / "study.toml").write_text(STUDY.format(name='"words.toml"'))
    with pytest.raises(StudyError, match="must hold the dictionary itself"):
        Study.read(tmp_path / "study.toml", elsewhere=True)


def test_a_file_without_a_word_about_attributes_is_said_to_be(tmp_path):
    (tmp_path / "words.toml").write_text("[age]\ntype = 'number'\n")
    (tmp_path / "study.toml").write_text(STUDY.format(name='"words.toml"'))
    with pytest.raises(StudyError, match=r"of age, say, it does in a section \[dictionary.age\]"):
        Study.read(tmp_path / "study.toml", elsewhere=True)


def test_what_is_too_large_or_damaged_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(attached_files, "MOST_BYTES", 1000)
    (tmp_path / "study.toml").write_text(STUDY.format(name='"words.toml"'))
    (tmp_path / "words.toml").write_bytes(bytes(1001))
    with pytest.raises(StudyError, match="MiB together"):
        pack_attached(tmp_path / "study.toml")
    inner = tmp_path / "inner"
    inner.mkdir()
    two = {"a.toml": pack(b"#" * 600), "b.toml": pack(b"#" * 600)}
    for sent in (
        {"a.toml": pack(bytes(10**6))},
        two,
        {"a.toml": pack(b"abcdef")[:8]},
        {"a.toml": "?"},
        {"a.toml": pack(b"")[:-4]},
        {"a.toml": "\u00e9"},
    ):
        with pytest.raises(StudyError, match="came with the study"):
            unpack_attached(sent, inner)
