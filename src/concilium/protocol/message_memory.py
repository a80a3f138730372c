"""How much memory reading a message takes, found before it is read.

Who is protected: the site (and the house), from a small message that becomes a large one in memory. An empty list is
one byte of msgpack and 72 of Python, and tidying up millions of them takes longer than making them. So whatever is not
raw bytes may take MOST_MEMORY in all, by the weights below, which are what CPython and msgspec take at most; bytes are
copied as they are, at most three times on their way in (envelope, step, terms). A message then takes four times its
size and a few times MOST_MEMORY, whatever it says. The walk ends where the limit is reached: it takes a fraction of a
second at most. What is too short to reach the limit is not walked through.
"""

from __future__ import annotations

from concilium.errors import MessageError

MOST_MEMORY = 1 << 25

# With the pointer to each, rounded up as the allocator does. A whole number may be asked for as a float, a list
# be a struct whose other fields have defaults, a map be a struct or a dict that is just growing.
POINTER, NUMBER, TEXT, BYTES, LIST, MAP, ENTRY = 8, 40, 72, 56, 96, 200, 104
WIDEST = 4  # bytes for each character of a text in which one is beyond the Basic Multilingual Plane

UNREAD = MOST_MEMORY // LIST  # no byte of msgpack becomes more than an empty list

# For each first byte: the bytes that follow it, of which so many say a length.
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def check_memory(data: bytes, what: str) -> None:
    """MessageError where reading these bytes would take more than MOST_MEMORY beside the raw bytes in them."""
    if len(data) > UNREAD and measure_memory(data) > MOST_MEMORY:
        raise MessageError(
            f"this {what} of {len(data):,} bytes would take more than {MOST_MEMORY >> 20} MB of memory to read: ask "
            "about fewer things at a time"
        )


def measure_memory(data: bytes) -> int:
    """What the objects in a msgpack message take at most, but for raw bytes; counting stops beyond MOST_MEMORY.

    What is not msgpack is measured up to there: reading it ends there as well.
    """
    at, end, objects, memory = 0, len(data), 1, 0
    while objects and at < end and memory <= MOST_MEMORY:
        objects -= 1
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            memory += NUMBER
        elif first < 0x90:
            objects += 2 * (first & 15)
            memory += MAP + ENTRY * (first & 15)
        elif first < 0xA0:
            objects += first & 15
            memory += LIST
        elif first < 0xC0:
            memory += _measure_text(data, at, first & 31)
            at += first & 31
        elif first in _FIXED:
            memory += NUMBER
            at += _FIXED[first]
        elif first in _SIZES:
            length = int.from_bytes(data[at : at + _SIZES[first]], "big")
            at += _SIZES[first]
            if first >= 0xDE:
                objects += 2 * length
                memory += MAP + ENTRY * min(length, end - at)
            elif first >= 0xDC:
                objects += length
                memory += LIST
            elif first >= 0xD9:
                memory += _measure_text(data, at, length)
                at += length
            else:
                memory += BYTES
                at += length
        elif first in (0xC0, 0xC2, 0xC3):
            memory += POINTER
        else:  # an extension, of which no message of ours is made
            break
    return memory


def _measure_text(data: bytes, at: int, length: int) -> int:
    if length > MOST_MEMORY:
        return length
    return TEXT + length * (1 if data[at : at + length].isascii() else WIDEST)
