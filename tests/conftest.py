"""Settings for the whole suite. Machines are shared and noisy, so no test fails for being slow."""

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Two workers share two cores: threads of linear algebra beside them would mostly wait for each other. Before numpy.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

# A shell that runs the suite in the background has it ignore interrupts, and so would the commands that it interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes: each would compile the package for itself where no bytecode is kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("concilium", deadline=None)
settings.load_profile("concilium")

# Ledgers are on disk before an answer leaves, so thousands of them mean tens of thousands of waits for a disk: where
# files can be kept in memory, tests do.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None


# Modules and tests stay to the end: a million objects, which need not be looked through again and again for garbage.
gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Those that start networks first: they take longest, and next to each other they share one."""
    items.sort(key=lambda item: item.path.parent.name != "flare")


@pytest.fixture(autouse=True, scope="session")
def _patient_houses():
    """A machine that is busy with other things is no site that hangs: tests of those say how long they wait."""
    from concilium.protocol.house import House

    House.__init__.__kwdefaults__["timeout"] = 600.0
