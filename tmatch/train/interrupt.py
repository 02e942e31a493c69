"""Stop at the end of a step instead of in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted by Ctrl-C or SIGTERM, and saved: start it again to resume.

    It is `preempted` if the last signal was SIGTERM, as from a scheduler. Like any KeyboardInterrupt, it is not caught
    by `except Exception`.
    """

    def __init__(self, step: int, preempted: bool) -> None:
        super().__init__(f"The run was interrupted and saved at step {step:,}; start it again to resume.")
        self.preempted = preempted


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM instead of stopping; it stays empty outside the main thread."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)

    numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
