"""Sources of captioned images, one reader per layout."""

from tmatch.data.sources.naming import open_source
from tmatch.data.sources.source import Source

__all__ = ["Source", "open_source"]
