"""Messages between the two sides, and which values they may hold."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

MESSAGE = 16 * 2**20
"""Bytes of the longest message."""

SHOWN = 300
"""Characters of a value, message or statement that are reported."""


class Gone(BaseException):
    """The program's process is not there any more. No `except Exception` stops this."""


class Nonsense(Gone):
    """It sent what is no answer."""


class ProgramError(Exception):
    """An exception of the program's that is none of Python's own."""


class Channel:
    """Messages over a socket: a length of four bytes, then JSON."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: object) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE:
            raise OverflowError(f"a value of more than {MESSAGE} bytes")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(self._fd, view) :]

    def receive(self) -> Any:
        size = int.from_bytes(self._exactly(4), "big")
        if size > MESSAGE:
            raise Nonsense("a message was too long")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise Nonsense("a message was not readable") from error

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.read(self._fd, min(size, 2**16))
            except OSError as error:
                raise Gone("the program ended early") from error
            if not part:
                raise Gone("the program ended early")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


# ---------------------------------------------------------------------- values

SEQUENCES = ("builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset")
MAPPINGS = ("builtins.dict", "collections.OrderedDict", "collections.Counter")
TEXTS: Mapping[str, tuple[Callable[[Any], str], str]] = {
    "builtins.bytes": (bytes.hex, "fromhex"),
    "builtins.bytearray": (bytearray.hex, "fromhex"),
    "decimal.Decimal": (str, ""),
    "datetime.datetime": (lambda v: str(v.isoformat()), "fromisoformat"),
    "datetime.date": (lambda v: str(v.isoformat()), "fromisoformat"),
    "datetime.time": (lambda v: str(v.isoformat()), "fromisoformat"),
}
"""How a value becomes text, and the class method that reads it; none is the class itself."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "builtins.complex": ("real", "imag"),
    "builtins.range": ("start", "stop", "step"),
    "fractions.Fraction": ("numerator", "denominator"),
    "datetime.timedelta": ("days", "seconds", "microseconds"),
}
TYPES = (
    "bool",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
    "list",
    "tuple",
    "set",
    "dict",
    "object",
)


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """A value as JSON; `other` says what stands for an object that is no plain value."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    base: Any
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name == "builtins.int":
            whole = int.__add__(value, 0)
            return whole if abs(whole) < 2**63 else ["int", hex(whole)]
        if name == "builtins.float":
            return float.__add__(value, 0.0)
        if name == "builtins.str":
            return str.__str__(value)
        if name in SEQUENCES or name == "collections.deque":
            return [name, [encode(each, other) for each in base.__iter__(value)]]
        if name == "collections.defaultdict":  # equal to the dict that it holds
            name = "builtins.dict"
        if name in MAPPINGS:
            pairs = dict.items(value)
            return [name, [[encode(k, other), encode(v, other)] for k, v in pairs]]
        if name in TEXTS:
            return [name, TEXTS[name][0](value)]
        if name in PARTS:
            return [name, [encode(getattr(value, part), other) for part in PARTS[name]]]
    if kind is type and value.__name__ in TYPES and value is getattr(builtins, value.__name__):
        return ["type", value.__name__]
    return other(value)


def decode(data: Any, other: Callable[[str, Any], Any]) -> Any:
    """The value again. Raises what unfit data raises; nothing of the sender's is run."""
    if not isinstance(data, list):
        return data
    tag, content = data
    if tag == "int":
        return int(content, 16)
    if tag == "type":
        return getattr(builtins, TYPES[TYPES.index(content)])
    if tag in SEQUENCES or tag == "collections.deque" or tag in PARTS:
        parts = [decode(each, other) for each in content]
        return _class(tag)(*parts) if tag in PARTS else _class(tag)(parts)
    if tag in MAPPINGS:
        return _class(tag)({decode(k, other): decode(v, other) for k, v in content})
    if tag in TEXTS:
        made = _class(tag)
        how = TEXTS[tag][1]
        return getattr(made, how)(content) if how else made(content)
    return other(tag, content)


def _class(tag: str) -> Any:
    module, name = tag.split(".")
    return getattr(import_module(module), name)


# ---------------------------------------------------------------------- exceptions


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN]
    except BaseException:
        return ""


def exception_of(name: str, text: str) -> Exception:
    """Python's own, where it is; never the one that would end a loop of the tests early."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration:
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and the like want more
            pass
    return ProgramError(f"{name}: {text}")
