"""What is read of a FHIR resource, held against FHIR R4 (`fhir.resources`) before anything is made of it.

Only elements that are read are validated: a fault elsewhere changes no answer. Nothing of a resource is quoted in an
error: only where it is, and which element.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from concilium.errors import MissingExtra, ModelError
from concilium.records.fhir_patient import TYPES

REQUIRED = frozenset({"resourceType", "intent"})
"""What FHIR wants of a resource that is read, and is not read itself."""


def require_validation() -> None:
    """MissingExtra where FHIR resources cannot be validated."""
    try:
        import fhir.resources  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingExtra("cds", "validating FHIR resources") from None


@cache
def _find_form(kind: str) -> tuple[Any, frozenset[str]]:
    """The form of a resource in FHIR, and the elements that are read. R4B is R4 in these resources."""
    from fhir.resources.R4B import get_fhir_model_class

    return get_fhir_model_class(kind), REQUIRED | {*TYPES[kind].__struct_encode_fields__}


def validate(resource: Mapping[str, Any], where: str) -> None:
    """ModelError where an element that is read is not as FHIR R4 has it."""
    from pydantic import ValidationError

    kind = resource.get("resourceType")
    if not isinstance(kind, str) or kind not in TYPES:
        return
    form, read = _find_form(kind)
    try:
        form.model_validate({name: value for name, value in resource.items() if name in read})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ModelError(f"{where}: {kind}{'.' if place else ''}{place} is not as FHIR R4 has it") from None
    except RecursionError:
        raise ModelError(f"{where}: {kind} is nested too deeply") from None
