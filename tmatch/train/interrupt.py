"""Stopping at the end of a step instead of in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_WANTED = (signal.SIGINT, signal.SIGTERM)
_seen: list[int] = []


def preempted() -> bool:
    """Whether the last that asked this process to stop was a scheduler (SIGTERM), not a person (Ctrl-C)."""
    return _seen[-1:] == [signal.SIGTERM]


def tell_preempted() -> None:
    """Have it count as a scheduler's wish: another process of the run was asked."""
    _seen.append(signal.SIGTERM)


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """A list that fills when the process is asked to stop; in other threads than the main one it stays empty."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: object) -> None:
        received.append(number)
        _seen.append(number)

    before = [signal.signal(number, note) for number in _WANTED]
    try:
        yield received
    finally:
        for number, handler in zip(_WANTED, before, strict=True):
            signal.signal(number, handler)
