"""When a site may take its self-mask off: one question is opened once, for one set of participants.

Who is protected: each site, from a house that has the same question answered twice or by other participants
and compares the sums (two sums that differ by one site differ by its whole answer; two private sums of one
question carry two draws of noise for one charge). At what price: a site keeps its masked vector and seed on
disk until the study ends, and a question whose participants have changed their keys waits for a new study; an
answer that was never opened costs nothing and tells nothing, since its self-mask stays on. Assumption: what
the site stored is not rolled back (the ledger's head, echoed by the house, is what notices that). Reference:
Bonawitz et al. 2017, CCS, section 6 (the self-mask, and consistent answers against an active server).
"""

from __future__ import annotations

from concilium.errors import MaskError
from concilium.privacy.mask_store import MaskedAnswer, SqliteMaskStore


def find_answer(store: SqliteMaskStore, study: bytes, content: bytes, label: bytes) -> MaskedAnswer | None:
    """The stored answer to this question in this study; None where there is none yet; MaskError where it was
    answered under another label."""
    answer = store.find(study, content)
    if answer is not None and answer.label != label:
        raise MaskError(
            "this question was answered for other participants or other keys of theirs "
            f"({', '.join(answer.names)}), and is answered once in a study; start a new one"
        )
    return answer


def check_participants(
    store: SqliteMaskStore, content: bytes, participants: bytes, names: tuple[str, ...]
) -> None:
    """MaskError if the question was ever opened here for other participants, in whatever study."""
    for opening in store.openings(content):
        if opening.participants != participants:
            difference = sorted(set(opening.names).symmetric_difference(names))
            whose = " and ".join(difference) if difference else "a site with a new identity"
            raise MaskError(
                f"this question was opened here for {', '.join(opening.names)} and is not opened for "
                f"{', '.join(names)}: the two sums would differ by the answer of {whose}"
            )


def open_answer(store: SqliteMaskStore, answer: MaskedAnswer, transcript: bytes) -> bytes:
    """The seed of an answer, now opened for this transcript; MaskError if it was for another."""
    if answer.opened is None:
        store.mark_opened(answer.study, answer.content, transcript)
    elif answer.opened != transcript:
        raise MaskError(
            "this question was opened for other answers than those shown now; the first opening stands"
        )
    return answer.seed
