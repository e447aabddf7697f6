"""An HTTP server on loopback that answers as it is told to, faults of all kinds included."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What goes out over the wire.

    Attributes:
        delay: seconds before the first byte of the body; the headers come at once.
        cut: bytes at the end of the body that are announced, and never sent.
    """

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int = 0


def completion(text: Any = "ok", reason: str | None = "stop", usage: Any = (5, 3)) -> Answer:
    """A well-formed answer; `usage` is (prompt, completion) tokens, or whatever stands there."""
    if isinstance(usage, tuple):
        usage = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return Answer(body=json.dumps({"choices": [choice], "usage": usage}))


Script = Callable[[int, dict[str, Any]], Answer]
"""(number of the request, its body) -> its answer"""


class Faulty:
    """Answers by a script, and keeps what it was asked, when, and over how many connections."""

    def __init__(self, script: Script) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.callers: set[int] = set()
        self.most = self._under_way = 0
        self._script, self._lock = script, threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> Answer:
        length = int(request.headers.get("Content-Length", 0))
        body = json.loads(request.rfile.read(length)) if length else {}
        with self._lock:
            number = len(self.asked)
            self.asked.append(body)
            self.paths.append(request.path)
            self.keys.append(request.headers.get("Authorization"))
            self.times.append(time.monotonic())
            self.callers.add(request.client_address[1])
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            return self._script(number, body)
        finally:
            with self._lock:
                self._under_way -= 1

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(faulty: Faulty) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        wbufsize = -1

        def do_POST(self) -> None:
            answer = faulty.answer(self)
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if answer.delay:
                self.wfile.flush()
                time.sleep(answer.delay)
            self.wfile.write(body[: len(body) - answer.cut])
            self.close_connection = answer.cut > 0

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:  # whoever asked has gone
                self.rfile.close()

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True

    return Handler


@contextmanager
def serving(script: Script) -> Iterator[Faulty]:
    """A server that is gone afterwards."""
    faulty = Faulty(script)
    try:
        yield faulty
    finally:
        faulty.close()
