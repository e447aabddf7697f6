"""Lock: choose the key that opens a dial lock, and write what the dial reads on the way.

The dial of 0 to 9 starts on the key and is moved by each operation; one of the keys on offer ends
on the goal. To answer means to try a key blindly, for its end is known only when all is written; to
check means to compare the end with the goal. Checking is easier than answering: the regime in which
a second attempt pays. It opens with a verdict on the first, which is left out of the answer.

    solver        Keys: 3 8 Lock: +4 x3 +9 Goal: 0 Try:                          3 7 1 0 .
    critic        Keys: 3 8 Lock: +4 x3 +9 Goal: 0 Try: 8 2 6 5 . Check:         no .
    again         Keys: … Goal: 0 Try: 8 2 6 5 . Again: Check:                   no 3 7 1 0 .
    refine        Keys: … Goal: 0 Try: 8 2 6 5 . Again: Check: no                3 7 1 0 .
"""

from inwit.envs.lock.env import Lock, LockSettings
from inwit.envs.lock.model import build_model, build_tokenizer

__all__ = ["Lock", "LockSettings", "build_model", "build_tokenizer"]
