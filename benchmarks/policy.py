"""Constraint graphs: messages a second through the engine, and what a policy adds to a tree's run.

python benchmarks/policy.py [patients]    default 100,000 patients x 50 attributes in 5 sites

Engine, one core: transactions of 10 nodes with 20 attributes each, 10 rules with conditions, edges, patterns and
functions; the same as FHIR bundles, and HL7 v2 messages of ten segments, beside what python-hl7 takes to read and
write them. A tree's run: opening the sites (where the policy is applied) and growing an exact tree of depth 6, with a
policy of 10 rules, and without one on tables that were filtered before, so that both grow the same tree; in pairs in
the same process, and of the pairs' ratios the median.
"""

from __future__ import annotations

import json
import random
import sys
import time
from statistics import median

import hl7
import numpy as np

import concilium as cc
from concilium.console.gateway import Gateway
from concilium.policy.constrain import constrain
from concilium.policy.fhir import decide_bundle
from concilium.policy.hl7v2 import decide_v2
from concilium.records.columns import Coded
from concilium.records.table import Records

RULES = """
graph identity { node u exists u.name, exists u.ssn, exists u.address, exists u.dob; }
graph births { node x + eliminate x.dob; }
graph old { node p + where p.type = 'Patient' and p.age > 89 substitute p.age =~ /decade()/; }
graph zips { node p + where p.type = 'Patient' substitute p.zip =~ /zip3()/; }
graph phones { node p + substitute p.phone =~ /(\\d{3})-\\d{3}-\\d{4}/\\1-xxx-xxxx/; }
graph wards { node v + where v.ward in {'psychiatry', 'addiction'} eliminate v.ward, eliminate v.diagnosis; }
graph notes { node n + where n.type = 'Note' eliminate n; }
graph joined { node p + where p.vip = 'yes' eliminate p.bed; node v + where v.type = 'Visit'; edge (p, v); }
graph codes { node v + where v.type = 'Visit' substitute v.diagnosis =~ /generalise(3)/; }
graph labs { node l + where l.type = 'Lab' and (l.value > 100 or l.value is missing)
             substitute l.value =~ /round(10)/; }
"""
V2_RULES = """
graph identity { node u exists u.PID.19, exists u.PID.5.1, exists u.PID.11.1; }
graph names { node x + eliminate x.PID.5, eliminate x.PID.11.1, substitute x.PID.3.1 =~ /first3()/; }
graph births { node x + substitute x.PID.7 =~ /year()/, substitute x.PID.11.5 =~ /zip3()/; }
graph kin { node x + where x.segment = 'NK1' eliminate x; }
graph wards { node v + where v.PV1.3.1 in {'psychiatry', 'addiction'} eliminate v.PV1.3; }
graph labs { node l + where l.OBX.5 > 100 substitute l.OBX.5 =~ /round(10)/; node o where o.OBR.4.1 = 'GLU';
             edge (l, o); }
"""
KINDS = ["Patient", "Visit", "Visit", "Visit", "Lab", "Lab", "Lab", "Lab", "Note", "Order"]
SECONDS = 2.0


def make_transaction(dice: random.Random) -> dict[str, object]:
    nodes = []
    for index, kind in enumerate(KINDS):
        node: dict[str, object] = {
            "id": f"{kind}-{index}",
            "type": kind,
            "dob": "1950-01-31",
            "age": dice.randrange(100),
            "zip": f"{dice.randrange(10**5):05d}",
            "phone": "617-555-0123",
            "ward": dice.choice(["surgery", "psychiatry", "medicine"]),
            "diagnosis": dice.choice(["E11.65", "I10", "F20.0"]),
            "vip": dice.choice(["yes", "no"]),
            "bed": dice.randrange(500),
            "value": dice.choice([None, 50.5, 120.25]),
        }
        node |= {f"field{number}": dice.choice(["a", 1, 2.5, True]) for number in range(20 - len(node))}
        nodes.append(node)
    edges = [["Patient-0", f"{kind}-{index}"] for index, kind in enumerate(KINDS) if kind == "Visit"]
    return {"nodes": nodes, "edges": edges}


def make_bundle(transaction: dict[str, object]) -> dict[str, object]:
    entries = []
    for node in transaction["nodes"]:
        body = {key: value for key, value in node.items() if key not in ("type", "id") and value is not None}
        body |= {"resourceType": node["type"], "id": node["id"]}
        if node["type"] == "Visit":
            body["subject"] = {"reference": "Patient/Patient-0"}
        entries.append({"resource": body})
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}


def make_v2(dice: random.Random) -> bytes:
    ward = dice.choice(["surgery", "psychiatry", "medicine"])
    segments = [
        r"MSH|^~\&|LAB|NORTH|EHR|SOUTH|20200228101500||ORU^R01^ORU_R01|MSG7|P|2.5.1",
        f"PID|1||{dice.randrange(10**6)}^^^NORTH^MR||ROE^ANN^M||19500131|F|||1 Elm St^^Boston^MA^02139||617-555-0123",
        "NK1|1|ROE^BOB|HUS",
        f"PV1|1|I|{ward}^{dice.randrange(30)}^1",
        "ORC|RE|o1",
        "OBR|1|o1||GLU^glucose^L|||20200228",
    ]
    segments += [
        f"OBX|{number}|NM|GLU^glucose^L||{dice.randrange(200)}|mg/dl|70-110||||F|||20200228"
        for number in range(1, 5)
    ]
    return "\r".join(segments).encode() + b"\r"


def per_second(work, messages) -> float:
    for message in messages:
        work(message)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for message in messages:
            work(message)
        done += len(messages)
    return done / (time.perf_counter() - start)


