"""p(token | h): the distribution of one token given the backbone's output h for it.

The paper's kernels factorize Y over tokens (Eqs. 13, 16 and 18): a large backbone f reads the state and gives a vector
h for each token, and a small model p(. | h) of a single token B does the rest. DTM, ARTM, FHTM and MAR differ in what
the backbone sees, and share this model. It is a pair of functions,

    loss(b, h)     what to minimize, for tokens b of the data
    forward(noise, h)   B ~ p(. | h), as a function of `base_noise`

and guidance acts inside it, on the velocity or on the logits. `Flow` learns continuous tokens by flow matching:
B_s = (1 - s) B_0 + s B, and the head regresses the velocity B - B_0 (Eqs. 8 and 9). `Categorical` is a softmax over the
codes of a discrete autoencoder.

Distributions built on a head are rows of `DISTRIBUTIONS`, called as `DISTRIBUTIONS[name](head, samples_per_token,
density)`; `HeadConfig(distribution=...)` and the command line choose one by name. Variants of discrete tokens use
`Categorical`.
"""

from collections.abc import Callable

from tmatch.distribution.base import TokenDistribution
from tmatch.distribution.categorical import Categorical
from tmatch.distribution.flow import Flow

DISTRIBUTIONS: dict[str, Callable[..., TokenDistribution]] = {
    "flow": Flow,
}

__all__ = ["DISTRIBUTIONS", "Categorical", "Flow", "TokenDistribution"]
