"""The shop: items, true prices, outdated prices, and who still believes them. All from one seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from inwit.seeding import rng

N_ITEMS = 88
GOODS = [
    "almonds",
    "apple",
    "apricot",
    "asparagus",
    "avocado",
    "bacon",
    "bagel",
    "banana",
    "barley",
    "basil",
    "beans",
    "beef",
    "beet",
    "berries",
    "biscuits",
    "bran",
    "bread",
    "broccoli",
    "broom",
    "brush",
    "butter",
    "cabbage",
    "cake",
    "candle",
    "caramel",
    "carrots",
    "cashews",
    "celery",
    "cereal",
    "cheese",
    "cherries",
    "chicken",
    "chives",
    "chocolate",
    "cider",
    "cinnamon",
    "clams",
    "cocoa",
    "coconut",
    "cod",
    "coffee",
    "cookies",
    "corn",
    "couscous",
    "crab",
    "crackers",
    "cream",
    "cucumber",
    "curry",
    "dates",
    "dill",
    "dough",
    "duck",
    "eggs",
    "endive",
    "fennel",
    "figs",
    "flour",
    "garlic",
    "ginger",
    "grapes",
    "gravy",
    "ham",
    "hazelnuts",
    "herring",
    "honey",
    "jam",
    "juice",
    "kale",
    "ketchup",
    "kiwi",
    "lamb",
    "leek",
    "lemon",
    "lentils",
    "lettuce",
    "lime",
    "lobster",
    "mango",
    "maple",
    "melon",
    "milk",
    "millet",
    "mint",
    "muffins",
    "mushrooms",
    "mustard",
    "nectarine",
    "noodles",
    "nutmeg",
    "oats",
    "olives",
    "onion",
    "orange",
    "oregano",
    "oysters",
    "papaya",
    "paprika",
    "parsley",
    "pasta",
    "peach",
    "peanuts",
    "pear",
    "peas",
    "pecans",
    "pepper",
    "pickles",
    "pineapple",
    "plums",
    "popcorn",
    "potatoes",
    "pretzels",
    "prunes",
    "pumpkin",
    "quinoa",
    "radish",
    "raisins",
    "rhubarb",
    "rice",
    "rosemary",
    "rye",
    "saffron",
    "sage",
    "salmon",
    "salt",
    "sardines",
    "sauce",
    "sausage",
    "scones",
    "sesame",
    "shrimp",
    "soap",
    "soup",
    "spinach",
    "squash",
    "steak",
    "sugar",
    "syrup",
    "tarragon",
    "tea",
    "thyme",
    "tofu",
    "tomato",
    "towel",
    "trout",
    "tuna",
    "turkey",
    "turnip",
    "vanilla",
    "veal",
    "vinegar",
    "waffles",
    "walnuts",
    "water",
    "wheat",
    "yeast",
    "yogurt",
    "zucchini",
]


@dataclass(frozen=True)
class Shop:
    """Names, and prices by name in whole coins from 1 to 9."""

    items: tuple[str, ...]
    price: Mapping[str, int]
    outdated: Mapping[str, int]

    @classmethod
    def from_seed(cls, seed: int) -> Shop:
        r = rng(seed, "checkout", "shop")
        items = tuple(r.sample(GOODS, N_ITEMS))
        price = {item: r.randrange(1, 10) for item in items}
        outdated = {i: r.choice([p for p in range(1, 10) if p != price[i]]) for i in items}
        return cls(items, price, outdated)

    def slip_rates(self, seed: int, low: float, high: float) -> dict[str, float]:
        """How often each item's outdated price is believed, drawn uniformly from [low, high]."""
        r = rng(seed, "checkout", "slips")
        return {item: r.uniform(low, high) for item in self.items}

    def totals(self, basket: Sequence[str]) -> list[int]:
        return running_totals(self.price[item] for item in basket)


def running_totals(prices: Iterable[int]) -> list[int]:
    total, out = 0, []
    for price in prices:
        total += price
        out.append(total)
    return out


def line_prices(totals: Sequence[int]) -> list[int]:
    """The price that each line of an answer took: its difference to the line before."""
    return [after - before for before, after in zip([0, *totals], totals, strict=False)]


@dataclass(frozen=True)
class Baskets:
    """Ordered baskets by split; as *sets* of items no two are equal, within or across splits."""

    train: tuple[tuple[str, ...], ...]
    dev: tuple[tuple[str, ...], ...]
    test: tuple[tuple[str, ...], ...]

    @classmethod
    def draw(cls, shop: Shop, seed: int, sizes: tuple[int, int, int], length: int) -> Baskets:
        r: Random = rng(seed, "checkout", "baskets")
        seen: set[frozenset[str]] = set()
        baskets: list[tuple[str, ...]] = []
        while len(baskets) < sum(sizes):
            basket = tuple(r.sample(shop.items, length))
            if frozenset(basket) not in seen:
                seen.add(frozenset(basket))
                baskets.append(basket)
        train, dev, test = sizes
        return cls(
            test=tuple(baskets[:test]),
            dev=tuple(baskets[test : test + dev]),
            train=tuple(baskets[test + dev : test + dev + train]),
        )
