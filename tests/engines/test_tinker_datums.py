"""What rows become for the Tinker protocol, and what its faults mean. No server is needed."""

from __future__ import annotations

import dataclasses
import math

import httpx
import pytest
import tinker
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inwit.engines.batch import Batch
from inwit.engines.tinker import TinkerSettings
from inwit.engines.tinker.connection import Connection, grad_norm, never_begun
from inwit.engines.tinker.datums import Reduction, Work, datum, logprobs_of, needs_scoring
from inwit.errors import InwitError
from inwit.objectives import Objective, loss_of, token_terms
from inwit.rows import Behaviour
from tests.helpers import make_row

ROW = make_row((7, 8, 9), prompt=(4, 5), mask=(True, False, True), logprobs=(-1.0, -2.0, -3.0))


def held(found: tinker.Datum, name: str) -> list[float]:
    return list(found.loss_fn_inputs[name].data)


def test_a_datum_predicts_each_token_from_those_before_it() -> None:
    """Ids 4 5 | 7 8 9: four places read 4 5 7 8, and 7 is predicted where 5 is read."""
    found = datum(ROW, logprobs=ROW.logprobs, advantages=(0.5, 0.6, 0.7))
    assert found.model_input.to_ints() == [4, 5, 7, 8]
    assert held(found, "target_tokens") == [5, 7, 8, 9]
    assert held(found, "weights") == [0, 1, 0, 1]
    assert held(found, "logprobs") == [0, -1, 0, -3]
    assert held(found, "advantages") == pytest.approx([0, 0.5, 0, 0.7])


def test_what_is_masked_out_is_never_sent() -> None:
    """LESSONS 11: nothing stands there, whatever the row holds."""
    dirty = dataclasses.replace(ROW, logprobs=(-1.0, math.nan, -3.0))
    found = datum(dirty, logprobs=dirty.logprobs, advantages=(0.5, math.inf, 0.7))
    assert all(math.isfinite(x) for name in ("logprobs", "advantages") for x in held(found, name))


@given(st.integers(0, 5))
def test_answers_are_read_from_their_end(before: int) -> None:
    """Some servers tell one log-prob less than there are tokens, some begin with none."""
    answer = [None] * before + [-0.1, -0.2, -0.3]
    assert logprobs_of(ROW, answer) == (-0.1, 0.0, -0.3)


@pytest.mark.parametrize("means", [False, True])
def test_a_servers_mean_is_undone(means: bool) -> None:
    """Whatever a server does with the tokens' terms, the plain sum of ours comes out."""
    rows = [make_row((1,) * n, advantages=(0.3 * n,) * n, episode=str(n)) for n in (1, 4, 6)]
    terms = [[Reduction(means).undone(row, len(rows)) * a for a in row.advantages] for row in rows]
    if means:
        server = sum(sum(each) / len(each) for each in terms) / len(rows)
    else:
        server = sum(map(sum, terms))
    assert server == pytest.approx(sum(sum(row.advantages) for row in rows))


def test_only_rows_of_another_context_need_scoring() -> None:
    assert not needs_scoring(ROW)
    assert needs_scoring(dataclasses.replace(ROW, behaviour=Behaviour.DEMONSTRATION))
    again = dataclasses.replace(ROW, sampled_context="another")
    assert again.reconditioned and needs_scoring(again)


@pytest.mark.parametrize("objective", [Objective(), Objective("gspo"), Objective(kl=0.3)])
def test_the_gradient_handed_over_is_the_losss(objective: Objective) -> None:
    """d/dx of exp(x - now) * credit at now is credit: what is sent as advantages is -dL/dlogp."""
    rows = [make_row((1, 2), advantages=(1.0, 1.0)), make_row((3, 4, 5), advantages=(-0.5,) * 3)]
    batch = Batch(**Batch.columns(rows))
    shape = batch.mask.shape
    generator = torch.Generator().manual_seed(0)
    now, old, anchor = (-torch.rand(shape, generator=generator) for _ in range(3))
    scales = torch.tensor([0.2, 0.7])
    work = Work.of(batch, objective, scales, old, now, anchor)
    assert (work.loss, work.sampled is now) == ("importance_sampling", True)
    credit = work.credit

    def loss(logp: torch.Tensor) -> float:
        terms = token_terms(
            objective, logp, old, batch.advantages, batch.weights, batch.mask, anchor
        )
        return float(loss_of(terms, scales, objective.kl))

    step = 1e-3
    for b, t in batch.mask.nonzero().tolist():
        up, down = now.clone(), now.clone()
        up[b, t] += step
        down[b, t] -= step
        slope = (loss(up) - loss(down)) / (2 * step)
        assert -float(credit[b, t]) == pytest.approx(slope, abs=2e-3)
    assert not credit[~batch.mask].any()


# ---------------------------------------------------------------------- faults and settings


def status_error(status: int) -> tinker.APIStatusError:
    request = httpx.Request("POST", "http://server/api/v1/optim_step")
    return tinker.APIStatusError("no", response=httpx.Response(status, request=request), body=None)


def connection_error(cause: Exception) -> tinker.APIConnectionError:
    error = tinker.APIConnectionError(request=httpx.Request("POST", "http://server"))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "safe"),
    [
        (status_error(429), True),
        (status_error(503), False),
        (status_error(500), False),
        (status_error(502), False),
        (status_error(408), False),
        (connection_error(httpx.ConnectError("refused")), True),
        (connection_error(httpx.ReadError("cut")), False),
        (connection_error(httpx.RemoteProtocolError("cut")), False),
        (connection_error(httpx.ReadTimeout("slow")), False),
    ],
)
def test_only_what_was_never_begun_is_sent_again(error: Exception, safe: bool) -> None:
    assert never_begun(error) is safe


def test_the_hosted_server_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(InwitError, match="TINKER_API_KEY"):
        Connection(TinkerSettings(), "some/model", 0)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://me:secret@host", "http://"]
)
def test_urls_that_are_none_or_hold_a_key_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="url"):
        TinkerSettings(url=url)


def test_a_gradients_norm_is_found_where_a_server_tells_it() -> None:
    assert grad_norm({"skyrl.ai/grad_norm": 0.5, "skyrl.ai/learning_rate": 1.0}) == 0.5
    assert grad_norm({}) is None
    assert grad_norm(None) is None
