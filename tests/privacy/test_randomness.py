import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium
from concilium.errors import ConciliumError
from concilium.privacy import randomness

PACKAGE = Path(concilium.__file__).parent

# What may stay, file by file. Anything else that is random belongs into privacy/randomness.py.
ALLOWED = {
    "privacy/randomness.py": {"urandom"},
    "cli/demo_patients.py": {"np.random", "default_rng"},  # synthetic patients, the same every time
    # Intervals of figures that are released already, the same every time.
    "evaluation/summary.py": {"np.random", "default_rng"},
    "evaluation/horizons.py": {"np.random", "default_rng"},
    "evaluation/risk_tables.py": {"np.random", "default_rng"},
    "statistics/survival.py": {"np.random", "default_rng"},
    # The hour at which a stay without the outcome is judged, the same every time: it hides nothing.
    "models/prediction.py": {"np.random", "default_rng"},
    # Points at which an interval of released counts is evaluated, the same every time.
    "consultations/intervals.py": {"np.random", "default_rng"},
    # Tokens of sessions and forms.
    "console/access.py": {"secrets"},
    "console/openid.py": {"secrets"},
    "privacy/mechanisms.py": {"opendp"},
    # Attacks and their intervals, the same under their seed: they protect nobody.
    "evaluation/audited_patients.py": {"np.random", "default_rng"},
    "evaluation/attacks.py": {"np.random", "default_rng"},
    # A search over formulas, the same under its seed: it hides nothing, and nothing rests on its being unforeseen.
    # Dropout while a network is trained, the same under its seed, and torch's own generator left as it was.
    "experts/torch_lstm.py": {"torch.random"},
    "temporal/search_space.py": {"random"},
    "temporal/learning.py": {"random"},
}

MODULES = {"random", "secrets", "numpy.random", "opendp", "randomgen"}
NAMES = {
    "urandom",
    "getrandom",
    "uuid1",
    "uuid4",
    "SystemRandom",
    "default_rng",
    "RandomState",
    "generate_key",
}
NUMERIC = {"np", "numpy", "torch", "scipy", "jax"}


