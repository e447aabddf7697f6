"""inwit: train language models to find and fix their own mistakes, and measure whether they do."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("inwit")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"
