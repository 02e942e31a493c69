"""Standard streams that never stop a command: they may be closed, full, or unable to encode a character."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any


class StandardStream:
    """A text stream whose first error is kept in `error` and whose further output is dropped."""

    def __init__(self, stream: Any, number: int) -> None:  # noqa: ANN401
        self._stream = open(number, "w", closefd=False) if stream is None else stream  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._kept():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # or the interpreter fails when it flushes at exit
            os.close(null)


@contextmanager
def standard_streams() -> Iterator[StandardStream]:
    """Replace stdout and stderr for the duration of a command, and yield stdout."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file to be opened would get its number, and everything printed
            os.open(os.devnull, os.O_RDWR)
    stdout, stderr = StandardStream(sys.stdout, 1), StandardStream(sys.stderr, 2)
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            yield stdout
        finally:
            stdout.flush()
            stderr.flush()
