"""The small network g that turns a backbone's output into a distribution over tokens."""

from tmatch.head.base import Head, TimeCache
from tmatch.head.flow import FlowHead, HeadContext

__all__ = ["FlowHead", "Head", "HeadContext", "TimeCache"]