def find_randomness(code: str) -> set[str]:
    """Whatever a module imports or uses that could give it random numbers."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import():
                found |= {name for alias in node.names for name in _modules_of(alias.name)}
            case ast.ImportFrom(module=module, level=0):
                for alias in node.names:
                    found |= _modules_of(f"{module}.{alias.name}") | ({alias.name} & NAMES)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found |= _modules_of(module)
            case ast.Attribute(attr="random", value=ast.Name(id=owner)) if owner in NUMERIC:
                found.add(f"{owner}.random")
            case ast.Attribute(attr="generate", value=ast.Name(id=owner)) if owner.endswith("Key"):
                found.add(f"{owner}.generate")
            case ast.Attribute(attr=name) if name in NAMES:
                found.add(name)
            case ast.Constant(value=str(text)) if text in ("/dev/urandom", "/dev/random"):
                found.add(text)
    return found


def _modules_of(dotted: str) -> set[str]:
    return {module for module in MODULES if dotted == module or dotted.startswith(module + ".")}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import random", {"random"}),
        ("import random as r", {"random"}),
        ("from random import choice", {"random"}),
        ("import secrets", {"secrets"}),
        ("import os\nos.urandom(8)", {"urandom"}),
        ("from os import urandom as noise", {"urandom"}),
        ("import os\nos.getrandom(8)", {"getrandom"}),
        ("import numpy as np\nnp.random.default_rng(1)", {"np.random", "default_rng"}),
        ("from numpy import random", {"numpy.random"}),
        ("from numpy.random import default_rng", {"numpy.random", "default_rng"}),
        ("import uuid\nuuid.uuid4()", {"uuid4"}),
        ("from uuid import uuid4", {"uuid4"}),
        ("def f():\n    import opendp.prelude as dp", {"opendp"}),
        ("import importlib\nimportlib.import_module('random')", {"random"}),
        ("__import__('secrets')", {"secrets"}),
        ("X25519PrivateKey.generate()", {"X25519PrivateKey.generate"}),
        ("open('/dev/urandom')", {"/dev/urandom"}),
        ("from concilium.privacy import randomness\nrandomness.draw_words(3)", set()),
        ("import uuid\nuuid.uuid5(a, b)", set()),
    ],
)
def test_the_search_finds_every_way_to_be_random(code, found):
    assert find_randomness(code) == found


def test_there_is_no_other_source_of_randomness_and_nothing_fixes_the_noise():
    extra, fixed = {}, []
    for file in PACKAGE.rglob("*.py"):
        code, name = file.read_text(), file.relative_to(PACKAGE).as_posix()
        if found := find_randomness(code) - ALLOWED.get(name, set()):
            extra[name] = found
        if fixes_noise(code):
            fixed.append(name)
    assert not extra, "draw from concilium.privacy.randomness instead"
    assert not fixed


def fixes_noise(code: str) -> bool:
    """Whether a module uses what only tests may."""
    if "seeded" not in code and "zero_noise" not in code:
        return False
    for node in ast.walk(ast.parse(code)):
        names = {getattr(node, "attr", None)}
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        if names & {"seeded", "zero_noise"}:
            return True
    return False


@pytest.mark.parametrize(
    "code", ["from concilium.privacy.randomness import seeded", "randomness.zero_noise()", "x.seeded(1)"]
)
def test_the_search_finds_who_fixes_the_noise(code):
    assert fixes_noise(code)


@pytest.mark.parametrize("fix", [lambda: randomness.seeded(1), randomness.zero_noise], ids=["seeded", "zero"])
@pytest.mark.parametrize("value", [None, "", "1", "true"])
def test_noise_cannot_be_fixed_without_the_switch(monkeypatch, fix, value):
    monkeypatch.delenv(randomness.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(randomness.SWITCH, value)
    with pytest.raises(ConciliumError, match="tests only"), fix():
        pytest.fail("the noise was fixed")
    assert not randomness.noise_is_zero()
    assert not randomness.source_is_seeded()


def test_the_switch_alone_changes_nothing(fixable):
    assert not randomness.source_is_seeded()
    assert not randomness.noise_is_zero()
    assert randomness.draw_bytes(32) != randomness.draw_bytes(32)


def test_a_seed_replays_and_ends_with_its_block(fixable):
    def draw(seed):
        with randomness.seeded(seed):
            return randomness.draw_bytes(16), randomness.draw_bytes(16)

    first, second = draw(1)
    assert (first, second) == draw(1)
    assert first != second
    assert draw(2) != draw(1)
    with pytest.raises(AssertionError, match="in the block"), randomness.seeded(1), randomness.zero_noise():
        assert not (randomness.source_is_seeded() and randomness.noise_is_zero()), "in the block"
    assert not randomness.source_is_seeded()
    assert not randomness.noise_is_zero()


def test_words_use_all_their_bits():
    words = randomness.draw_words(1000)
    assert words.dtype == np.uint64
    assert words.shape == (1000,)
    # A healthy bit is constant over 1,000 words once in 2^999.
    assert np.bitwise_or.reduce(words) == 2**64 - 1
    assert np.bitwise_and.reduce(words) == 0
    assert len(set(words.tolist())) == 1000


@given(st.integers(1, 2**63), st.integers(0, 50))
def test_integers_stay_below_their_bound(bound, count):
    drawn = randomness.draw_below(bound, count)
    assert drawn.shape == (count,)
    assert all(int(d) < bound for d in drawn)


def test_integers_have_no_remainder_bias():
    # A bare remainder would give the top third of this range a quarter of the draws: 26 sd away.
    top = randomness.draw_below(3 * 2**61, 20_000) >= np.uint64(2 * 2**61)
    assert abs(top.mean() - 1 / 3) < 6 * (2 / 9 / 20_000) ** 0.5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_repeats_nothing():
    script = """if True:
        import os
        from concilium.privacy import mechanisms, randomness
        draw = lambda: (randomness.draw_bytes(16).hex(), mechanisms.draw_gaussian(30, 10**6).tolist())
        draw()
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, repr(draw()).encode())
            os._exit(0)
        theirs = eval(os.read(read, 10_000))
        ours = draw()
        assert theirs[0] != ours[0] and theirs[1] != ours[1], (theirs, ours)
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


@pytest.fixture
def fixable(monkeypatch):
    monkeypatch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
