"""Read a file of a format that can unfold without bound (spreadsheets, Parquet) in a process of its own.

Protects: this process, from a file that takes all memory or time, or makes its reader crash. Cost: the start of a
process, about a tenth of a second. Assumes: Linux, which holds the process to its limits of memory, processor time and
size of files. Whatever ends it, the caller gets one sentence.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from concilium.errors import RecordsError

GIB = 1 << 30
SENTENCE = 200  # characters that the process may say of a problem
PROGRAM = Path(__file__).with_name("confined_process.py")


def read_confined(
    job: str, *arguments: str, problem: str, memory: int = 4 * GIB, seconds: int = 300, output: int = GIB // 2
) -> bytes:
    """What a job of confined_process.py returns; RecordsError with this problem where it returns nothing."""
    limits = [str(memory), str(seconds), str(output)]
    with subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM), job, *limits, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            head = process.stdout.read(9)
            size = int.from_bytes(head[1:], "big")
            content = process.stdout.read(min(size, output))
        finally:
            process.kill()
    if len(head) == 9 and size == len(content):
        if head[:1] == b"+":
            return content
        raise RecordsError(f"{problem}: {content[:SENTENCE].decode('utf-8', 'replace')}")
    raise RecordsError(
        f"{problem}: it is damaged, or reading it takes more than {memory / GIB:g} GiB of memory or {seconds} s"
    )
