"""`python -m concilium.experts.worker`: a process that trains what comes in by its input, one after the other."""

from __future__ import annotations

import sys

import msgspec

from concilium.experts.expert import write_expert
from concilium.experts.training import Job, frame, read_frame, read_job, train_one


def main() -> None:
    while (content := read_frame(sys.stdin.buffer.read)) is not None:
        job = msgspec.msgpack.decode(content, type=Job)
        if job.network.kind.startswith("torch"):
            from concilium.experts.torch_lstm import load_torch

            load_torch().set_num_threads(1)
        sys.stdout.buffer.write(frame(write_expert(train_one(job.network, read_job(job)))))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
