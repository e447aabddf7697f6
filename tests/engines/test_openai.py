"""The chat endpoint against real HTTP on loopback: answers, passing faults, lasting ones."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from email.utils import formatdate
from itertools import chain, repeat
from typing import Any

import pytest
from pydantic import ValidationError

from inwit.casting import Cast
from inwit.engines.openai import (
    BudgetSpent,
    ChatEndpoint,
    EndpointError,
    OpenAISettings,
    Refused,
    Reply,
    Unanswered,
)
from inwit.envs import Split
from inwit.recipe import parse_recipe
from inwit.rows import Behaviour, Role, Stop
from tests.engines.faulty import Answer, Faulty, Script, completion, serving

MESSAGES = [("system", "be brief"), ("user", "why?")]
KEY = "s3cret-0123456789"


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Faulty]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(serving(script))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INWIT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def endpoint_of(server: Faulty, **settings: Any) -> ChatEndpoint:
    return ChatEndpoint(OpenAISettings(url=server.url, **{"pause": 0.001, **settings}), "critic")


async def chat(endpoint: ChatEndpoint, max_tokens: int = 7, **options: Any) -> Reply:
    return await endpoint.chat(
        MESSAGES, max_tokens=max_tokens, temperature=0.5, seed=1 << 40, **options
    )


def ask(server: Faulty, max_tokens: int = 7, **settings: Any) -> Reply:
    return asyncio.run(chat(endpoint_of(server, **settings), max_tokens))


# ---------------------------------------------------------------------- what is asked


def test_what_a_request_says(serve) -> None:
    server = serve(lambda i, body: completion())
    ask(server, extra={"chat_template_kwargs": {"enable_thinking": False}})
    [body] = server.asked
    assert server.paths == ["/v1/chat/completions"]
    assert 0 <= body.pop("seed") < 1 << 31
    assert body == {
        "model": "critic",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "why?"},
        ],
        "max_tokens": 7,
        "temperature": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }, "no log-probs are asked for"


def test_going_on_with_an_unfinished_message(serve) -> None:
    server = serve(lambda i, body: completion())
    asyncio.run(chat(endpoint_of(server), continue_last=True))
    [body] = server.asked
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "localhost:8000"}, "begin it with http"),
        ({"url": "ftp://host/v1"}, "begin it with http"),
        ({"url": "http://"}, "begin it with http"),
        ({"url": "http://host:port/v1"}, "malformed"),
        ({"url": f"https://me:{KEY}@host/v1"}, "into the environment"),
        ({"url": f"https://host/v1?key={KEY}"}, "into the environment"),
        ({"url": "http://h", "extra": {"logprobs": True}}, "extra may not set logprobs"),
        ({"url": "http://h", "extra": {"max_tokens": 1 << 30}}, "extra may not set max_tokens"),
        ({"url": "http://h", "key": "k"}, "Extra inputs"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        OpenAISettings(**settings)
    assert KEY not in str(caught.value)


# ---------------------------------------------------------------------- what is answered


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (completion(" because ", "length", (5, 7)), Reply(" because ", 5, 7, Stop.LENGTH)),
        (completion("so", usage=None), Reply("so", None, None, Stop.TOKEN)),
        (completion("so", usage={"total_tokens": 9}), Reply("so", None, None, Stop.TOKEN)),
        (completion("so", usage=("many", -1)), Reply("so", None, None, Stop.TOKEN)),
        (completion("so", None), Reply("so", 5, 3, Stop.TOKEN)),
        (completion(None, "length"), Reply("", 5, 3, Stop.LENGTH)),
        (
            completion(
                [
                    {"type": "text", "text": "a"},
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "b"},
                ]
            ),
            Reply("ab", 5, 3, Stop.TOKEN),
        ),
        (
            Answer(body='{"choices": [{"message": {"tool_calls": []}, "finish_reason": "stop"}]}'),
            Reply("", None, None, Stop.TOKEN),
        ),
    ],
)
def test_replies(serve, answer: Answer, reply: Reply) -> None:
    assert ask(serve(lambda i, body: answer)) == reply


def test_the_models_of_an_endpoint(serve) -> None:
    server = serve(
        lambda i, body: Answer(body='{"data": [{"id": "a", "created": 0}, {"id": "b"}]}')
    )
    assert asyncio.run(endpoint_of(server).models()) == ["a", "b"]
    assert server.paths == ["/v1/models"]


@pytest.mark.parametrize("body", ["[]", '{"data": [{"name": "a"}]}', "<html>Models</html>"])
def test_models_that_cannot_be_read(serve, body: str) -> None:
    server = serve(lambda i, _: Answer(body=body))
    with pytest.raises(EndpointError, match="/v1/models did not answer as an OpenAI-compatible"):
        asyncio.run(endpoint_of(server).models())


# ---------------------------------------------------------------------- passing faults

PASSING = {
    **{f"HTTP {n}": Answer(n, "busy") for n in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    "nothing within 0.3 s": Answer(200, completion().body, delay=2),
    "RemoteProtocolError": Answer(200, completion().body, cut=20),
    "cut off after 40 bytes": Answer(200, completion().body[:40]),
    "cut off after 0 bytes": Answer(200, ""),
    "DecodingError": Answer(200, completion().body, {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_tried_again(serve, fault: str) -> None:
    server = serve(lambda i, body: PASSING[fault] if i < 2 else completion("at last"))
    assert ask(server, timeout=0.3 if "within" in fault else 5).text == "at last"
    assert len(server.asked) == 3
    assert server.asked[0] == server.asked[2]


@pytest.mark.parametrize("fault", PASSING)
def test_those_that_stay_can_be_told_from_others(serve, fault: str) -> None:
    server = serve(lambda i, body: PASSING[fault])
    with pytest.raises(Unanswered, match=f"did not answer in 2 tries: .*{fault}"):
        ask(server, tries=2, timeout=0.3 if "within" in fault else 5)
    assert len(server.asked) == 2


@contextmanager
def raw(*sent: bytes) -> Iterator[str]:
    """The address of a server that says this to whoever comes, the last of it for ever."""

    def talk(listener: socket.socket) -> None:
        with suppress(OSError), listener.accept()[0] as caller:
            caller.recv(1 << 16)
            for piece in chain(sent, repeat(sent[-1])):
                caller.sendall(piece)
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_an_answer_that_drips_is_late_too() -> None:
    """Every byte comes in time; the whole does not."""
    with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b" ") as url:
        settings = OpenAISettings(url=url, tries=1, timeout=0.2)
        with pytest.raises(Unanswered, match=r"nothing within 0\.2 s"):
            asyncio.run(ChatEndpoint(settings, "m").check())


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = OpenAISettings(url=f"http://127.0.0.1:{port}/v1", tries=2, pause=0.01)
    with pytest.raises(Unanswered, match="did not answer in 2 tries: ConnectError"):
        asyncio.run(ChatEndpoint(settings, "m").check())


def test_pauses_double(serve) -> None:
    server = serve(lambda i, body: Answer(500) if i < 4 else completion())
    ask(server, pause=0.04)
    pauses = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
    for pause, least in zip(pauses, (0.04, 0.08, 0.16, 0.32), strict=True):
        assert least <= pause < least + 0.5


def test_pauses_end_growing(serve, monkeypatch) -> None:
    server, slept = serve(lambda i, body: Answer(500)), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("inwit.engines.openai.endpoint.asyncio.sleep", sleep)
    with pytest.raises(Unanswered):
        ask(server, tries=9, pause=0.5)
    assert slept == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("wish", ["0.3", "date"])
def test_a_busy_server_is_left_alone_for_as_long_as_it_says(serve, status: int, wish: str) -> None:
    def busy(i: int, body: dict[str, Any]) -> Answer:
        if i:
            return completion()
        # a date has no fractions of seconds: 1.3 to 2.3 s from now, at least 0.3
        said = formatdate(time.time() + 1.3, usegmt=True) if wish == "date" else wish
        return Answer(status, "busy", {"Retry-After": said})

    server = serve(busy)
    ask(server)
    first, second = server.times
    assert 0.3 <= second - first < 2.5


@pytest.mark.parametrize(
    ("status", "wish", "least"),
    [(429, "3600", 0.3), (503, "inf", 0.3), (429, "soon", 0), (429, "-5", 0), (500, "3600", 0)],
)
def test_but_not_for_longer_than_a_request_may_take(serve, status, wish, least) -> None:
    later = Answer(status, "busy", {"Retry-After": wish})
    server = serve(lambda i, body: completion() if i else later)
    ask(server, timeout=0.3)
    first, second = server.times
    assert least <= second - first < least + 0.25


# ---------------------------------------------------------------------- lasting faults


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(401, '{"error": "bad key"}'), r"(?s)HTTP 401.*bad key.*INWIT_API_KEY"),
        (Answer(403), "HTTP 403"),
        (Answer(404, "no such model"), "(?s)HTTP 404.*no such model.*ends on /v1"),
        (Answer(307, headers={"Location": "http://elsewhere/"}), "HTTP 307"),
        (Answer(200, "<html>Hello</html>"), "OpenAI-compatible.*Hello"),
        (Answer(200, "null"), "OpenAI-compatible"),
        (Answer(200, "[1]"), "OpenAI-compatible"),
        (Answer(200, '{"choices": []}'), "OpenAI-compatible"),
        (Answer(200, '{"choices": ["text"]}'), "OpenAI-compatible"),
        (Answer(200, '{"choices": [{"finish_reason": "stop"}]}'), "OpenAI-compatible"),
        (completion(None, None), "OpenAI-compatible"),
        (completion(3), "OpenAI-compatible"),
        (completion([{"type": "text", "text": 3}]), "OpenAI-compatible"),
    ],
)
def test_what_will_not_get_better_is_not_tried_again(serve, answer: Answer, said: str) -> None:
    server = serve(lambda i, body: answer)
    with pytest.raises(EndpointError, match=said) as caught:
        ask(server)
    assert type(caught.value) is EndpointError
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(400, '{"error": "too long"}'), "HTTP 400.*too long"),
        (Answer(413, "too large"), "HTTP 413.*too large"),
        (Answer(422, "unexpected field"), "HTTP 422.*unexpected field"),
        (Answer(200, '{"error": {"message": "flagged"}}'), "HTTP 200.*flagged"),
        (completion("half", "content_filter"), "'content_filter'"),
        (completion(None, "tool_calls"), "'tool_calls'"),
    ],
)
def test_a_refusal_is_about_one_request(serve, answer: Answer, said: str) -> None:
    """The next question may be answered; this one is not tried again, and is no wrong answer."""
    server = serve(lambda i, body: answer if i == 0 else completion())
    endpoint = endpoint_of(server)

    async def two() -> None:
        with pytest.raises(Refused, match=said):
            await chat(endpoint)
        assert (await chat(endpoint)).text == "ok"

    asyncio.run(two())
    assert len(server.asked) == 2


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_generation_that_failed_is_tried_again_and_never_an_answer(serve, reason: str) -> None:
    server = serve(lambda i, body: completion("half an", reason) if i == 0 else completion("whole"))
    assert ask(server).text == "whole"
    assert len(server.asked) == 2


def test_what_the_request_is_called_can_be_set(serve) -> None:
    server = serve(lambda i, body: completion())
    ask(server, limit="max_completion_tokens", seeded=False)
    [body] = server.asked
    assert body["max_completion_tokens"] == 7
    assert not {"max_tokens", "seed"} & set(body)


# ---------------------------------------------------------------------- bounds


def test_at_most_so_many_requests_at_once(serve) -> None:
    def slow(i: int, body: dict[str, Any]) -> Answer:
        time.sleep(0.03)
        return completion(str(i))

    server = serve(slow)
    endpoint = endpoint_of(server, at_once=2)

    async def many() -> None:
        await asyncio.gather(*(chat(endpoint) for _ in range(8)))
        await endpoint.aclose()

    for _ in range(2):  # in two event loops, one after the other
        asyncio.run(many())
    assert server.most == 2
    assert len(server.asked) == 16
    assert len(server.callers) <= 4, "connections are used again"


def test_a_budget_counts_as_the_endpoint_does(serve) -> None:
    server = serve(lambda i, body: completion(usage=(5, 3)))
    endpoint = endpoint_of(server, budget=34)

    async def use_up() -> None:
        for n in range(1, 4):
            await chat(endpoint)
            assert endpoint.spent == n * 8
        await chat(endpoint)  # 24, 7 and about 3 of prompt: just so
        with pytest.raises(BudgetSpent, match="34 tokens does not cover 10 more: 32 are spent"):
            await chat(endpoint)

    asyncio.run(use_up())
    assert len(server.asked) == 4
    assert endpoint.spent == 32


@pytest.mark.parametrize(
    ("usage", "spent"),
    [
        (None, 7 + 3),  # 12 characters of prompt
        ({"completion_tokens": 2}, 2 + 3),
        ({"prompt_tokens": 9}, 7 + 9),
    ],
)
def test_what_is_not_counted_is_estimated(serve, usage: Any, spent: int) -> None:
    endpoint = endpoint_of(serve(lambda i, body: completion(usage=usage)))
    asyncio.run(chat(endpoint))
    assert endpoint.spent == spent


def test_requests_under_way_have_their_share_set_aside(serve) -> None:
    def slow(i: int, body: dict[str, Any]) -> Answer:
        time.sleep(0.05)
        return completion(usage=(0, 1))

    server = serve(slow)
    endpoint = endpoint_of(server, budget=20)

    async def together(n: int) -> list[Reply | BaseException]:
        asked = (chat(endpoint) for _ in range(n))
        return await asyncio.gather(*asked, return_exceptions=True)

    async def all_of_it() -> None:
        """Each may cost 10 and costs 1: two fit at once, and others wait for what they cost."""
        assert all(isinstance(reply, Reply) for reply in await together(4))
        assert endpoint.spent == 4 and server.most == 2
        kinds = [type(outcome).__name__ for outcome in await together(20)]
        assert sorted(set(kinds)) == ["BudgetSpent", "Reply"]
        assert endpoint.spent == 11  # 9 are left, and 10 might be needed

    asyncio.run(all_of_it())
    assert len(server.asked) == 11


def test_a_request_that_failed_leaves_nothing_set_aside(serve) -> None:
    server = serve(lambda i, body: Answer(500) if i < 2 else completion())
    endpoint = endpoint_of(server, budget=10, tries=1)

    async def fail_twice() -> None:
        for _ in range(2):
            with pytest.raises(Unanswered):
                await chat(endpoint)
        await chat(endpoint)

    asyncio.run(fail_twice())


def test_one_that_is_cancelled_leaves_nothing_set_aside(serve) -> None:
    slow = Answer(body="{}", delay=1)
    server = serve(lambda i, body: completion() if body["max_tokens"] == 7 else slow)
    endpoint = endpoint_of(server, budget=10, at_once=1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(chat(endpoint, 6), 0.05)
        await chat(endpoint)

    asyncio.run(give_up())


# ---------------------------------------------------------------------- connections


def test_one_connection_serves_many_requests(serve) -> None:
    server = serve(lambda i, body: completion())
    endpoint = endpoint_of(server)

    async def several() -> None:
        for _ in range(5):
            await chat(endpoint)
        assert len(server.callers) == 1
        await endpoint.aclose()
        await endpoint.aclose()
        await chat(endpoint)
        assert len(server.callers) == 2

    asyncio.run(several())


def test_an_endpoint_outlives_its_event_loop(serve) -> None:
    server = serve(lambda i, body: completion(str(i)))
    endpoint = endpoint_of(server, at_once=1)

    async def two() -> list[str]:  # the second has to wait for the gate, which belongs to a loop
        return [reply.text for reply in await asyncio.gather(chat(endpoint), chat(endpoint))]

    asyncio.run(endpoint.check())
    assert asyncio.run(two()) == ["1", "2"]
    assert asyncio.run(two()) == ["3", "4"]


# ---------------------------------------------------------------------- the key


def test_the_key_comes_from_the_environment(serve, monkeypatch) -> None:
    server = serve(lambda i, body: completion("."))
    ask(server)
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    ask(server)
    monkeypatch.setenv("INWIT_API_KEY", f" {KEY}\n")
    ask(server)
    assert server.keys == [None, "Bearer other", f"Bearer {KEY}"]
    assert KEY not in json.dumps(server.asked)


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("before", [0, 192])
def test_the_key_is_in_no_error(serve, monkeypatch, caplog, status: int, before: int) -> None:
    """Not even where the server sends it back, nor cut in two by the end of what is shown."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("INWIT_API_KEY", KEY)
    server = serve(lambda i, body: Answer(status, f"{' ' * before}Bearer {KEY} is not known"))
    endpoint = endpoint_of(server, tries=2)
    with pytest.raises(EndpointError) as caught:
        asyncio.run(chat(endpoint))
    said = [str(caught.value), repr(caught.value), repr(endpoint), repr(endpoint.settings)]
    for text in (*said, caplog.text):
        assert KEY[:6] not in text
    assert "Bearer **" in said[0] or before


def test_nor_where_it_comes_back_in_what_is_no_http(monkeypatch) -> None:
    monkeypatch.setenv("INWIT_API_KEY", KEY)
    with raw(f"HTTP/1.1 Bearer {KEY}\r\n\r\n".encode()) as url:
        endpoint = ChatEndpoint(OpenAISettings(url=url, tries=1), "m")
        with pytest.raises(Unanswered, match=r"RemoteProtocolError.*Bearer \*\*\*"):
            asyncio.run(endpoint.check())


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
def test_a_key_that_no_header_can_hold(serve, monkeypatch, key: str) -> None:
    monkeypatch.setenv("INWIT_API_KEY", key)
    server = serve(lambda i, body: completion())
    with pytest.raises(EndpointError, match="key in INWIT_API_KEY has characters") as caught:
        ask(server)
    assert key not in str(caught.value)
    assert not server.asked


# ---------------------------------------------------------------------- in a run


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
