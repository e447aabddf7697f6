"""The side that runs the program."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from inwit.envs.code.harness.wire import Channel, Gone, decode, encode, exception_of, text_of


class Program:
    """Holds the program and its objects, and does what it is asked."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._module = ModuleType("program")  # not __main__: a guarded main is not wanted
        sys.modules["program"] = self._module
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}

    def serve(self) -> Any:
        """Answer requests until what comes is itself an answer, to a callback of ours."""
        while True:
            message = self._channel.receive()
            if message[0] == "answer":
                return message
            try:
                reply = self._do(*message)
            except Gone:
                raise
            except BaseException as error:
                if isinstance(error, StopIteration) and message[0] == "next":
                    reply = ["stop"]
                else:
                    reply = ["raise", type(error).__name__, text_of(error)]
            try:
                self._channel.send(reply)
            except (OverflowError, RecursionError, ValueError) as error:
                self._channel.send(["raise", type(error).__name__, text_of(error)])

    def _do(self, what: str, *rest: Any) -> Any:
        if what == "load":
            exec(compile(rest[0], "<program>", "exec"), self._module.__dict__)
            return ["value", None, []]
        if what == "get":
            return ["value", self._encode(self._module.__dict__[rest[0]]), []]
        target = self._objects[rest[0]]
        given = [self._decode(each) for each in rest[1:]]
        if what == "call":
            return self._call(target, given[0], given[1], rest[1][1])
        operations: Mapping[str, Any] = {
            "attribute": getattr,
            "assign": setattr,
            "item": lambda t, key: t[key],
            "iterate": iter,
            "next": next,
            "length": len,
            "true": bool,
            "text": str,
            "equal": lambda t, u: bool(t == u),
        }
        value = operations[what](target, *given)
        return ["value", self._encode(value), []]

    def _call(self, target: Any, args: list[Any], named: Any, sent: list[Any]) -> Any:
        """With the arguments that the call changed in place, by position."""
        value = self._encode(target(*args, **named))
        changed = []
        for i, (arg, before) in enumerate(zip(args, sent, strict=True)):
            if isinstance(arg, list | dict | set | bytearray):
                after = self._encode(arg)
                if after != before:
                    changed.append([i, after])
        return ["value", value, changed]

    def _encode(self, value: Any) -> Any:
        return encode(value, self._handle)

    def _handle(self, value: Any) -> Any:
        if id(value) not in self._handles:  # ids stay true: the objects are kept
            self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return ["object", [self._handles[id(value)], type(value).__name__]]

    def _decode(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _resolve(self, tag: str, content: Any) -> Any:
        if tag == "object":
            return self._objects[content]
        if tag == "builtin":
            return getattr(builtins, content)
        if tag == "iterator":
            return iter([self._decode(each) for each in content])

        def callback(*args: Any) -> Any:
            self._channel.send(["back", content, [self._encode(each) for each in args]])
            _, fault, value = self.serve()
            if fault:
                raise exception_of(fault, str(value))
            return self._decode(value)

        return callback
