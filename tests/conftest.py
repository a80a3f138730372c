"""Settings for the whole suite. Machines are shared and noisy, so no test fails for being slow."""

import collections
import functools
import gc
import hashlib
import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

# Workers share the cores: threads of linear algebra beside them would mostly wait for each other. Before numpy.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

# A shell that runs the suite in the background has it ignore interrupts, and so would the commands that it interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes: each would compile the package for itself where no bytecode is kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("concilium", deadline=None)
settings.load_profile("concilium")
STATED = "_hypothesis_internal_use_settings"

# Ledgers are on disk before an answer leaves, so thousands of them mean tens of thousands of waits for a disk: where
# files can be kept in memory, tests do.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None


# Modules and tests stay to the end: a million objects, which need not be looked through again and again for garbage.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Those that start networks first: they take longest, and next to each other they share one."""
    items.sort(key=lambda item: item.path.parent.name != "flare")
    tests = {getattr(item.obj, "__func__", item.obj) for item in items if hasattr(item, "obj")}
    for test in (one for one in tests if getattr(one, "is_hypothesis_test", False)):
        stated = getattr(test, STATED, settings.default)
        count = max(
            min(stated.max_examples, FEW), round(stated.max_examples * config.getoption("--examples"))
        )
        setattr(test, STATED, settings(stated, max_examples=count))


@pytest.fixture(autouse=True, scope="session")
def _patient_houses():
    """A machine that is busy with other things is no site that hangs: tests of those say how long they wait."""
    from concilium.protocol.house import House

    House.__init__.__kwdefaults__["timeout"] = 600.0


# Whole models are learned with noise here, so that a test may fail by luck, long after it was written. In CI noise
# replays: one stream for each test or fixture, and in it one for each site, whichever thread asks first. Mechanisms and
# their distributions are tested with the operating system's noise; `pytest --fresh-noise` uses it everywhere.
OWN_NOISE = {"privacy", "statistical"}


# Of the examples that a property test states, how many it draws. CI draws the same ones every time, so that more of
# them tell little; `make thorough` draws all.
EXAMPLES, FEW = 0.2, 5


def pytest_addoption(parser):
    parser.addoption(
        "--fresh-noise", action="store_true", help="use the operating system's noise in all tests"
    )
    parser.addoption(
        "--examples", type=float, default=EXAMPLES, help="draw this share of the examples of property tests"
    )


class _Replay:
    """A stream of bytes for each site, and one for what is drawn outside of sites."""

    site = threading.local()

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._turns: collections.defaultdict[str, itertools.count] = collections.defaultdict(itertools.count)

    def __call__(self, count: int) -> bytes:
        site = getattr(self.site, "name", "")
        return hashlib.shake_256(f"{self._seed}:{site}:{next(self._turns[site])}".encode()).digest(count)

    @classmethod
    def name_sites(cls, ask: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(ask)
        def ask_one(self, name, message):
            before = getattr(cls.site, "name", "")
            cls.site.name = name
            try:
                return ask(self, name, message)
            finally:
                cls.site.name = before

        return ask_one


@contextmanager
def _replaying(config, path, seed):
    from concilium.privacy import randomness

    if config.getoption("--fresh-noise") or path is None or OWN_NOISE & {*path.parts}:
        yield
        return
    before, randomness._source = randomness._source, _Replay(seed)
    try:
        yield
    finally:
        randomness._source = before


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with _replaying(
        request.config, request.path, f"{fixturedef.baseid} {fixturedef.argname} {request.param_index}"
    ):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _replaying(item.config, item.path, item.nodeid):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _one_command_tree():
    """The commands are put together once, and not for each of the hundreds of calls."""
    import typer.testing

    typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(autouse=True, scope="session")
def _site_streams():
    from concilium.transports.embedded import Embedded

    Embedded._ask_one = _Replay.name_sites(Embedded._ask_one)


@pytest.fixture(autouse=True, scope="session")
def _cheap_passwords():
    """A password takes a sixth of a second of a processor, on purpose, and pages are opened by hundreds of people."""
    try:
        from argon2 import PasswordHasher
    except ImportError:  # there is no console either
        return
    from concilium.console import access

    make = access._make_hasher
    access._make_hasher = lambda: PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    access._make_hasher.__wrapped__ = make


@pytest.fixture(autouse=True, scope="session")
def _one_choice_of_blocks():
    """The same codes are shared again and again, and which blocks are best is searched for once."""
    from concilium.codes import sharing

    choose, chosen = sharing.choose_blocking, {}

    def choose_once(distances, candidates, epsilon, most_added, weights=None):
        arrays = [(one.shape, one.tobytes()) for one in (distances, candidates, weights) if one is not None]
        about = (*arrays, epsilon, most_added)
        if about not in chosen:
            chosen[about] = choose(distances, candidates, epsilon, most_added, weights)
        return chosen[about]

    sharing.choose_blocking = choose_once
