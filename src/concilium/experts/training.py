"""Training the experts of many patients: each from its own windows, in processes of their own, and never twice.

An expert is kept under the digest of the task and of all that it learns from, so that training goes on where it was
interrupted, and so that a patient who comes later costs one expert. Which process trains it, and with whom, changes
nothing (`network.draw_public`). Where all of it takes seconds, no process is started. docs/methods.md, section 8.1.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import msgspec
import numpy as np

from concilium.errors import DoesNotFit, RecordsError
from concilium.experts.expert import Expert, read_expert, write_expert
from concilium.experts.expert_task import ExpertTask, NetworkSettings
from concilium.experts.network import open_network
from concilium.experts.patient_windows import LaidOut, Windows
from concilium.protocol.shelf import Shelf

WORKERS = 2
WORTH_A_PROCESS = 8.0  # seconds
HEADER = 8  # bytes of a message's length

Tell = Callable[[int, int], None]


class _Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows to train a network on, as they go to a process of its own."""

    network: NetworkSettings
    shape: list[int]
    inputs: bytes
    targets: bytes
    lengths: bytes


def train_experts(
    laid: LaidOut,
    patients: Sequence[int],
    shelf: Shelf | None = None,
    *,
    workers: int = WORKERS,
    on_progress: Tell | None = None,
) -> list[Expert]:
    """The experts of these patients, in order; `on_progress` is called with how many are ready, and of how many."""
    shelf, tell = shelf or Shelf(), on_progress or (lambda ready, of: None)
    task = laid.task
    experts: dict[int, Expert] = {}
    missing: list[tuple[int, str, Windows]] = []
    for place, patient in enumerate(patients):
        windows = laid.cut(patient)
        constant = windows.constant
        if constant is not None:
            experts[place] = Expert(None, constant, constant > 0)
            continue
        name = _name_expert(task, windows)
        kept = _find_kept(shelf, name)
        if kept is None:
            missing.append((place, name, windows))
        else:
            experts[place] = kept
    tell(len(experts), len(patients))
    network = open_network(task.network, len(task.variables))
    seconds = sum(network.estimate_seconds(len(windows), task.steps) for _, _, windows in missing)
    workers = min(workers, len(missing), os.cpu_count() or 1) if seconds > WORTH_A_PROCESS else 1
    train = _train_apart if workers > 1 else _train_here
    queue: SimpleQueue[tuple[int, str, Windows]] = SimpleQueue()
    for one in missing:
        queue.put(one)

    def keep(place: int, name: str, expert: Expert) -> None:
        shelf.keep(name, write_expert(expert))
        experts[place] = expert
        tell(len(experts), len(patients))

    if workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(train, task, queue, keep) for _ in range(workers)]:
                done.result()
    else:
        train(task, queue, keep)
    return [experts[place] for place in range(len(patients))]


def _find_kept(shelf: Shelf, name: str) -> Expert | None:
    """An expert that was trained before; one that cannot be read is trained again."""
    kept = shelf.find(name)
    try:
        return None if kept is None else read_expert(kept)
    except RecordsError:
        return None


def _name_expert(task: ExpertTask, windows: Windows) -> str:
    """What it is kept under: by the network, the bound and the windows, which hold all the rest."""
    content = msgspec.json.encode((task.network, task.bound, windows.digest))
    return f"expert-{hashlib.sha256(content).hexdigest()}"


Keep = Callable[[int, str, Expert], None]


def _train_here(task: ExpertTask, queue: SimpleQueue[tuple[int, str, Windows]], keep: Keep) -> None:
    while True:
        try:
            place, name, windows = queue.get_nowait()
        except Empty:
            return
        keep(place, name, train_one(task.network, windows))


def train_one(settings: NetworkSettings, windows: Windows) -> Expert:
    network = open_network(settings, windows.inputs.shape[2])
    return Expert(network.train(windows), 0.0, bool(np.nanmax(windows.targets) > 0))


def _train_apart(task: ExpertTask, queue: SimpleQueue[tuple[int, str, Windows]], keep: Keep) -> None:
    """The same with a process that does the work: windows go in and experts come out, by its pipes."""
    command = [sys.executable, "-m", "concilium.experts.training"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_use_one_thread())
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while True:
            try:
                place, name, windows = queue.get_nowait()
            except Empty:
                return
            process.stdin.write(_frame(msgspec.msgpack.encode(_write_job(task.network, windows))))
            process.stdin.flush()
            answer = _read_frame(process.stdout.read)
            if answer is None:
                raise DoesNotFit(
                    "a process that trains experts has ended; those that are trained are kept: ask again to go on"
                )
            keep(place, name, read_expert(answer))
    except BrokenPipeError:
        raise DoesNotFit("a process that trains experts has ended before it began") from None
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def _use_one_thread() -> dict[str, str]:
    """The environment of a worker: there are as many processes as cores, each with one thread."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def _write_job(settings: NetworkSettings, windows: Windows) -> _Job:
    return _Job(
        settings,
        list(windows.inputs.shape),
        np.ascontiguousarray(windows.inputs, dtype="<f4").tobytes(),
        np.ascontiguousarray(windows.targets, dtype="<f8").tobytes(),
        np.ascontiguousarray(windows.lengths, dtype="<i8").tobytes(),
    )


def _read_job(job: _Job) -> Windows:
    shape = tuple(job.shape)
    return Windows(
        np.frombuffer(job.inputs, dtype="<f4").reshape(shape),
        np.frombuffer(job.targets, dtype="<f8").reshape(shape[:2]),
        np.frombuffer(job.lengths, dtype="<i8"),
    )


def _frame(content: bytes) -> bytes:
    return len(content).to_bytes(HEADER, "little") + content


def _read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """The next message of a pipe; None where it has ended."""
    header = read(HEADER)
    if len(header) < HEADER:
        return None
    size = int.from_bytes(header, "little")
    content = read(size)
    return content if len(content) == size else None


def _main() -> None:
    """Train what comes in by the input, one after the other: `python -m concilium.experts.training`."""
    while (content := _read_frame(sys.stdin.buffer.read)) is not None:
        job = msgspec.msgpack.decode(content, type=_Job)
        if job.network.kind.startswith("torch"):
            from concilium.experts.torch_lstm import load_torch

            load_torch().set_num_threads(1)
        sys.stdout.buffer.write(_frame(write_expert(train_one(job.network, _read_job(job)))))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
