"""What the engine sets once for its whole process, so that a step spends its time on arithmetic."""

from __future__ import annotations

import ctypes
import gc
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""glibc's names for two settings of its allocator, see mallopt(3)."""


@cache
def spare_collector() -> None:
    """Take what was imported out of the garbage collector's sight.

    It is some hundred thousand objects, and looking through them takes 0.2 s each time.
    """
    gc.collect()
    gc.freeze()


@cache
def hold_memory() -> bool:
    """Let the allocator keep what is freed, for the next pass asks for as much. True if it does.

    glibc gives large blocks back to the system as they are freed, and the system clears every page
    it hands out again: a tenth of a training step, and half of sampling from a large vocabulary.
    Other allocators are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
