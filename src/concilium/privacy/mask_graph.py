"""Who shares a mask with whom: each site with its nearest on a circle, so many that no colluders split the rest.

Claim. What a house and the sites that side with it can compute from everything they are sent, for one question, are
sums over the connected parts that the other, honest sites form in this graph. The graph stays in one part whoever of
its sites are taken away, as long as they are fewer than its degree; the degree is above t. So they get the sum over all
honest sites or nothing, as if every pair shared a mask. The argument:

- An honest site opens one vector for a question in a study, under one label (membership.py, mask_store.py). A stream
  between two honest sites is in what the one opens and, with the other sign, in what the other opens under the same
  label, and nowhere else; it looks uniform to everybody else. A combination of opened vectors in which the two do not
  have the same weight therefore says nothing: also where the other opened nothing, or under another label because it
  was shown other keys. So the weights are equal along every edge between honest sites, hence on every connected part.
- Sites stand on a circle, and each shares a mask with the `degree / 2` next ones on either side. To part two sites, all
  of `degree / 2` sites side by side must be taken away on both ways round: that takes `degree` of them at least.

Nothing here rests on chance. The places follow from a hash of the whole manifest, all identities and t among it; but a
house may compose as many manifests as it likes (another nonce, another purpose), and take the one whose places suit it.
Fewer colluders than the degree gain nothing by that, wherever they stand. From so many on a house that searches can
have them stand around one hospital, and the graph is worse than a complete one: this is why the degree is
2 (t + 1) + log2 n and not t + 1, and why t is what each hospital says it must be. Puppets of the house are not
among the participants: each of these is pinned by every site, neighbour or not (manifest.py).

What a site checks of all others, and why its neighbours are enough: section 0.7 of docs/methods.md, and membership.py.
References: Bell, Bonawitz, Gascon, Lepoint, Raykova 2020, "Secure single-server aggregation with (poly)logarithmic
overhead", CCS (a random graph; here one that needs no luck); Harary 1962 (the connectivity of such circles).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

from concilium.privacy.identity import statement


def choose_degree(sites: int, colluders: int) -> int:
    """With how many others each site shares a mask: 2 (t + 1) + log2 n, rounded up to an even number, or all."""
    degree = 2 * (colluders + 1) + (sites - 1).bit_length()
    return min(degree + degree % 2, sites - 1)


class MaskGraph:
    """`MaskGraph(study_id, {name: identity, ...}, degree)`: the circle of a study's participants."""

    def __init__(self, study_id: bytes, identities: Mapping[str, bytes], degree: int) -> None:
        def hash_place(name: str) -> bytes:
            seated = statement("concilium/place@1", study_id, name.encode(), identities[name])
            return hashlib.sha256(seated).digest()

        self.order = tuple(sorted(identities, key=hash_place))
        self.degree = degree

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each site stands on the circle."""
        return {name: place for place, name in enumerate(self.order)}

    @property
    def is_complete(self) -> bool:
        return self.degree >= len(self.order) - 1

    def neighbours(self, name: str) -> tuple[str, ...]:
        """With whom a site shares masks, in order of names."""
        size, place = len(self.order), self.places[name]
        if self.is_complete:
            return tuple(sorted(other for other in self.order if other != name))
        steps = range(1, self.degree // 2 + 1)
        return tuple(sorted(self.order[(place + way * step) % size] for step in steps for way in (-1, 1)))

    def locate(self, names: Iterable[str]) -> dict[int, str]:
        """The places of these sites on the circle, and who stands there."""
        return {self.places[name]: name for name in names}
