"""Messages made to keep the gateway busy: work and memory grow with their bytes, whatever their shape.

Work is counted in lines that run, not in seconds, so that a busy machine changes nothing; memory by tracemalloc. Each
shape is made at two sizes: the larger may take as much more as it has more bytes.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concilium import policy
from concilium.console import gateway as web
from concilium.console.gateway import Gateway
from concilium.policy import matching

SECRET = b"a secret of this gateway"
# What any message may take, and each of its bytes. Reading JSON alone takes up to 35 bytes of memory for a byte.
STEPS, MEMORY = 60_000, 1_000_000
A_BYTE = {"bundle": (120, 250), "graph": (120, 250), "hl7": (450, 800)}
SMALL, TIMES = 1_900, 4

ACTIONS = """
graph hide { node x + eliminate x.name, eliminate x.a.b, substitute x.id =~ /hash()/, substitute x.a =~ /S/x/; }
graph dates { node x + substitute x.birthDate =~ /shift_dates()/, substitute x.PID.7 =~ /shift_dates()/; }
graph all { node x + where x.resourceType = 'Basic' or x.segment = 'ZZZ' substitute x =~ /S/x/; }
graph kin { node x + where x.segment = 'NK1' or x.resourceType = 'RelatedPerson' eliminate x; }
graph words { node x [psychiatry, a, name, PID] eliminate x.id; }
graph own { node x + where x.a < x.b or x.c >= x.d eliminate x.a; }
graph own_equal { node x + where x.a = x.b eliminate x.b; }
graph cut { node p; node q; edge r(p, q) where r.path = 'subject' or r.kind = 'k' eliminate r; }
graph joined { node p; node q; edge (p, q); node z + eliminate z.name; }
"""
SEARCHES = (
    "graph C { node p + where p.a = q.a and p.t = 'x' eliminate p.a; node q where q.t = 'x'; node s; edge (s, q); }",
    "graph C { node p where p.a < q.a eliminate p.a; node q; }",
    "graph C { node p {1}; node q {1}; node r {1}; edge (p, q); edge e(q, r) eliminate e; }",
)


class Taken(NamedTuple):
    """What a message took."""

    steps: int
    memory: int


def measure(rules: str, data: bytes) -> Taken:
    gateway = Gateway(policy.parse(rules, secret=SECRET))
    gateway.handle(b'{"nodes": []}')
    gateway.handle(b"MSH|")
    steps, before = 0, sys.gettrace()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    tracemalloc.start()
    sys.settrace(count)
    try:
        status = gateway.handle(data).status
    finally:
        sys.settrace(before)
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert status in (200, 400, 403)
    return Taken(steps, memory)


def attack(rules: str, shape: str, depth: int, steps: int = 0) -> None:
    """Fails where a message takes more than its bytes allow, or than a smaller one of its shape leads to expect.

    `steps` are those that a message may take whatever its size.
    """
    small, large = (SHAPES[shape](size, depth) for size in (SMALL, SMALL * TIMES))
    before, after = measure(rules, small), measure(rules, large)
    growth = len(large) / len(small)
    steps_a_byte, memory_a_byte = A_BYTE[shape.split(":")[0]]
    assert after.steps < STEPS + steps_a_byte * len(large)
    assert after.memory < MEMORY + memory_a_byte * len(large)
    assert after.steps < steps + 1.25 * growth * before.steps
    assert after.memory < MEMORY + 1.5 * growth * before.memory


def fill(size: int, make: Callable[[int], str], start: str, end: str) -> bytes:
    """Parts made one after another, joined by commas, until the message has its size."""
    parts: list[str] = []
    length = len(start) + len(end)
    while length < size:
        parts.append(make(len(parts)))
        length += len(parts[-1]) + 1
    return f"{start}{','.join(parts)}{end}".encode()


def bundle(size: int, make: Callable[[int], str], start: str = "", end: str = "") -> bytes:
    return fill(size, make, f'{{"resourceType":"Bundle","entry":[{start}', f"{end}]}}")


def entry(content: str, url: str = "") -> str:
    address = f'"fullUrl":"{url}",' if url else ""
    return f'{{{address}"resource":{{"resourceType":"Basic",{content}}}}}'


def nest(depth: int, name: str, size: int, make: Callable[[int], str], inner: str = "") -> bytes:
    """One resource whose values all lie `depth` deep."""
    down = f'"{name}":{{{inner}' * depth
    return bundle(
        size, make, '{"resource":{"resourceType":"Basic",' + down + '"z":[', "]" + "}" * (depth + 2)
    )


BUNDLES: dict[str, Callable[[int, int], bytes]] = {
    "deep": lambda size, depth: nest(depth, "a", size, lambda n: "0"),
    "deep objects": lambda size, depth: nest(depth, "a", size, lambda n: '{"b":0}'),
    "deep, with distinct names": lambda size, depth: nest(depth, "a", size, lambda n: f'{{"b{n}":0}}'),
    "deep, with long names": lambda size, depth: nest(depth, "a" * 60, size, lambda n: f'{{"b{n}":0}}'),
    "one very long name": lambda size, depth: nest(1, "a" * (size // 2), size, lambda n: f'{{"b{n}":0}}'),
    "resources in resources": lambda size, depth: nest(
        depth, "contained", size, lambda n: '{"b":0}', '"resourceType":"Basic",'
    ),
    "empty objects": lambda size, depth: nest(depth, "a", size, lambda n: "{}"),
    "empty lists": lambda size, depth: fill(size, lambda n: "[]", '{"nodes":[', "]}"),
    "nulls": lambda size, depth: nest(depth, "_a", size, lambda n: "null"),
    "entries": lambda size, depth: bundle(size, lambda n: '{"resource":{"resourceType":"B"}}'),
    "empty entries": lambda size, depth: bundle(size, lambda n: "{}"),
    "entries with addresses": lambda size, depth: bundle(
        size, lambda n: entry(f'"a":"urn:{n // 2}"', f"urn:{n}")
    ),
    "references to one": lambda size, depth: nest(depth, "a", size, lambda n: '{"reference":"#"}'),
    "references from one": lambda size, depth: bundle(
        size, lambda n: entry(f'"id":"{n}","subject":{{"reference":"Basic/{max(n - 1, 0)}"}}')
    ),
    "references, each to its own path": lambda size, depth: nest(
        depth, "a" * 9, size, lambda n: f'{{"b{n}":{{"reference":"#"}}}}'
    ),
    "cut references": lambda size, depth: bundle(
        size,
        lambda n: entry(f'"id":"{n}","subject":{{"reference":"Basic/0"}}'),
        entry('"id":"0"') + "," if depth > 1 else "",
    ),
    "a long id": lambda size, depth: bundle(
        size, lambda n: entry('"b":' + json.dumps(["urn:0"] * 20)), entry('"id":"%s"' % ("S" * 1_900), "urn:0") + ","
    ),
    "a long type": lambda size, depth: bundle(
        size,
        lambda n: entry('"b":' + json.dumps(["x/Patient/1"] * 20)),
        '{"fullUrl":"x/Patient/1","resource":{"resourceType":"%s","id":"1"}},' % ("S" * (size // 4)),
    ),
    "values to compare": lambda size, depth: bundle(
        size,
        lambda n: entry(f'"a":{json.dumps([*range(99, 99 + 50 * depth)])},"b":{json.dumps([*range(50 * depth)])}'),
    ),
    "slashes": lambda size, depth: bundle(size, lambda n: entry('"a":"%s#"' % ("A/b/_history/" * 30 * depth))),
}  # fmt: skip


def graph(size: int, node: Callable[[int], str], edge: Callable[[int], str] | None = None) -> bytes:
    half = size if edge is None else size // 2
    data = fill(half, node, '{"nodes":[', "]}")
    if edge is None:
        return data
    return data[:-1] + b"," + fill(half, edge, '"edges":[', "]}")


GRAPHS: dict[str, Callable[[int, int], bytes]] = {
    "nodes": lambda size, depth: graph(size, lambda n: f'{{"id":{n}}}'),
    "edges to one": lambda size, depth: graph(
        size, lambda n: f'{{"id":{n},"t":"x","a":{n % depth}}}', lambda n: f"[0,{n % 20}]"
    ),
    "edges with attributes": lambda size, depth: graph(
        size, lambda n: f'{{"id":{n}}}', lambda n: f'[{n % depth},{depth},{{"kind":"k"}}]'
    ),
    "long lists": lambda size, depth: graph(
        size,
        lambda n: json.dumps({"t": "x", "id": n, "a": [f"{n}-{m}" for m in range(20 * depth)]}),
    ),
    "two long lists": lambda size, depth: (
        fill(size // 2, lambda n: f"{n + 1}", '{"nodes":[{"id":1,"t":"x","a":[', "]")
        + fill(size // 2, lambda n: "0", ',"b":[', "]}]}")
    ),
    "one long list at the hub": lambda size, depth: (
        graph(size // 4, lambda n: f'{{"id":{n},"t":"x","a":"0-0"}}')[:-2]
        + fill(size // 2, lambda n: f'"{n}"', ',{"id":"hub","t":"x","a":[', "]}],")
        + fill(size // 4, lambda n: f'["hub",{n % 200}]', '"edges":[', "]}")
    ),
}


def v2(size: int, make: Callable[[int], str], sign: str, patient: str = "PID|1||MRN7||ROE^ANN") -> bytes:
    header = r"MSH|^~\&|LAB|NORTH|EHR|SOUTH|20200228||ORU^R01|MSG7|P|2.5.1"
    start = f"{header}\r{patient}\rOBX|1"
    parts: list[str] = [start]
    length = len(start)
    while length < size:
        parts.append(make(len(parts)))
        length += len(parts[-1]) + 1
    return sign.join(parts).encode("ascii")


MESSAGES: dict[str, Callable[[int, int], bytes]] = {
    "segments": lambda size, depth: v2(size, lambda n: "NTE|1", "\r"),
    "orders": lambda size, depth: v2(size, lambda n: ("ORC|1", "OBR|1", "OBX|1", "NTE|1")[n % 4], "\r"),
    "patients": lambda size, depth: v2(size, lambda n: f"PID|{n}||{n}", "\r"),
    "numbers of one patient": lambda size, depth: v2(
        size, lambda n: "OBX|1|||||||2020", "\r", f"PID|1||{'~'.join(map(str, range(size // 8)))}||||19500131"
    ),
    "fields": lambda size, depth: v2(size, lambda n: "a", "|"),
    "repetitions": lambda size, depth: v2(size, lambda n: "a", "~"),
    "components": lambda size, depth: v2(size, lambda n: "a", "^"),
    "subcomponents": lambda size, depth: v2(size, lambda n: "", "&"),
    "escapes": lambda size, depth: v2(size, lambda n: "\\" * depth, "\\E"),
    "escaped text": lambda size, depth: v2(size, lambda n: "\\X41" * depth, "\\"),
    "one value": lambda size, depth: v2(size, lambda n: "S" * 500, "S"),
}

SHAPES = {
    **{f"bundle: {name}": make for name, make in BUNDLES.items()},
    **{f"graph: {name}": make for name, make in GRAPHS.items()},
    **{f"hl7: {name}": make for name, make in MESSAGES.items()},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_work_and_memory_grow_with_the_bytes(shape: str) -> None:
    attack(ACTIONS, shape, 40)


@settings(max_examples=3, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 49))
def test_work_and_memory_grow_with_the_bytes_at_any_depth(shape: str, depth: int) -> None:
    attack(ACTIONS, shape, depth)


@pytest.mark.parametrize("rules", SEARCHES)
@pytest.mark.parametrize("shape", [f"graph: {name}" for name in GRAPHS] + ["bundle: references from one"])
def test_a_search_has_a_limit_that_long_lists_count_toward(
    shape: str, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "MOST_TRIES", 300)
    attack(rules, shape, 40, steps=STEPS)


@pytest.mark.parametrize("part", [b"{},", b"[],", b"0,", b'"",', b'{"a":{}},'])
def test_what_has_too_many_values_is_refused_before_it_is_read(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "MOST_PARTS", 5_000)
    gateway = Gateway(policy.parse(ACTIONS, secret=SECRET))
    data = b'{"nodes":[' + part * 5_000 + b"{}]}"
    tracemalloc.start()
    reply = gateway.handle(data)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (reply.status, reply.content) == (
        400,
        {"error": "a message may have at most 5,000 values; send it in parts"},
    )
    assert memory < 100_000 + 4 * len(data)


@given(
    st.recursive(
        st.text('",[{\\\n', max_size=5) | st.none() | st.integers(),
        lambda one: st.lists(one) | st.dictionaries(st.text('",[{\\', max_size=3), one),
        max_leaves=20,
    )
)
def test_signs_within_text_do_not_count_as_values(value: Any) -> None:
    def count(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return max(len(inner) - 1, 0) + isinstance(one, dict | list) + sum(map(count, inner))

    data, parts = json.dumps(value).encode(), count(value)
    assert not web._has_more_parts(data, parts)
    assert parts == 0 or web._has_more_parts(data, parts - 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_json_is_utf_8(encoding: str) -> None:
    """In another encoding the count of values would be of something else than what is read."""
    gateway = Gateway(policy.parse("graph N { node x + eliminate x.name; }"))
    assert gateway.handle('{"nodes": [{"name": "\u2222"}]}'.encode(encoding)).status == 400
    assert gateway.handle('{"nodes": [{"name": "Ünal"}]}'.encode("utf-8-sig")).content == {
        "nodes": [{}],
        "edges": [],
    }


def test_entries_are_not_searched_for_one_another() -> None:
    """A search within one expression runs no line: here processor time is compared. Sixteen times the entries would
    take 256 times as long, if each were searched for."""
    gateway = Gateway(policy.parse("graph N { node x + eliminate x.name; }"))

    def spend(size: int) -> float:
        data, start = BUNDLES["entries"](size, 1), time.thread_time()
        assert gateway.handle(data).status == 200
        return time.thread_time() - start

    assert min(spend(480_000) for _ in range(2)) < 5 * 16 * min(spend(30_000) for _ in range(3))
