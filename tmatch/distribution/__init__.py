"""p(token | h): the distribution of a token given the backbone's output."""

from tmatch.distribution.base import TokenDistribution
from tmatch.distribution.categorical import Categorical
from tmatch.distribution.flow import Flow

__all__ = ["Categorical", "Flow", "TokenDistribution"]
