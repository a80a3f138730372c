"""Which segment of an HL7 v2 message belongs to which: messages tell it by their order alone.

The groups of the message structures (HL7 v2.5.1, chapters 3, 4 and 7) as far as an order of segments tells them: a
segment belongs to the latest one that it can belong to of the same patient, or else to the patient (PID), or else to
the header (MSH). What is taken out takes along what belongs to it, which would otherwise be read as another's.
"""

from __future__ import annotations

from collections.abc import Sequence

_ORDERS = ("OBR", "RXO", "RXE", "RXD", "RXG", "RXA", "ODS", "FT1")
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "PID": (),
    "PV2": ("PV1",),
    "IN2": ("IN1",),
    "IN3": ("IN1",),
    "OBX": _ORDERS,
    "RXR": _ORDERS,
    "RXC": _ORDERS,
    "SPM": ("OBR",),
    "SAC": ("SPM",),
    "TQ1": (*_ORDERS, "ORC"),
    "TQ2": ("TQ1",),
    "CTD": _ORDERS,
    "CTI": _ORDERS,
    **{name: ("ORC",) for name in _ORDERS if name != "FT1"},
    **dict.fromkeys(("AIS", "AIG", "AIL", "AIP"), ("RGS",)),
}


def find_parents(names: Sequence[str]) -> list[int | None]:
    """For each segment the one that it belongs to, by position; the first, MSH, belongs to none."""
    parents: list[int | None] = []
    patient, noted, latest = 0, 0, {"MSH": 0}
    for position, name in enumerate(names):
        if position == 0:
            parents.append(None)
            continue
        if name == "NTE":
            about = noted
        elif name == "PID":
            about, patient, latest = 0, position, {}
        else:
            places = [latest[other] for other in _BELONGS_TO.get(name, ()) if other in latest]
            about = max(places, default=patient)
            if name in _ORDERS and any(latest.get(other, -1) > about for other in _ORDERS):
                about = patient  # an order of its own: the one before has been filled
        parents.append(about)
        latest[name] = position
        noted = noted if name == "NTE" else position
    return parents


def find_patients(names: Sequence[str]) -> list[int | None]:
    """For each segment the PID of the patient it is about; those before a message's only PID are about it too."""
    patient = names.index("PID") if list(names).count("PID") == 1 else None
    patients: list[int | None] = []
    for position, name in enumerate(names):
        patient = position if name == "PID" else patient
        patients.append(patient)
    return patients
