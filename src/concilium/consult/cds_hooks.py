"""CDS Hooks 2.0: a model as services that an EHR calls while a clinician works (cds-hooks.hl7.org/2.0).

A service says which FHIR resources it needs (`prefetch`), by the codes of the model's dictionary, and decides from what
the call brings, and from nothing else: it asks no server. `patient-view` answers about the patient; `order-select`
answers where a selected order is a medication that the model asks about, with the order and without it.

*Protects:* the patient, from being told apart by what stays: nothing of a call is kept, and no error quotes a value.
*Assumes:* TLS, or a proxy that has it, between the EHR and the service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta

from concilium.consult.fhir_validation import validate
from concilium.consult.fhir_values import as_model_takes, is_found, list_inputs
from concilium.errors import ConciliumError, ModelError
from concilium.models.explanation import Explanation, say_risk, say_risk_interval
from concilium.models.method import Method
from concilium.models.prediction import Entries
from concilium.privacy.randomness import draw_bytes
from concilium.records.columns import label
from concilium.records.dictionary import say_value
from concilium.records.fhir_patient import (
    MOST_RESOURCES,
    BundledPatient,
    find_element,
    has_more,
    list_codes,
    list_resources,
    read_resources,
)
from concilium.records.fhir_resources import OF_DRUGS, SYSTEMS, Drug

PATIENT_VIEW, ORDER_SELECT = "patient-view", "order-select"
MOST_SUMMARY = 139
MOST_FEEDBACK = 100
MOST_SEARCHED = 50  # codes in one search; of more, the search is for all
OF_OBSERVATIONS = {SYSTEMS["loinc"]}
OF_CONDITIONS = {SYSTEMS[name] for name in ("icd10", "icd10cm", "icd10gm", "icd9", "icd9cm")}
KNOWN_STATES = "final,amended,corrected,preliminary"
REASON_SYSTEM = "urn:concilium:cds:override-reason"
OVERRIDE_REASONS = {
    "known": "I knew this already",
    "does-not-apply": "The model does not apply to this patient",
    "wrong-data": "The data it was given are wrong or too old",
    "acted-on": "This was acted on already",
    "disagree": "I come to another conclusion",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&])")

Text = Annotated[str, Meta(max_length=1024)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]


class CdsError(ConciliumError):
    """A call that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


class HookContext(msgspec.Struct, frozen=True, rename="camel"):
    """Where the clinician is."""

    patient_id: Word
    user_id: Text = ""
    encounter_id: Text = ""
    selections: Annotated[list[Text], Meta(max_length=1000)] = []
    draft_orders: dict[str, Any] = {}


class HookCall(msgspec.Struct, frozen=True, rename="camel"):
    """A call of a service. Other fields, such as the EHR's own address and token, are not read."""

    hook: Word
    hook_instance: Word
    context: HookContext
    prefetch: dict[str, dict[str, Any] | None] = {}


class ReasonCode(msgspec.Struct, frozen=True):
    code: Text = ""
    system: Text = ""


class OverrideReason(msgspec.Struct, frozen=True, rename="camel"):
    """Why a card was dismissed. A comment may be about the patient, and is not read."""

    reason: ReasonCode = ReasonCode()


class CardFeedback(msgspec.Struct, frozen=True, rename="camel"):
    """What became of a card."""

    card: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")]
    outcome: Literal["accepted", "overridden"]
    outcome_timestamp: Word
    override_reason: OverrideReason | None = None

    @property
    def said(self) -> str:
        """It in words without a value of a patient: a reason that is none of ours is not repeated."""
        reason = self.override_reason.reason if self.override_reason is not None else None
        if reason is None or not reason.code:
            return self.outcome
        ours = reason.system == REASON_SYSTEM and reason.code in OVERRIDE_REASONS
        return f"{self.outcome}: {reason.code if ours else 'another reason'}"


class Feedback(msgspec.Struct, frozen=True):
    feedback: Annotated[list[CardFeedback], Meta(min_length=1, max_length=MOST_FEEDBACK)]


