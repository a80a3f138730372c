"""`private`: sums over all sites with noise that the sites add in shares, under the masks of `masked`.

Who is protected: every patient of every site, from the house and up to t colluding sites (as many as the manifest
tolerates), at the price that is charged: rho = D^2 / (2 sigma^2) and a trifle for shares (privacy/shares.py), where the
site itself works out D, the most that one patient can change, from the question and the terms alone; or pure epsilon
where a question asks for Laplace noise. The charge is made before the covered answer leaves; what cannot be paid is not
computed. No patient decides whether there is an answer: there is no floor, no least number of patients, and each cell
is read by itself, whatever the others hold (records/query.py).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.privacy.manifest import Manifest
from concilium.privacy.shares import draw_gaussian_share, draw_laplace_share, price_gaussian_shares
from concilium.protocol.cohort import Cohort
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Gathered, Gaussian, Laplace, Noise, Statistic, Summed
from concilium.protocol.releases.masked import Masked
from concilium.protocol.site_context import Cost, SiteContext, price_epsilon

# A number under Laplace noise is further away than this many standard deviations once in e^70, under Gaussian noise
# once in e^1250.
NOISE_DEVIATIONS = 50


class Private(Masked):
    name: ClassVar[str] = "private"
    meaning: ClassVar[str] = (
        "private: the house saw sums over all sites with noise that the sites added in shares. Whether any one "
        "patient is in the data changes what it saw only as much as the cost below says, as long as no more sites "
        "collude than the manifest tolerates."
    )
    comparable: ClassVar[bool] = True  # noise covers the difference of two sums, and both are charged
    noise: ClassVar[tuple[type[Noise], ...]] = (Gaussian, Laplace)

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        if isinstance(question, Gathered) and not question.of_patients:
            context.memberships.check(context.studies.at(envelope.study).manifest)
            reply = question.compute(question.see(context.view.each_by_itself).select("", ""))
            return context.charge(envelope, 0, Cost(Fraction(0), Fraction(0), "rho"), lambda: reply)
        if not isinstance(question, Summed):
            raise MessageError(f"a question of kind {question.kind!r} cannot be released as 'private'")
        return super().answer(context, envelope, question)

    def select(self, context: SiteContext, question: Summed, encounters: int = 1) -> Cohort:
        return question.select(context.view.read_alone(encounters)).telling_all()

    def price(self, context: SiteContext, study: str, question: Summed) -> Cost:
        """From the question, the terms and the manifest alone. Statistics say what one row can change; a patient has as
        many as the terms say (group privacy)."""
        encounters = context.studies.at(study).encounters
        if isinstance(question.noise, Laplace):
            return price_epsilon(encounters * question.noise.price)
        manifest, sensitivity = context.memberships.at(study).manifest, question.sensitivity
        assert sensitivity is not None  # `check_sum`
        rho = price_gaussian_shares(
            encounters**2 * sensitivity.squared,
            question.variance,
            question.numbers,
            len(manifest.participants),
            manifest.colluders,
        )
        return Cost(rho, rho, "rho")

    def protect(self, question: Summed, words: NDArray[np.int64], manifest: Manifest) -> NDArray[np.int64]:
        """With this site's share of the noise, drawn once: a repeated question gets the stored vector.

        The numbers are held to their public bound first, which moves no patient's part further. The noise is never
        clipped: a share that is cut at one site would be missing from the sum. It is added in the ring, so that what
        might wrap round (once in e^50, `bound`) wraps in the sum, whatever the patients are.
        """
        circle = len(manifest.participants), manifest.colluders
        if isinstance(question.noise, Laplace):
            noise = draw_laplace_share(words.size, question.noise.price, question.l1, *circle)
        else:
            noise = draw_gaussian_share(words.size, question.variance, *circle)
        noised: NDArray[np.int64] = np.clip(words, -question.largest, question.largest) + noise
        return noised

    def bound(self, question: Summed) -> int:
        """With noise of NOISE_DEVIATIONS, beyond which it is once in e^50."""
        return question.largest + NOISE_DEVIATIONS * (math.isqrt(math.ceil(question.variance)) + 1)
