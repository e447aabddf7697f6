"""The chat endpoint against real HTTP on loopback: answers, passing faults, lasting ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from inwit.casting import Cast
from inwit.engines.openai import ChatEndpoint, Reply
from inwit.envs import Split
from inwit.errors import InwitError
from inwit.recipe import parse_recipe
from inwit.rows import Behaviour, Role, Stop

Answer = tuple[int, str]


def completion(text: str, reason: str = "stop", tokens: int = 3) -> Answer:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}})


class Server:
    """Answers the i-th request with `answer(i, body)`, and keeps what it was asked."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.asked.append(body)
                    outer.keys.append(self.headers.get("Authorization"))
                    number = len(outer.asked) - 1
                status, text = answer(number, body)
                payload = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Answer]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[int, dict[str, Any]], Answer]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask(server: Server, **settings: Any) -> Reply:
    endpoint = ChatEndpoint(server.url, "critic", pause=0.01, **settings)
    messages = [("system", "be brief"), ("user", "why?")]
    return asyncio.run(endpoint.chat(messages, max_tokens=7, temperature=0.5, seed=1 << 40))


def test_a_reply_with_its_own_count_and_stop(serve) -> None:
    server = serve(lambda i, body: completion(" because ", "length", 7))
    assert ask(server) == Reply(" because ", 7, Stop.LENGTH)
    [body] = server.asked
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("critic", 7, 0.5)
    assert 0 <= body["seed"] < 1 << 31


def test_the_key_comes_from_the_environment(serve, monkeypatch) -> None:
    server = serve(lambda i, body: completion("."))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("INWIT_API_KEY", "s3cret")
    ask(server)
    monkeypatch.delenv("INWIT_API_KEY")
    ask(server)
    assert server.keys == ["Bearer s3cret", None]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_faults_are_tried_again(serve, status: int) -> None:
    server = serve(lambda i, body: completion("at last") if i == 2 else (status, "busy"))
    assert ask(server).text == "at last"
    assert len(server.asked) == 3


def test_a_fault_that_stays_is_an_error_that_says_so(serve) -> None:
    server = serve(lambda i, body: (429, "busy"))
    with pytest.raises(InwitError, match="3 tries: HTTP 429"):
        ask(server, tries=3)


def test_nobody_there() -> None:
    endpoint = ChatEndpoint("http://127.0.0.1:9", "m", tries=2, pause=0.01)
    with pytest.raises(InwitError, match="did not answer in 2 tries"):
        asyncio.run(endpoint.check())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, '{"error": "bad key"}'), "HTTP 401.*bad key"),
        ((200, "<html>Hello</html>"), "did not answer as an OpenAI-compatible one"),
        ((200, '{"choices": []}'), "did not answer as an OpenAI-compatible one"),
        ((200, '{"choices": [{"message": {"content": null}}]}'), "OpenAI-compatible"),
        ((200, '{"choices": [{"mess'), "OpenAI-compatible"),
    ],
)
def test_other_answers_are_clear_errors(serve, answer: Answer, said: str) -> None:
    server = serve(lambda i, body: answer)
    with pytest.raises(InwitError, match=said):
        ask(server)
    assert len(server.asked) == 1


def test_at_most_so_many_requests_at_once(serve) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def slow(i: int, body: dict[str, Any]) -> Answer:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        threading.Event().wait(0.03)
        with lock:
            under_way -= 1
        return completion(str(i))

    endpoint = ChatEndpoint(serve(slow).url, "m", at_once=2)

    async def many() -> None:
        one = {"max_tokens": 1, "temperature": 1.0, "seed": 0}
        await asyncio.gather(*(endpoint.chat([("user", "?")], **one) for _ in range(8)))

    asyncio.run(many())
    assert most == 2


def test_an_endpoint_as_icrls_critic(serve) -> None:
    """Its critiques reach the revisions; none of its tokens is ours, and nobody trains it."""
    server = serve(lambda i, body: completion("ok 3 ok ok ok 7"))
    recipe = parse_recipe(
        {
            "model": {"path": "embedded:checkout"},
            "env": {"name": "checkout", "train": 8, "dev": 2, "test": 2},
            "method": {
                "name": "icrl",
                "group_size": 2,
                "critic": "external",
                "critic_model": "teacher",
                "critic_url": server.url,
            },
            "sampling": {"max_tokens": 7, "critic_max_tokens": 7},
            "train": {"steps": 1},
        },
        "test",
    )
    cast = Cast.of(recipe)
    assert len(server.asked) == 1, "the endpoint is tried before any work starts"
    tasks = recipe.env.tasks(Split.TRAIN)[:2]
    episodes = asyncio.run(recipe.method.collect(tasks, cast.stage("s")))
    criticised = [e for e in episodes if e.critiques]
    assert len(criticised) == 4
    for episode in criticised:
        [critique], [revision] = episode.critiques, episode.revisions
        assert critique.text == "ok 3 ok ok ok 7"
        assert critique.turn.behaviour is Behaviour.EXTERNAL
        shown = cast.solver.renderer.tokenizer.decode(list(revision.prompt_ids))
        assert shown.startswith("Note: ok 3 ok ok ok 7 . Q:")
        assert episode.sampled_tokens == sum(a.sampled_tokens for a in episode.attempts)
    rows = recipe.method.credit(episodes)
    assert {row.role for row in rows} == {Role.SOLVER}
    question = server.asked[1]["messages"]
    assert question[0] == {"role": "system", "content": "critic"}
    assert question[1]["content"].startswith("Q: ")
