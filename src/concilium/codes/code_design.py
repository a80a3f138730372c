"""What a sharing of codes does, to the last probability, as plain values: what hospitals agree to and what is asked.

A design names the protected codes and why each is (sensitive, hidden for what it says, company in blocks), the size of
blocks, epsilon and how many events count. The mechanism follows from it and the taxonomy alone (block_response.py):
whoever chose it, on whatever auxiliary patients, the claim of the mechanism holds at its epsilon. What nobody can tell
from a design is how much unprotected codes say about sensitive ones; that is for those who agree to judge.

docs/methods.md, section 7.13.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.codes.block_response import BlockResponse, check_size
from concilium.codes.code_tree import CodeTree
from concilium.codes.sharing_parameters import ALPHA, KEPT, MOST_EVENTS, MOST_IN_BLOCKS, SINCE_FIRST
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import RecordsError, StudyError
from concilium.protocol.questions import is_positive

MOST_LENGTHS = 100
MOST_LEVELS = 32  # of a tree: classifications of diseases have seven


class CodeDesign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`taxonomy` is "icd9" or "icd10" at a number of digits, or "tree", which is then given: each node's parent."""

    taxonomy: str
    digits: int
    headings: str
    zeros: str
    tree: dict[str, str]
    sensitive: tuple[str, ...]
    hidden: tuple[str, ...]
    company: tuple[str, ...]
    show_hidden: bool
    block_size: int
    epsilon: str
    max_events: int
    dates: str
    alpha: float = ALPHA
    lengths: tuple[int, ...] = ()

    @property
    def price(self) -> Fraction:
        """What all events of a patient cost together, in pure epsilon."""
        return self.max_events * Fraction(self.epsilon)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Y_P: what a protected code may leave as."""
        shown = self.hidden if self.show_hidden else ()
        return tuple(sorted({*self.sensitive, *shown, *self.company}))

    @property
    def never_shown(self) -> tuple[str, ...]:
        """What is hidden and does not come out."""
        return () if self.show_hidden else tuple(sorted(self.hidden))

    def check(self) -> None:
        """StudyError unless it is one; nothing heavy is made for that."""
        for name, options in CHOICES.items():
            if getattr(self, name) not in options:
                raise StudyError(f"the {name!r} of a design must be one of {', '.join(options)}")
        listed = (*self.sensitive, *self.hidden, *self.company)
        if not self.sensitive:
            raise StudyError("a design names at least one sensitive code")
        if len(set(listed)) != len(listed):
            raise StudyError("a design names each protected code once")
        if not is_positive(self.epsilon):
            raise StudyError("a design says the epsilon of one event, such as '1/2'")
        if not 1 <= self.max_events <= MOST_EVENTS:
            raise StudyError(f"max_events must be a whole number from 1 to {MOST_EVENTS}")
        if not 0 <= self.alpha <= 1:
            raise StudyError("the alpha of a design must be a number from 0 to 1")
        if any(not 1 <= one <= self.max_events for one in self.lengths) or len(self.lengths) > MOST_LENGTHS:
            raise StudyError(
                f"the lengths of a design are at most {MOST_LENGTHS} whole numbers from 1 to max_events"
            )
        check_size(self.block_size, len(self.outputs))
        if (self.block_size > 1 or self.never_shown) and len(listed) > MOST_IN_BLOCKS:
            raise StudyError(
                f"at most {MOST_IN_BLOCKS} codes are protected in blocks; there are {len(listed)}"
            )
        if (self.taxonomy == "tree") != bool(self.tree):
            raise StudyError("a design gives its tree where its taxonomy is 'tree', and none otherwise")


CHOICES = {
    "taxonomy": ("icd9", "icd10", "tree"),
    "headings": ("refuse", "keep"),
    "zeros": ("kept", "lost"),
    "dates": (SINCE_FIRST, KEPT),
}


def describe_taxonomy(taxonomy: Taxonomy) -> dict[str, Any]:
    """What a design says of a taxonomy."""
    known = {"ICD-9-CM": "icd9", "ICD-10-CM": "icd10"}
    name = known.get(taxonomy.name, "tree")
    return {
        "taxonomy": name,
        "digits": taxonomy.digits or 3,
        "headings": taxonomy.headings,
        "zeros": taxonomy.zeros,
        "tree": dict(taxonomy.tree.parent_of) if name == "tree" else {},
    }


def open_design(design: CodeDesign) -> tuple[Taxonomy, BlockResponse]:
    """The taxonomy and the mechanism; StudyError where they cannot be."""
    return _open_again(msgspec.json.encode(design))


def check_design(design: CodeDesign) -> Taxonomy:
    """The taxonomy; StudyError where the design cannot be. It takes no blocks, which take the square of the codes."""
    design.check()
    taxonomy = _open_taxonomy(design)
    listed = (*design.sensitive, *design.hidden, *design.company)
    if unknown := [code for code in listed if code not in taxonomy]:
        raise StudyError(f"{unknown[0]!r} is not a code of {taxonomy!r}, which a design names in full")
    return taxonomy


@lru_cache(maxsize=8)
def _open_again(encoded: bytes) -> tuple[Taxonomy, BlockResponse]:
    design = msgspec.json.decode(encoded, type=CodeDesign)
    taxonomy = check_design(design)
    response = make_response(
        taxonomy,
        design.outputs,
        design.never_shown,
        design.block_size,
        Fraction(design.epsilon),
        design.alpha,
    )
    return taxonomy, response


def _open_taxonomy(design: CodeDesign) -> Taxonomy:
    """The taxonomy of a design; StudyError where there is none."""
    known = Taxonomy.named(design.taxonomy, design.digits, design.zeros, design.headings)
    if known is not None:
        return known
    try:
        tree = CodeTree(design.tree)
        if tree.depth > MOST_LEVELS:
            raise StudyError(
                f"the tree of a design has {MOST_LEVELS} levels at most; this one has {tree.depth}"
            )
        return Taxonomy("tree", tree, {})
    except RecordsError as error:
        raise StudyError(f"the tree of a design is none: {error}") from None


def make_response(
    taxonomy: Taxonomy,
    outputs: tuple[str, ...],
    never: tuple[str, ...],
    block_size: int,
    epsilon: Fraction,
    alpha: float,
) -> BlockResponse:
    """The mechanism over a taxonomy: codes are numbered as in `taxonomy.codes`."""
    chosen, unseen = (
        np.array([taxonomy.number_of[code] for code in codes], dtype=np.int32) for codes in (outputs, never)
    )
    if block_size == 1 and not never:
        return BlockResponse.without_blocks(len(taxonomy.codes), chosen, epsilon)
    distances: NDArray[np.float64] = taxonomy.distances([*outputs, *never], alpha)[:, : len(outputs)]
    return BlockResponse.from_distances(len(taxonomy.codes), chosen, distances, block_size, epsilon, unseen)
