"""A line to a real server on which things go wrong as told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from tests.engines.tinker_server import free_port


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
        status: answered so, and not passed on.
        lost: passed on, and the answer lost: the connection ends instead.
        cut: not passed on, and the connection ends.
        late: seconds that the answer takes more.
    """

    status: int | None = None
    lost: bool = False
    cut: bool = False
    late: float = 0.0


Plan = Callable[[str, int], Fault | None]
"""(last part of the path, how many of these came so far, from 1) -> what goes wrong."""


class Line:
    """Passes requests on to a server, except for what the plan says."""

    def __init__(self, server: str, plan: Plan) -> None:
        self.server, self.plan = server, plan
        self.port = free_port()
        self.seen: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()  # of requests and answers, bodies alone
        self.events: list[tuple[str, str]] = []  # (seen or answered, name), as they happened

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *others = head.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = dict(line.split(": ", 1) for line in others if ": " in line)
                length = int({k.lower(): v for k, v in headers.items()}.get("content-length", 0))
                body = await reader.readexactly(length)
                answer = await self._answer(method, path, headers, body)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> bytes | None:
        name = path.partition("?")[0].rpartition("/")[2]
        self.seen[name] += 1
        self.events.append(("seen", name))
        fault = self.plan(name, self.seen[name]) or Fault()
        if fault.cut:
            return None
        if fault.status is not None:
            text = b'{"detail": "told to fail"}'
            return _packed(fault.status, "application/json", text)
        skipped = ("host", "content-length", "connection", "accept-encoding")
        kept = {k: v for k, v in headers.items() if k.lower() not in skipped}
        async with httpx.AsyncClient(timeout=300) as client:
            try:
                reply = await client.request(method, self.server + path, headers=kept, content=body)
            except httpx.HTTPError:
                return None  # as the server does, that is away
        self.bytes[name] += len(body) + len(reply.content)
        await asyncio.sleep(fault.late)
        self.events.append(("answered", name))
        if fault.lost:
            return None
        kind = reply.headers.get("content-type", "application/json")
        extra = f"location: {reply.headers['location']}\r\n" if reply.is_redirect else ""
        return _packed(reply.status_code, kind, reply.content, extra)

    @contextlib.contextmanager
    def open(self) -> Iterator[Line]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26)
        server = asyncio.run_coroutine_threadsafe(starting, loop).result()
        try:
            yield self
        finally:

            async def end() -> None:
                server.close()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

            asyncio.run_coroutine_threadsafe(end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def _packed(status: int, kind: str, body: bytes, extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Told\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return (head + extra + "\r\n").encode("latin-1") + body
