"""Progress bars on stderr."""

import sys
from collections.abc import Generator, Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from tmatch.ranks import rank_and_world_size

T = TypeVar("T")


def progress_bar(
    items: Iterable[T], description: str, total: int | None = None, enabled: bool = True
) -> Generator[T, None, None]:
    """Yield the items; rank 0 shows a progress bar if stderr is a terminal."""
    shown = enabled and sys.stderr.isatty() and rank_and_world_size()[0] == 0
    yield from track(items, description, total, console=Console(stderr=True), transient=True, disable=not shown)