@dataclass(frozen=True)
class CdsService:
    """A model under one hook. `entries`: the mapping; `console`: the address of the model's page; `oldest`: how many
    days observations and medications count; `flagged_only`: no card for who is not flagged."""

    name: str
    hook: str
    method: Method[Any]
    entries: Entries
    console: str = ""
    oldest: int = 365
    flagged_only: bool = False

    @property
    def id(self) -> str:
        return self.name if self.hook == PATIENT_VIEW else f"{self.name}-{ORDER_SELECT}"

    @cached_property
    def inputs(self) -> list[str]:
        return list_inputs(self.method)

    @property
    def asks_for_drugs(self) -> bool:
        """Whether an order can change its answer."""
        return any({*list_codes(self.entries.get(name))} & OF_DRUGS for name in self.inputs)

    @cached_property
    def _kinds(self) -> dict[str, tuple[set[str], list[str]]]:
        """For each input the kinds of resources that may say it, and its codes as a search has them. What is there or
        absent is a condition."""
        found = {}
        for name in self.inputs:
            entry = self.entries.get(name)
            kinds, searched = set(), []
            for system, codes in list_codes(entry).items():
                searched += [f"{system}|{code}" for code in sorted(codes)]
                if system in OF_DRUGS:
                    kinds.add("MedicationRequest")
                elif system in OF_OBSERVATIONS or (entry is not None and entry.type == "number"):
                    kinds.add("Observation")
                elif system in OF_CONDITIONS or (entry is not None and entry.absent):
                    kinds.add("Condition")
                else:
                    kinds |= {"Condition", "Observation"}
            found[name] = kinds, searched
        return found

    @cached_property
    def prefetch(self) -> dict[str, str]:
        """The prefetch templates: the patient; each input's latest observation; conditions and medications together.
        These are not cut to codes where nothing found has a meaning (`absent`), since only the whole list tells a
        patient without the condition from one whose record has other codes; nor where those of ICD are meant with all
        below them."""
        patient = "patient={{context.patientId}}"
        templates = {"patient": "Patient/{{context.patientId}}"}
        for name, (kinds, codes) in self._kinds.items():
            if "Observation" in kinds and find_element(name, self.entries.get(name)) == "":
                query = f"{patient}&code={_write_codes(codes)}&status={KNOWN_STATES}&_sort=-date&_count=1"
                templates[self.keys[name]] = f"Observation?{query}"
        for kind, key in (("Condition", "conditions"), ("MedicationRequest", "medications")):
            asked = [name for name, (kinds, _) in self._kinds.items() if kind in kinds]
            codes = [code for name in asked for code in self._kinds[name][1]]
            whole = (
                len(codes) > MOST_SEARCHED
                or any(self.entries[name].absent for name in asked)
                or any(code.rpartition("|")[0] in OF_CONDITIONS for code in codes)
            )
            if asked:
                templates[key] = f"{kind}?{patient}" + ("" if whole else f"&code={_write_codes(codes)}")
        return templates

    @cached_property
    def keys(self) -> dict[str, str]:
        """The key of the prefetch of each input's observation."""
        taken, keys = {"patient", "conditions", "medications"}, {}
        for name in self.inputs:
            key = plain = make_slug(name) or "input"
            while key in taken:
                key = f"{plain}-{len(taken)}"
            taken.add(key)
            keys[name] = key
        return keys

    @property
    def discovery(self) -> dict[str, Any]:
        """What the EHR reads of the service."""
        method = self.method
        about = f" Of patients with {method.query}." if method.query else ""
        hospitals = ", ".join(site.name for site in method.card.sites)
        unmapped = [name for name in self.inputs if not is_found(name, self.entries)]
        missing = f" Never asked for, since it has no codes: {', '.join(unmapped)}." if unmapped else ""
        return {
            "hook": self.hook,
            "title": f"Risk of {self._said_target}" if self._positive is not None else self._said_target,
            "description": f"{method.description}, learned at {hospitals}.{about}{missing}",
            "id": self.id,
            "prefetch": self.prefetch,
        }

    @property
    def _positive(self) -> Any:
        """The class that a risk is told of; None where there are not two."""
        decided, classes = self.method.decided, self.method.classes_
        if decided is not None:
            return decided.positive
        return classes[1] if len(classes) == 2 else None

    @property
    def _said_target(self) -> str:
        method, positive = self.method, self._positive
        entry = self.entries.get(method.target)
        named = entry.label if entry is not None and entry.label else method.target
        return named if positive is None else f"{named} = {say_value(positive, entry)}"

    def answer(self, call: HookCall, day: date) -> dict[str, Any]:
        """The cards for a call; CdsError where it cannot be answered."""
        if call.hook != self.hook:
            raise CdsError(400, f"this service is for the hook {self.hook}, and the call is of another")
        resources = self._read_prefetch(call)
        patient = next((one for one in resources if type(one).__name__ == "Patient"), None)
        if patient is None:
            raise CdsError(412, "the prefetch has no Patient: send what the discovery asks for")
        if patient.id and patient.id != call.context.patient_id.removeprefix("Patient/"):
            raise CdsError(400, "the prefetched Patient is another one than context.patientId names")
        read = self._read(resources, call, day, ())
        if self.hook == PATIENT_VIEW:
            return {"cards": self._make_cards(read, None)}
        orders = _read_orders(call.context)
        ordered = self._read(resources, call, day, orders)
        if "selected order" not in ordered.used.values():
            return {"cards": []}
        return {"cards": self._make_cards(ordered, read)}

    def _read_prefetch(self, call: HookCall) -> list[Any]:
        resources: list[Any] = []
        for key, document in call.prefetch.items():
            if document is None:
                continue
            where = f"prefetch.{key}" if key in self.prefetch else "a prefetch that was not asked for"
            resources += _read_valid(document, where)
            if len(resources) > MOST_RESOURCES:
                raise CdsError(413, f"a call has at most {MOST_RESOURCES:,} resources")
        return resources

    def _read(
        self, resources: Sequence[Any], call: HookCall, day: date, orders: Sequence[Drug]
    ) -> BundledPatient:
        """What the call says of the inputs."""
        given = {key for key, document in call.prefetch.items() if _is_search(document)}
        searched = [
            name
            for name, (kinds, _) in self._kinds.items()
            if kinds
            and all(
                {"Observation": self.keys[name], "Condition": "conditions"}.get(kind, "medications") in given
                for kind in kinds
            )
        ]
        try:
            found = read_resources(
                resources, self.inputs, self.entries, day, self.oldest, ordered=orders, searched=searched
            )
        except ModelError as error:
            raise CdsError(400, str(error).replace("the bundle", "the prefetch")) from None
        return as_model_takes(found, self.entries)

    def _make_cards(self, read: BundledPatient, without: BundledPatient | None) -> list[dict[str, Any]]:
        said = self.method.explain(dict(read.values))
        if any(" fails: " in one for one in said.outside):
            return []
        positive = self._positive
        flagged = positive is not None and label(said.prediction) == label(positive)
        if self.flagged_only and not flagged:
            return []
        if said.outside:
            summary = (
                f"{self._said_target}: no answer, since the record lacks what tells whom the model is about"
            )
        elif not read.values:
            summary = (
                f"{self._said_target}: no answer, since the record has nothing that the model asks about"
            )
        else:
            summary = self._summarize(said)
        detail = [] if not read.values else [*said.sentences]
        if without is not None and read.values:
            before = self.method.explain(dict(without.values))
            detail.insert(0, f"Without the selected order: {self._summarize(before)}.")
        card: dict[str, Any] = {
            "uuid": str(UUID(bytes=draw_bytes(16), version=4)),
            "summary": summary if len(summary) <= MOST_SUMMARY else f"{summary[: MOST_SUMMARY - 1]}…",
            "detail": self._write_detail([*detail, *_say_read(read)]),
            "indicator": "warning" if flagged else "info",
            "source": self._source,
            "overrideReasons": [
                {"code": code, "system": REASON_SYSTEM, "display": display}
                for code, display in OVERRIDE_REASONS.items()
            ],
        }
        if self.console:
            card["links"] = [{"label": "How the model decides", "url": self.console, "type": "absolute"}]
        return [card]

    def _write_detail(self, sentences: Sequence[str]) -> str:
        """Sentences as a list in markdown, reasons one step in. An attribute whose name is no word goes by its label,
        and the sentence that says what it is called is left out."""
        entries = {
            name: one
            for name, one in self.entries.items()
            if one.label and (not name.isalpha() or one.label.casefold() == name.casefold())
        }
        labels = {name: one.label for name, one in entries.items()}
        named = re.compile("|".join(rf"(?<!\w){re.escape(one)}(?!\w)" for one in labels) or "(?!)")
        meanings = {f"{name}: {one.label}.": "" for name, one in entries.items()}
        meanings |= {
            f"{name}: {one.label}, {one.unit}.": f"{one.label}: {one.unit}." for name, one in entries.items()
        }
        lines = []
        for one in sentences:
            said = meanings.get(one, named.sub(lambda found: labels[found[0]], one.removeprefix("- ")))
            if said:
                lines.append(f"{'  - ' if one.startswith('- ') else '- '}{_escape(said)}")
        return "\n".join(lines)

    @property
    def _source(self) -> dict[str, str]:
        card = self.method.card
        made = f", {card.date}" if card.date else ""
        return {
            "label": f"Concilium: {self.name} ({len(card.sites)} hospitals{made}); research, no medical device"
        }

    def _summarize(self, said: Explanation) -> str:
        """The risk of the positive class, with its interval."""
        positive, risk = self._positive, said.probability
        if positive is None or risk is None or said.prediction is None:
            return said.sentences[0].rstrip(".")
        interval = said.interval
        if label(said.prediction) != label(positive):
            risk = 1 - risk
            interval = None if interval is None else (1 - interval[1], 1 - interval[0])
        between = "" if interval is None else f" ({say_risk_interval(interval)})"
        return f"{self._said_target}: {say_risk(risk)}{between}"


