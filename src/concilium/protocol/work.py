"""What a question takes at a site, told before anything is computed: from the question, and from the size of the whole
table, never from the patients who match.

An operation is a visit to one cell of the table, which takes some nanoseconds; what is slower counts as several, so
that no question takes longer than SLOWEST_OPERATION for each, once its code is compiled. Memory is what is held at
once. Both are upper bounds, within reason: a column of categories is taken to have fewer different values than the
table has rows, and texts of usual length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from concilium.protocol.attributes import Attribute

SLOWEST_OPERATION = 5e-9  # seconds
# A call or two of Python or numpy, whatever they are about.
CALL = 5_000
# For each patient: to find the interval of a number (and more by the edges), the cell of a category, and the label of
# a cell that is read by itself, which may be a number.
READ_NUMBER, READ_CATEGORY, READ_LABEL = 16, 60, 500
# Bytes for each patient while one column is read, and while its cells are read by themselves.
READING, LABELLING = 48, 240


@dataclass(frozen=True)
class Workload:
    """So many operations, and so many bytes at once."""

    operations: int
    memory: int

    def __add__(self, other: Workload) -> Workload:
        return Workload(self.operations + other.operations, self.memory + other.memory)


def estimate_columns(
    attributes: Iterable[Attribute], patients: int, *, each_by_itself: bool = False
) -> Workload:
    """To read the columns of these attributes, and to hold their codes."""
    operations, memory = 0, LABELLING if each_by_itself else READING
    for attribute in attributes:
        edges = len(attribute.edges)
        if edges:
            operations += READ_NUMBER + 4 * edges.bit_length()
            memory += count_code_bytes(edges + 1)
        else:
            operations += READ_LABEL if each_by_itself else READ_CATEGORY
            memory += 4 if each_by_itself else count_code_bytes(attribute.size)
    return Workload(operations * patients, memory * patients)


def count_code_bytes(largest: int) -> int:
    """How many bytes a code takes of which this is the largest."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
