"""The program's objects, as the tests have them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from inwit.envs.code.harness.wire import (
    SHOWN,
    Channel,
    Gone,
    Nonsense,
    decode,
    encode,
    exception_of,
    text_of,
)

ITERATED = 100_000
"""Items of an iterator that a test may pass."""


class Uncrossable(BaseException):
    """A test passes an object that the other process cannot have: the task is at fault."""


class Examiner:
    """Asks the program, and lets no more than plain values and handles of its objects in."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._functions: list[Any] = []
        self.gone: Gone | None = None
        self.last: tuple[str, tuple[Any, ...], Any] | None = None

    def ask(self, *message: Any, given: tuple[Any, ...] = ()) -> Any:
        """The value. Raises the program's exception, or Gone."""
        if self.gone:
            raise self.gone
        try:
            self._channel.send(message)
            while (reply := self._channel.receive())[0] == "back":
                self._answer(reply[1], reply[2])
            if reply[0] == "value":
                value = self._decode(reply[1])
                for i, after in reply[2]:
                    _replace(given[i], self._decode(after))
                return value
            what, *rest = reply
            if what == "stop" and message[0] == "next":
                raise StopIteration
            fault = exception_of(str(rest[0]), str(rest[1])[:SHOWN])
        except Gone as gone:
            self._lost(gone)
        except OSError:
            self._lost(Gone("the program ended early"))
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ):
            self._lost(Nonsense("it sent what is no answer"))
        raise fault

    def _lost(self, gone: Gone) -> NoReturn:
        self.gone = gone
        raise gone

    def _answer(self, number: int, args: list[Any]) -> None:
        """What one of the tests' own functions says."""
        function, given = self._functions[number], [self._decode(each) for each in args]
        try:
            value = self.encode(function(*given))
        except Exception as error:
            self._channel.send(["answer", type(error).__name__, text_of(error)])
        else:
            self._channel.send(["answer", "", value])

    def encode(self, value: Any) -> Any:
        return encode(value, self._cross)

    def _cross(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return ["object", value._handle]
        name = getattr(value, "__name__", "")
        if name and value is getattr(builtins, name, None):
            return ["builtin", name]
        if hasattr(type(value), "__next__"):
            return ["iterator", [self.encode(each) for each in islice(value, ITERATED)]]
        if callable(value):
            self._functions.append(value)
            return ["function", len(self._functions) - 1]
        raise Uncrossable(f"a test passes a {type(value).__name__}, which cannot be handed over")

    def _decode(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _resolve(self, tag: str, content: Any) -> Any:
        if tag != "object":
            raise ValueError(tag)
        return Remote(self, int(content[0]), str(content[1]))


def _replace(value: Any, after: Any) -> None:
    """Make a test's own list, dict, set or bytearray what the call made of it."""
    if type(value) in (list, bytearray):
        value[:] = after
    elif type(value) in (dict, set):
        value.clear()
        value.update(after)
    else:
        raise TypeError("nothing that a call can change")


class Remote:
    """An object of the program's: calls, attributes, items and iteration go to its process.

    Nothing that decides a comparison with a test's own value does: an object that claims to be
    equal to everything, or to be any distance from it, is equal to nothing here. Two objects of
    the program's are compared by the program.
    """

    __slots__ = ("_examiner", "_handle", "_name")
    _examiner: Examiner
    _handle: int
    _name: str

    def __init__(self, examiner: Examiner, handle: int, name: str) -> None:
        for slot, value in zip(Remote.__slots__, (examiner, handle, name), strict=True):
            object.__setattr__(self, slot, value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        e = self._examiner
        e.last = None
        value = e.ask("call", self._handle, e.encode([*args]), e.encode(named), given=args)
        e.last = (self._name, args, value)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._examiner.ask("attribute", self._handle, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._examiner.ask("assign", self._handle, name, self._examiner.encode(value))

    def __getitem__(self, key: Any) -> Any:
        return self._examiner.ask("item", self._handle, self._examiner.encode(key))

    def __iter__(self) -> Iterator[Any]:
        items = self._examiner.ask("iterate", self._handle)
        while True:
            try:
                yield next(items)
            except StopIteration:
                return

    def __next__(self) -> Any:
        return self._examiner.ask("next", self._handle)

    def __len__(self) -> int:
        return int(self._examiner.ask("length", self._handle))

    def __bool__(self) -> bool:
        return self._examiner.ask("true", self._handle) is True

    def __str__(self) -> str:
        return str(self._examiner.ask("text", self._handle))

    def __repr__(self) -> str:
        return f"<{self._name} of the program>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return NotImplemented
        both = self._handle, self._examiner.encode(other)
        return self._handle == other._handle or self._examiner.ask("equal", *both) is True

    def __hash__(self) -> int:
        return hash(self._handle)
