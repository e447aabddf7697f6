"""The chat endpoint against a real server, transformers' own, and a real, if tiny, model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inwit.engines.openai import ChatEndpoint, EndpointError, OpenAISettings, Refused, Reply
from inwit.engines.torch import Loaded, load_model
from inwit.rows import Stop
from tests.engines.serving import served

MESSAGES = [("system", "solver"), ("user", "Q: 3 4 5")]
UNFINISHED = [*MESSAGES, ("assistant", "3")]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load_model("embedded:checkout", seed=0)


@pytest.fixture(scope="module")
def place(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder: Path = tmp_path_factory.mktemp("served") / "tiny"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    with served(folder) as place:
        yield place


@pytest.fixture
def endpoint(place: tuple[str, str]) -> ChatEndpoint:
    url, name = place
    return ChatEndpoint(OpenAISettings(url=url, tries=1), name)


def ask(endpoint: ChatEndpoint, messages: Any = MESSAGES, **options: Any) -> Reply:
    settings = {"max_tokens": 6, "temperature": 0.0, "seed": 1} | options
    return asyncio.run(endpoint.chat(messages, **settings))


def prompt_ids(loaded: Loaded, messages: Any = MESSAGES) -> list[int]:
    shown = [{"role": speaker, "content": text} for speaker, text in messages]
    return loaded.tokenizer.apply_chat_template(
        shown, add_generation_prompt=True, return_dict=True
    )["input_ids"]


def test_its_only_model(endpoint: ChatEndpoint) -> None:
    assert asyncio.run(endpoint.models()) == [endpoint.model]
    asyncio.run(endpoint.check("Q: 3"))
    with pytest.raises(EndpointError, match=r"HTTP (400|500)"):
        asyncio.run(endpoint.check())  # its tokenizer has no such word as ping


def test_it_says_what_the_model_says(endpoint: ChatEndpoint, loaded: Loaded) -> None:
    """The same text as the model in this process, and the same counts."""
    import torch

    shown = prompt_ids(loaded)
    whole = loaded.model.generate(torch.tensor([shown]), max_new_tokens=6, do_sample=False)[0]
    said = whole[len(shown) :].tolist()
    assert loaded.tokenizer.eos_token_id not in said
    reply = ask(endpoint)
    assert reply == Reply(loaded.tokenizer.decode(said), len(shown), 6, Stop.LENGTH)
    assert set(reply.text.split()) <= set(loaded.tokenizer.get_vocab())
    assert endpoint.spent == len(shown) + 6
    assert ask(endpoint) == reply


def test_samples_follow_their_seed(endpoint: ChatEndpoint) -> None:
    replies = [ask(endpoint, temperature=1.0, seed=seed) for seed in (1, 1, 2, 3, 4)]
    assert replies[0] == replies[1]
    assert len({reply.text for reply in replies}) == 4


def test_an_answer_that_ends_by_itself(endpoint: ChatEndpoint, loaded: Loaded) -> None:
    """The stop token counts, and is no part of the text."""
    bias = {"logit_bias": {str(loaded.tokenizer.eos_token_id): 4.0}}
    eager = ChatEndpoint(endpoint.settings.model_copy(update={"extra": bias}), endpoint.model)
    reply = ask(eager, temperature=1.0, max_tokens=60)
    assert reply.stop is Stop.TOKEN
    assert "." not in reply.text
    assert reply.tokens == len(reply.text.split()) + 1 < 60


def test_another_models_name(endpoint: ChatEndpoint) -> None:
    stranger = ChatEndpoint(endpoint.settings, "gpt-9")
    with pytest.raises(EndpointError, match=r"(?s)HTTP 400.*gpt-9.*the model's name") as caught:
        ask(stranger)
    assert type(caught.value) is Refused


def test_an_address_beside_the_api(endpoint: ChatEndpoint) -> None:
    settings = OpenAISettings(url=endpoint.settings.url.removesuffix("/v1"), tries=1)
    with pytest.raises(EndpointError, match=r"(?s)HTTP 404.*ends on /v1"):
        ask(ChatEndpoint(settings, endpoint.model))


def test_it_cannot_go_on_with_an_unfinished_message(endpoint: ChatEndpoint, loaded: Loaded) -> None:
    """`transformers serve` (5.24, 5.25) knows neither of the two fields, and says so.

    In `chat_template_kwargs` it does not take them either: it has set `add_generation_prompt` by
    then, and breaks (5.24: 500) or refuses (5.25: 400). Unasked, it closes the last message and
    begins another.
    """
    with pytest.raises(EndpointError, match=r"HTTP 422.*continue_final_message"):
        ask(endpoint, UNFINISHED, continue_last=True)
    kwargs = {"continue_final_message": True}
    settings = endpoint.settings.model_copy(update={"extra": {"chat_template_kwargs": kwargs}})
    with pytest.raises(EndpointError, match=r"HTTP (400|500)"):
        ask(ChatEndpoint(settings, endpoint.model), UNFINISHED)
    assert ask(endpoint, UNFINISHED).prompt_tokens == len(prompt_ids(loaded, UNFINISHED))


def test_many_at_once(endpoint: ChatEndpoint) -> None:
    async def many() -> list[Reply]:
        one = {"max_tokens": 6, "temperature": 0.0, "seed": 0}
        replies = await asyncio.gather(*(endpoint.chat(MESSAGES, **one) for _ in range(20)))
        await endpoint.aclose()
        return replies

    assert set(asyncio.run(many())) == {ask(endpoint)}
