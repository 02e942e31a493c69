"""Sources of images with captions, class labels or nothing; one reader per layout."""

from tmatch.data.sources.naming import open_local, open_source
from tmatch.data.sources.source import Source

__all__ = ["Source", "open_local", "open_source"]
