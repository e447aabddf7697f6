"""Checkout: write the running totals of a basket with half-remembered prices.

88 grocery items have a true price of 1 to 9 and an outdated one. The question lists 6 items, the
answer is the 6 running totals, and all six must be right. A model that half-believes the outdated
prices gets most lines right and the whole answer rarely: the regime in which a critique pays.

    solver    Q: cream orange apple peach candle date Work:          9 15 21 22 23 31 .
    critic    Q: cream … date Work: 9 15 21 22 23 31 . Check:        4 7 6 1 ok 2 .
    revision  Note: 4 7 6 1 ok 2 . Q: cream … date Work:             4 11 17 18 20 22 .
"""

from inwit.envs.checkout.env import Checkout, CheckoutSettings
from inwit.envs.checkout.model import build_model, build_tokenizer

__all__ = ["Checkout", "CheckoutSettings", "build_model", "build_tokenizer"]
