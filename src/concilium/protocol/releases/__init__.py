"""How answers leave a hospital: each release owns both halves, what the site does and what the house does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from concilium.errors import MessageError, nearest
from concilium.registry import RELEASES, load

if TYPE_CHECKING:
    from concilium.protocol.releases.release import Release


@cache
def _open(name: str) -> Release:
    release: Release = load(RELEASES[name].place)()
    return release


def find_release(name: str) -> Release:
    """The release of this name; MessageError where there is none."""
    if name not in RELEASES:
        raise MessageError(f"nothing is released as {name[:60]!r}{nearest(name[:60], RELEASES)}")
    return _open(name)
