"""The small network g that turns a backbone's output into a distribution over tokens."""

from tmatch.head.base import Clock, Head
from tmatch.head.flow import FlowHead, HeadContext

__all__ = ["Clock", "FlowHead", "Head", "HeadContext"]
