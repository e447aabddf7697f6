"""A session at a server, and what becomes of its faults.

Asking for a sample twice costs time; adding a gradient twice is another update. The SDK repeats
every request that failed, and not every server notices. Here a request that changes something is
repeated only where the server cannot have begun it; where nobody can tell, the session is given
up (`EngineLost`), and the run goes back to its last checkpoint.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import httpx

from inwit.engines.base import EngineLost
from inwit.engines.tinker.settings import KEY, TinkerSettings
from inwit.errors import InwitError

os.environ.setdefault("TINKER_TELEMETRY", "0")  # what fails here is nobody else's business

import tinker
from tinker._client import AsyncTinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
from tinker.lib.retry_handler import RetryConfig
from tinker.lib.retryable_exception import RetryableException

logger = logging.getLogger("inwit")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Future(Protocol[T_co]):
    """What the SDK gives for an answer that is still to come."""

    def result(self, timeout: float | None = None) -> T_co: ...


NO_KEY = "tml-no-key"
"""Servers of one's own ask for none; the SDK wants something of this form."""

FAULTS = (
    tinker.TinkerError,
    RetryableException,
    httpx.HTTPError,
    OSError,
    TimeoutError,
    concurrent.futures.TimeoutError,
    asyncio.TimeoutError,
    ValueError,  # what the SDK makes of a refusal
)


def never_begun(error: Exception) -> bool:
    """Whether a request that failed so was surely not begun: no connection, or sent away.

    Not 503: what stands before a server says so too when the server goes away in the middle.
    """
    if isinstance(error, tinker.APIStatusError):
        return error.status_code == 429
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


