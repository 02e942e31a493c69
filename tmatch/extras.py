"""Optional dependencies: imports of an extra, and the error when it is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(ImportError, ValueError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}': run pip install 'tmatch[{extra}]', or pip install -e '.[{extra}]' "
            "in a clone."
        )


@contextmanager
def needs_extra(feature: str, extra: str) -> Iterator[None]:
    """Report a failed import as a missing extra of the package."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(feature, extra) from error