def measure_engine() -> None:
    dice = random.Random(1)
    transactions = [make_transaction(dice) for _ in range(200)]
    bundles = [make_bundle(transaction) for transaction in transactions]
    rules = cc.policy.parse(RULES)
    fhir_rules = cc.policy.parse(RULES.replace(".type =", ".resourceType ="))
    refused = sum(rules.apply(transaction) is None for transaction in transactions)
    print(f"engine, one core: 10 nodes x 20 attributes, 10 rules ({refused} of {len(transactions)} refused)")
    graphs = per_second(rules.decide, transactions)
    print(f"  graphs                      {graphs:8,.0f} a second   (target: 5,000)")
    posted = [json.dumps(transaction).encode() for transaction in transactions]
    gateway = Gateway(rules)
    whole = per_second(lambda body: json.dumps(gateway.handle(body).content), posted)
    print(f"  graphs, from and to JSON    {whole:8,.0f} a second")
    print(
        f"  FHIR bundles                {per_second(lambda b: decide_bundle(fhir_rules, b), bundles):8,.0f} a second"
    )
    messages = [make_v2(dice) for _ in range(200)]
    v2_rules = cc.policy.parse(V2_RULES)
    filtered = per_second(lambda data: decide_v2(v2_rules, data), messages)
    alone = per_second(lambda data: str(hl7.parse(data)), messages)
    print(
        f"  HL7 v2 messages             {filtered:8,.0f} a second   (python-hl7, read and written alone: {alone:,.0f})"
    )


POLICY = """
graph consent { node x where x.consent = 'no' exists x; }
graph a { node x + eliminate x.x00; }
graph b { node x + where x.ward = 'psychiatry' eliminate x.x01, eliminate x.x02; }
graph c { node x + where x.age > 89 or x.age is missing eliminate x.x03; }
graph d { node x + substitute x.zip =~ /zip3()/; }
graph e { node x + substitute x.age =~ /round(5)/; }
graph f { node x + substitute x.diagnosis =~ /generalise(3)/; }
graph g { node x + where x.ward = 'surgery' and x.age between 18 and 40 substitute x.x04 =~ /y/n/; }
graph h { node x + where x.x05 = 'y' eliminate x.x06; node y + where y.x07 = 'y' eliminate y.x08; }
graph i { node x [psychiatry] where x.x09 = 'y' eliminate x.x10; }
"""
SITES, ATTRIBUTES, DEPTH, REPEATS = 5, 50, 6, 15


def make_tables(patients: int) -> list[Records]:
    draw = np.random.default_rng(2)

    def codes(values: tuple[str, ...], count: int, shares: list[float] | None = None) -> Coded:
        return Coded(draw.choice(len(values), count, p=shares).astype(np.uint32) + 1, values)

    tables = []
    zips = tuple(f"{number:05d}" for number in range(10_000, 12_000))
    diagnoses = tuple(
        sorted(
            f"{letter}{number:02d}.{digit}" for letter in "EIF" for number in range(40) for digit in range(9)
        )
    )
    for _ in range(SITES):
        here = patients // SITES
        columns: dict[str, object] = {
            f"x{index:02d}": codes(("n", "y"), here) for index in range(ATTRIBUTES - 5)
        }
        columns |= {
            "age": Coded(draw.integers(1, 100, here), tuple(range(18, 117))),
            "zip": codes(zips, here),
            "ward": codes(("medicine", "psychiatry", "surgery"), here),
            "diagnosis": codes(diagnoses, here),
            "consent": codes(("no", "yes"), here, [0.02, 0.98]),
        }
        score = sum(columns[f"x{index:02d}"].codes.astype(float) for index in range(20)) + draw.normal(
            0, 2, here
        )
        columns["outcome"] = Coded((score > np.median(score)).astype(np.uint8) + 1, ("bad", "good"))
        tables.append(Records(columns))
    return tables


def run_tree(tables: list[Records], policy: cc.Policy) -> tuple[float, float]:
    """Seconds to open the sites, and to grow the tree."""
    start = time.perf_counter()
    sites = [cc.Site(f"s{index}", table, policy=policy) for index, table in enumerate(tables)]
    opened = time.perf_counter()
    cc.DecisionTree("outcome", growth="id3", bins={"age": [40.0, 60.0, 80.0]}, max_depth=DEPTH).fit(
        cc.House(sites)
    )
    return opened - start, time.perf_counter() - opened


def measure_records(patients: int) -> None:
    tables = make_tables(patients)
    policy = cc.Policy(constraints=POLICY)
    filtered = [Records(constrain(table, cc.policy.parse(POLICY)).columns) for table in tables]
    for table in (*tables, *filtered):
        _ = table.digest  # a site needs it anyway, and it is remembered
    taken: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    run_tree(tables, policy)
    for turn in range(REPEATS):
        pair = [("without", filtered, cc.Policy()), ("with", tables, policy)]
        for name, given, rules in pair[:: 1 if turn % 2 else -1]:
            taken[name].append(run_tree(given, rules))
    size = f"{patients:,} patients x {ATTRIBUTES} attributes in {SITES} sites, depth {DEPTH}"
    print(f"a tree's run: {size}, medians of {REPEATS} pairs")
    for name, times in taken.items():
        opening, growing = (median(column) for column in zip(*times, strict=True))
        print(f"  {name:<8} a policy: sites {opening:6.3f} s, tree {growing:6.3f} s")
    # Of each pair, run one right after the other: what else the machine does is then much the same for both.
    ratios = sorted(
        sum(ours) / sum(plain) for ours, plain in zip(taken["with"], taken["without"], strict=True)
    )
    print(f"  ratio {median(ratios):.3f}   ({ratios[0]:.3f} to {ratios[-1]:.3f}; target: below 1.10)")


if __name__ == "__main__":
    measure_engine()
    measure_records(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
