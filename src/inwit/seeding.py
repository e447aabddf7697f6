"""Every random choice comes from (seed, names): nothing to save, nothing that order can disturb."""

from __future__ import annotations

import hashlib
import random


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the thing called `names` in the run seeded with `seed`."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def rng(seed: int, *names: object) -> random.Random:
    """A generator of its own for the thing called `names`."""
    return random.Random(derive(seed, *names))