class Connection:
    """A session, and one LoRA adapter in it that learns.

    Args:
        base_model: what the server calls the model.
        seed: of the adapter's random start.
    """

    def __init__(self, settings: TinkerSettings, base_model: str, seed: int) -> None:
        self.settings = settings
        self.base_model = base_model
        self.seed = seed
        self.means = False
        if settings.url is None and not os.environ.get(KEY):
            raise InwitError(
                f"The hosted server wants a key, and ${KEY} is not set.",
                f"Set {KEY}, or engine.url to a server of your own.",
            )
        self.open()

    # ------------------------------------------------------------------ beginning and ending

    def open(self) -> None:
        """Reach the server, begin a session, and make an adapter that has learned nothing.

        Raises InwitError where the server does not have the model, EngineLost where it cannot be
        reached in time.
        """
        self._wait()
        self.service = self._told(
            lambda: tinker.ServiceClient(
                api_key=self.key, base_url=self.settings.url, max_retries=0
            )
        )
        holder: Any = self.service.holder
        holder._is_retryable_exception = never_begun
        try:
            self._check_model()
            self._tidy()
            self.training = self._new_adapter()
            self.sampling = self.refreshed()
            self.base = self._told(
                lambda: self.service.create_sampling_client(
                    base_model=self.base_model, retry_config=self._patient()
                )
            )
        except BaseException:
            holder.close()
            raise

    def reopen(self) -> None:
        """Leave what is left of the session, and begin another."""
        self.close()
        self.open()

    def close(self) -> None:
        """Let the server have the adapter's place back, if it still hears us."""
        try:
            self._unload(self.training, patience=5.0)
        except EngineLost as error:
            logger.debug("the adapter was not unloaded: %s", error)
        self.service.holder.close()  # type: ignore[no-untyped-call]

    @property
    def key(self) -> str:
        return os.environ.get(KEY) or NO_KEY

    @property
    def address(self) -> str:
        """The server's root."""
        return self.settings.url or str(AsyncTinker(api_key=self.key).base_url).rstrip("/")

    def _patient(self) -> RetryConfig:
        return RetryConfig(progress_timeout=self.settings.patience)

    def _wait(self) -> None:
        """Until the server is up: it may be starting, or be started again."""
        if self.settings.url is None:
            return
        deadline = time.monotonic() + self.settings.patience
        pause, why = 0.5, ""
        while True:
            try:
                answer = httpx.get(f"{self.settings.url}/api/v1/healthz", timeout=10.0)
                if answer.status_code == 200:
                    return
                why = f"it answers {answer.status_code}"
            except httpx.HTTPError as error:
                why = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise EngineLost(
                    f"The Tinker server {self.settings.url} is not there: {why}.",
                    "Start it, or check engine.url.",
                )
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _check_model(self) -> None:
        found = self._told(self.service.get_server_capabilities)
        names = [str(model.model_name) for model in found.supported_models]
        if self.base_model not in names:
            raise InwitError(
                f"The Tinker server has no model '{self.base_model}', but {', '.join(names)}.",
                "Set engine.base_model to one of these.",
            )

    def _tidy(self) -> None:
        """Take steps of an adapter that is thrown away, the first with what others left there.

        SkyRL's server on JAX keeps the gradients of an adapter that went away before its step, for
        the next one in its place, which is the lowest that is free: this one's, if nobody else
        comes or goes meanwhile. The steps also show how the server adds up losses: two equal datums
        double a sum, and leave a mean as it is.
        """
        adapter = self._new_adapter()
        _, one, two = [self._norm_of(adapter, copies) for copies in (1, 1, 2)]
        self._unload(adapter, self.settings.patience)
        if one == 0 or two == 0:
            raise EngineLost(
                "The Tinker server took a step before its gradient.", "Begin the run again."
            )
        self.means = one is not None and two is not None and two < 1.5 * one

    def _norm_of(self, adapter: tinker.TrainingClient, copies: int) -> float | None:
        """Of the gradient of so many equal datums, where the server tells."""
        values: dict[str, Any] = {
            "target_tokens": [1, 2, 3],
            "weights": [1.0, 1.0, 1.0],
            "logprobs": [0.0, 0.0, 0.0],
            "advantages": [1.0, 1.0, 1.0],
        }
        one = tinker.Datum(tinker.ModelInput.from_ints([0, 1, 2]), values)
        self.now(adapter.forward_backward([one] * copies, "importance_sampling"))
        taken = adapter.optim_step(tinker.AdamParams(learning_rate=0.0))
        return grad_norm(self.now(taken).metrics)

    def _new_adapter(self) -> tinker.TrainingClient:
        made = self.service._create_lora_training_client_submit(
            base_model=self.base_model,
            rank=self.settings.rank,
            seed=self.seed,
            train_mlp=True,
            train_attn=True,
            train_unembed=False,
            user_metadata=None,
        )
        return self.now(made)

    def _unload(self, adapter: tinker.TrainingClient, patience: float) -> None:
        holder = self.service.holder

        async def unload() -> None:
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                request = tinker.types.UnloadModelRequest(model_id=adapter.model_id)
                await client.models.unload(request=request)

        self.now(holder.run_coroutine_threadsafe(unload()), patience)

    # ------------------------------------------------------------------ asking

    def refreshed(self) -> tinker.SamplingClient:
        """The adapter as it is now, to sample from. Blocks."""
        session = self.now(self.training._save_weights_for_sampler_impl(None, None))
        made = tinker.SamplingClient.create(
            self.service.holder,
            sampling_session_id=str(session),
            retry_config=self._patient(),
        )
        self.sampling = self.now(made)
        return self.sampling

    def now(self, future: Future[T], patience: float | None = None) -> T:
        """An answer, waited for here. Raises EngineLost where there is none in time."""
        return self._told(lambda: future.result(timeout=patience or self.settings.patience))

    def _told(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except FAULTS as error:
            raise self._lost(error) from error

    async def answer(self, awaited: Awaitable[T]) -> T:
        """The same, awaited."""
        try:
            return await asyncio.wait_for(awaited, self.settings.patience)
        except FAULTS as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> EngineLost:
        what = " ".join(str(error).split())[:300] or type(error).__name__
        return EngineLost(
            f"The session at the Tinker server {self.settings.url or '(hosted)'} is lost: {what}",
            "If the server is well, look there for the reason.",
        )


def grad_norm(metrics: object) -> float | None:
    """The gradient's norm out of what a server says of a step, if it says it."""
    found = metrics if isinstance(metrics, dict) else {}
    return next((float(v) for k, v in found.items() if k.endswith("grad_norm")), None)
