"""The small network g that turns the backbone's output into a distribution over tokens.

To add a head, write a subclass of `Head` in a file of its own and add a row to `HEADS`; `HeadConfig(kind=...)` and the
command line then find it by name.
"""

from tmatch.head.base import Head, TimeCache
from tmatch.head.flow import FlowHead, HeadContext
from tmatch.head.transformer import JointContext, TransformerHead

HEADS: dict[str, type[Head]] = {
    "mlp": FlowHead,
    "transformer": TransformerHead,
}

__all__ = ["HEADS", "FlowHead", "Head", "HeadContext", "JointContext", "TimeCache", "TransformerHead"]