def make_services(
    models: Mapping[str, tuple[Method[Any], Entries]],
    *,
    console: str = "",
    keys: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, CdsService]:
    """The services of models by their ids: under `order-select` those that ask about medications. `keys`: what the
    console calls each model, where that is not its name."""
    services = {}
    for name, (method, entries) in models.items():
        page = f"{console.rstrip('/')}/models/{quote((keys or {}).get(name, name))}" if console else ""
        for hook in (PATIENT_VIEW, ORDER_SELECT):
            one = CdsService(name, hook, method, entries, page, **more)
            if hook == PATIENT_VIEW or one.asks_for_drugs:
                services[one.id] = one
    return services


def make_slug(text: str) -> str:
    """A name as addresses have it."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:60]


def _write_codes(codes: Sequence[str]) -> str:
    """Codes as a search has them; FHIR parts them with commas, and addresses take no other signs as they are."""
    return ",".join(quote(code, safe=":/|.") for code in sorted({*codes}))


def _is_search(document: Mapping[str, Any] | None) -> bool:
    """Whether this is all that a search found, be it nothing: no error, and no page with others to come."""
    return document is not None and document.get("resourceType") == "Bundle" and not has_more(document)


def _read_valid(document: Mapping[str, Any], where: str) -> list[Any]:
    """The resources of a document of a call, each as FHIR has it."""
    try:
        entries = (
            document.get("entry", [])
            if document.get("resourceType") == "Bundle"
            else [{"resource": document}]
        )
        if isinstance(entries, list):
            if len(entries) > MOST_RESOURCES:
                raise CdsError(413, f"a call has at most {MOST_RESOURCES:,} resources")
            for place, entry in enumerate(entries):
                if isinstance(entry, dict) and isinstance(entry.get("resource"), dict):
                    validate(entry["resource"], f"{where}, entry {place}" if len(entries) > 1 else where)
        return list_resources(document, where)
    except ModelError as error:
        raise CdsError(400, str(error)) from None


def _read_orders(context: HookContext) -> list[Drug]:
    """The selected orders that are medications."""
    entries = context.draft_orders.get("entry", [])
    chosen = {*context.selections}
    orders: list[Drug] = []
    for entry in entries if isinstance(entries, list) else []:
        resource = entry.get("resource") if isinstance(entry, dict) else None
        if isinstance(resource, dict):
            name = f"{resource.get('resourceType')}/{resource.get('id')}"
            if name in chosen:
                found = _read_valid(resource, "context.draftOrders")
                orders += [one for one in found if isinstance(one, Drug)]
    return orders


def _say_read(read: BundledPatient) -> list[str]:
    """What was read, too old, unreadable and missing, in words."""
    return [
        one.replace("from the bundle", "from the record").replace("in the bundle", "in the record")
        for one in read.say()
    ]


def _escape(text: str) -> str:
    """Text as markdown that shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
