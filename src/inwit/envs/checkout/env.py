"""The environment `checkout`: tasks, grading, and the demonstrations of its warm start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from random import Random

from pydantic import Field, model_validator

from inwit.envs.base import AnswerEnv, Demonstration, EnvSettings, Result, Split, Task
from inwit.envs.checkout.shop import N_ITEMS, Baskets, Shop, line_prices, running_totals


class CheckoutSettings(EnvSettings):
    """Settings of `checkout`; the second block describes the demonstrations of the warm start."""

    seed: int = Field(7, description="of shop and baskets; the model is embedded:checkout@SEED")
    basket: int = Field(6, ge=1, le=10, description="items in a basket")
    train: int = Field(20_000, ge=1, description="training baskets")
    dev: int = Field(512, ge=1, description="held-out baskets for tuning and curves")
    test: int = Field(1024, ge=1, description="held-out baskets that nobody tunes on")

    slip: tuple[float, float] = Field((0.6, 0.9), description="how often an old price is believed")
    share_solver: float = Field(0.30, ge=0, le=1, description="plain answers")
    share_revision: float = Field(0.35, ge=0, le=1, description="answers that follow a note")
    share_again: float = Field(0.0, ge=0, le=1, description="second answers after a first one")
    note_right: float = Field(0.80, ge=0, le=1, description="a note's price is the true one")
    mark_wrong: float = Field(0.80, ge=0, le=1, description="a critic marks a wrong line")
    mark_right: float = Field(0.20, ge=0, le=1, description="a critic marks a right line")
    mark_true: float = Field(0.85, ge=0, le=1, description="a mark names the true price")
    mend: float = Field(0.35, ge=0, le=1, description="a second answer mends a wrong line")
    spoil: float = Field(0.12, ge=0, le=1, description="a second answer spoils a right line")

    @model_validator(mode="after")
    def _shares(self) -> CheckoutSettings:
        if self.share_solver + self.share_revision + self.share_again > 1:
            raise ValueError(
                "share_solver + share_revision + share_again is over 1; the rest are critiques"
            )
        if not 0 <= self.slip[0] <= self.slip[1] <= 1:
            raise ValueError("slip must be two rates in rising order, each from 0 to 1")
        if (asked := self.train + self.dev + self.test) > (sets := comb(N_ITEMS, self.basket)):
            raise ValueError(
                f"{asked} baskets are asked for, but there are only {sets} of {self.basket} items"
            )
        return self


class Checkout(AnswerEnv):
    """Running totals of a basket; right if all of them are."""

    Settings = CheckoutSettings
    prompts = Path(__file__).parent / "prompts"
    marker = "Again:"
    settings: CheckoutSettings

    def __init__(self, settings: CheckoutSettings) -> None:
        super().__init__(settings)
        s = settings
        self.shop = Shop.from_seed(s.seed)
        self._baskets = Baskets.draw(self.shop, s.seed, (s.train, s.dev, s.test), s.basket)
        self._slips = self.shop.slip_rates(s.seed, *s.slip)

    def tasks(self, split: Split) -> Sequence[Task]:
        baskets: Sequence[tuple[str, ...]] = getattr(self._baskets, split.value)
        return [
            Task(
                id=f"{split}-{i}",
                question=" ".join(basket),
                reference=write(self.shop.totals(basket)),
                data={"basket": basket},
            )
            for i, basket in enumerate(baskets)
        ]

    def grade(self, task: Task, answer: str) -> Result:
        return Result.of(self.answer_of(task, answer) == task.reference)

    def answer_of(self, task: Task, text: str) -> str:
        """The totals; those that the text itself thinks better of (`Again:`) do not count."""
        del task
        return " ".join(text.rpartition(self.marker)[2].split())

    def critique_size(self, text: str, tokens: int) -> float:
        """The marks that a note makes; `ok` is free."""
        del tokens
        return float(sum(word != "ok" for word in text.split()))

    @property
    def makes_demonstrations(self) -> bool:
        return True

    def demonstrations(self, rng: Random, n: int) -> Sequence[Demonstration]:
        return [self._demonstration(rng) for _ in range(n)]

    def _demonstration(self, r: Random) -> Demonstration:
        basket = r.choice(self._baskets.train)
        question = " ".join(basket)
        kind, s = r.random(), self.settings
        if kind < s.share_solver:
            return Demonstration("solver", {"question": question}, write(self._recall(r, basket)))
        if kind < s.share_solver + s.share_revision:
            named = r.sample(basket, r.randrange(0, len(basket) + 1))
            note = {i: self._price(r, i, s.note_right) for i in named}
            fields = {"question": question, "critique": marks(basket, note)}
            return Demonstration("revision", fields, write(self._recall(r, basket, note)))
        attempt = self._recall(r, basket)
        fields = {"question": question, "attempt": write(attempt)}
        if kind < s.share_solver + s.share_revision + s.share_again:
            return Demonstration("again", fields, write(self._think_again(r, basket, attempt)))
        return Demonstration("critic", fields, marks(basket, self._criticise(r, basket, attempt)))

    def _recall(
        self, r: Random, basket: Sequence[str], note: Mapping[str, int] | None = None
    ) -> list[int]:
        """Totals by someone who follows the note and otherwise half-remembers."""
        note = note or {}
        return running_totals(
            note[i] if i in note else self._price(r, i, 1 - self._slips[i]) for i in basket
        )

    def _criticise(self, r: Random, basket: Sequence[str], totals: Sequence[int]) -> dict[str, int]:
        s, note = self.settings, {}
        for item, price in zip(basket, line_prices(totals), strict=True):
            right = price == self.shop.price[item]
            if r.random() < (s.mark_right if right else s.mark_wrong):
                note[item] = self._price(r, item, s.mark_true)
        return note

    def _think_again(self, r: Random, basket: Sequence[str], totals: Sequence[int]) -> list[int]:
        """Totals by someone who mostly repeats what he wrote, now and then mending or spoiling."""
        s, prices = self.settings, []
        for item, price in zip(basket, line_prices(totals), strict=True):
            right = price == self.shop.price[item]
            true = r.random() >= s.spoil if right else r.random() < s.mend
            prices.append(self.shop.price[item] if true else self.shop.outdated[item])
        return running_totals(prices)

    def wrong_answer(self, task: Task) -> str:
        """The totals of somebody who still believes all the old prices."""
        return write(running_totals(self.shop.outdated[item] for item in task.data["basket"]))

    def _price(self, r: Random, item: str, truth: float) -> int:
        return self.shop.price[item] if r.random() < truth else self.shop.outdated[item]


def write(totals: Sequence[int]) -> str:
    return " ".join(map(str, totals))


def marks(basket: Sequence[str], note: Mapping[str, int]) -> str:
    """One mark a line: `ok`, or the price that should have been taken."""
    return " ".join(str(note[item]) if item in note else "ok" for item in basket)
