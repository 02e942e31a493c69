"""Stopping at the end of a step instead of in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_WANTED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """A list that fills when the process is asked to stop; in other threads than the main one it stays empty."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in _WANTED]
    try:
        yield received
    finally:
        for number, handler in zip(_WANTED, before, strict=True):
            signal.signal(number, handler)
