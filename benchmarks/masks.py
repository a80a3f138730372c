"""A masked round against plain summation: what hiding which hospital answered costs in computing.

python benchmarks/masks.py [sites] [counts]      default 10 sites x 5,240 counts; promised: under 10 ms a round

All sites and the house run one after the other in this process, so a round's figure is everybody's work added
up in processor time: deriving pair keys, masking, storing (in memory), checking commitments, revealing,
unmasking. The network and the disk are not in it. Bytes are what the sites send and are shown in one round.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from concilium.ledger.mask_store import SqliteMaskStore
from concilium.privacy.identity import Identity
from concilium.privacy.manifest import Participant, compose
from concilium.privacy.masks import MaskedRound
from concilium.privacy.study_keys import call_roll, verify_study_keys
from concilium.protocol.membership import Membership

REPEATS = 41


def timed(work: Callable[[int], object]) -> float:
    """The median processor time of one call in milliseconds, after a first one that does not count."""
    work(0)
    taken = []
    for turn in range(1, REPEATS):
        start = time.process_time()
        work(turn)
        taken.append(time.process_time() - start)
    return 1000 * statistics.median(taken)


def main(sites: int, counts: int) -> None:
    draw = np.random.default_rng(1)
    names = [f"hospital {place:02}" for place in range(sites)]
    vectors = {name: draw.integers(0, 1000, counts).astype(np.uint64) for name in names}
    identities = {name: Identity.create() for name in names}
    peers = {name: identity.fingerprint for name, identity in identities.items()}
    manifest = compose("benchmark", [Participant(name, identities[name].public) for name in names])
    phases: dict[str, list[float]] = {"mask": [], "reveal": [], "unmask": []}

    def join() -> tuple[dict[str, Membership], bytes]:
        members = {
            name: Membership(
                manifest, name, identities[name], peers, SqliteMaskStore(sqlite3.connect(":memory:"))
            )
            for name in names
        }
        keys = [member.key for member in members.values()]
        verify_study_keys(manifest, keys)
        rolls = call_roll(manifest, keys)
        for name, member in members.items():
            member.meet(rolls[name])
        return members, rolls[names[0]].root

    members, roll = join()
    sent = 0

    def masked(turn: int) -> np.ndarray:
        nonlocal sent
        content = b"question %d" % turn
        started = time.process_time()
        answers = [member.mask(content, vectors[name]) for name, member in members.items()]
        answered = time.process_time()
        asked = MaskedRound(manifest, roll, content)
        commitments = asked.commitments(answers)
        shown = asked.show(commitments)
        seeds = [member.reveal(content, shown[name], charge_on_disk=True) for name, member in members.items()]
        revealed = time.process_time()
        total = asked.unmask(answers, seeds)
        ended = time.process_time()
        for phase, taken in zip(
            phases, (answered - started, revealed - answered, ended - revealed), strict=True
        ):
            phases[phase].append(1000 * taken)
        sent = sum(len(msgspec.msgpack.encode(messages)) for messages in (answers, shown, seeds))
        return total

    def plain(turn: int) -> np.ndarray:
        return np.sum(list(vectors.values()), axis=0)

    if not np.array_equal(masked(-1), plain(-1)):
        sys.exit("the masked sum differs from the plain sum")
    joining, round_of_masks, summation = timed(lambda turn: join()), timed(masked), timed(plain)
    parts = ", ".join(f"{phase} {statistics.median(taken):.2f}" for phase, taken in phases.items())
    print(
        f"{sites} sites x {counts} counts, each masked with {manifest.graph.degree} others, median of {REPEATS - 1}, "
        "processor time of all sites and the house"
    )
    print(f"  plain summation        {summation:9.3f} ms   {sites * counts * 8:10,} bytes")
    print(f"  masked round           {round_of_masks:9.3f} ms   {sent:10,} bytes   ({parts})")
    print(
        f"  joining a study, once  {joining:9.3f} ms   (keys signed, verified, agreed by each pair with masks)"
    )


if __name__ == "__main__":
    numbers = [int(argument.replace(",", "")) for argument in sys.argv[1:]]
    main(*(numbers + [10, 5240][len(numbers) :]))
