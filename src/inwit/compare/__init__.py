"""Compare methods from one warm start at equal sampled tokens: a study file, a folder, a table."""

from inwit.compare.reading import Study
from inwit.compare.results import target_key
from inwit.compare.studies import compare

__all__ = ["Study", "compare", "target_key"]
