"""`noised`: a site's own numbers with noise that the site itself adds, whole: no other site need be trusted.

Who is protected: every patient of the site, from everybody who sees what leaves it, the house and all other sites
included, at the pure epsilon that is charged: the site adds discrete Laplace noise of scale L / epsilon to each number
(privacy/mechanisms.py), where it works out L, the most that one patient can change in L1, from the question alone. As
under `private` no patient decides whether there is an answer to the question: no least number of patients, each cell
read by itself. The price of trusting nobody is paid in noise: over M sites the sum has M times the variance that
`private` adds once. A region that adds up what its hospitals answer sees what a house would see, and no more.

No study is released as this; it is how a study whose house sees each site's numbers (`exact`) asks what has a price.
What else such a study asks, and whether a site takes part in it, is exact, and has no bound.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concilium.errors import MessageError
from concilium.privacy.mechanisms import add_laplace
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Laplace, Noise, Statistic, Summed
from concilium.protocol.releases.release import Release
from concilium.protocol.site_context import SiteContext, price_epsilon
from concilium.protocol.sums import Sum, write_sum


class Noised(Release):
    name: ClassVar[str] = "noised"
    meaning: ClassVar[str] = (
        "noised: the house saw each site's numbers with noise that the site itself added. Whether any one patient is "
        "in the data changes what it saw only as much as the cost below says, whoever sides with whom."
    )
    by_site: ClassVar[bool] = True
    comparable: ClassVar[bool] = True
    begins_anew: ClassVar[bool] = True
    added_below: ClassVar[bool] = True
    noise: ClassVar[tuple[type[Noise], ...]] = (Laplace,)

    def answer(self, context: SiteContext, envelope: Envelope, question: Statistic) -> bytes:
        if not isinstance(question, Summed) or not isinstance(question.noise, Laplace):
            raise MessageError(f"a question of kind {question.kind!r} cannot be released as 'noised'")
        price = question.noise.price
        context.check_room(price_epsilon(price))
        cohort = question.select(context.view.each_by_itself).telling_all()
        words = question.compute(cohort).astype(np.int64)

        def let_out() -> Sum:
            # Drawn inside the transaction that charges for it: a repeated question gets the stored answer.
            noisy = add_laplace(words, price, question.l1)
            return write_sum(noisy, question.binary_places)

        return context.charge(envelope, question.numbers, price_epsilon(price), let_out)
