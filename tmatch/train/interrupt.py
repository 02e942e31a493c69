"""Stop at the end of a step instead of in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_seen: list[int] = []


def preempted() -> bool:
    """Return whether the last request to stop was SIGTERM (a scheduler), not SIGINT (Ctrl-C)."""
    return _seen[-1:] == [signal.SIGTERM]


def mark_preempted() -> None:
    """Record that another process of the run received SIGTERM."""
    _seen.append(signal.SIGTERM)


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM instead of stopping; it stays empty outside the main thread."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        _seen.append(number)

    numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
