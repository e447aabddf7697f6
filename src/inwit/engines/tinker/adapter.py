"""The trained adapter, fetched from a server as a Hugging Face directory."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import time
import uuid
from pathlib import Path

import httpx
from safetensors import safe_open

from inwit.engines.base import EngineLost
from inwit.engines.tinker.connection import Connection
from inwit.engines.torch import load_model
from inwit.errors import InwitError


def fetch(connection: Connection, source: str, folder: Path, *, merged: bool) -> None:
    """Write the adapter into a folder, or the base model with the adapter merged into it.

    Raises:
        EngineLost: the server does not hand it out.
        InwitError: it is no adapter of the model at `source`.
    """
    archive = _archive(connection)
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(place, filter="data")
        config = next(Path(place).rglob("adapter_config.json"), None)
        if config is None:
            raise InwitError("What the Tinker server saved holds no adapter.", "Look there.")
        _name_targets(config)
        if merged:
            _merge(source, config.parent, folder)
            return
        for file in config.parent.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())


def _name_targets(config: Path) -> None:
    """Say which modules have an adapter: left out, peft guesses, and drops the others' weights."""
    settings = json.loads(config.read_text("utf-8"))
    if not settings.get("target_modules"):
        with safe_open(config.parent / "adapter_model.safetensors", "pt") as file:
            names = [name for name in file.keys() if name.endswith(".lora_A.weight")]  # noqa: SIM118
        settings["target_modules"] = sorted({name.split(".")[-3] for name in names})
        config.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _merge(source: str, adapter: Path, folder: Path) -> None:
    from peft import PeftModel

    loaded = load_model(source)
    try:
        model = PeftModel.from_pretrained(loaded.model, adapter)
    except (ValueError, RuntimeError, KeyError) as error:
        raise InwitError(
            f"The server's adapter does not fit '{source}': {error}",
            "model.path must be the model that the server has; or set engine.export = 'adapter'.",
        ) from error
    model.merge_and_unload().save_pretrained(folder)


def _archive(connection: Connection) -> bytes:
    """The adapter as the server packs it.

    It answers with another address, which may be of somebody else: the key does not go there. The
    SDK's own call is not used: at 0.22 it follows the address, and then refuses what it gets.
    """
    name = f"final-{uuid.uuid4().hex[:8]}"
    training = connection.training
    saved = str(connection.now(training.save_weights_for_sampler(name)).path)
    here = saved.removeprefix(f"tinker://{training.model_id}/")
    address = (
        f"{connection.address}/api/v1/training_runs/{training.model_id}/checkpoints/{here}/archive"
    )
    patience = connection.settings.patience
    deadline = time.monotonic() + patience
    try:
        while True:
            answer = httpx.get(address, headers={"X-API-Key": connection.key}, timeout=patience)
            if answer.status_code != 503 or time.monotonic() > deadline:
                break
            time.sleep(5.0)  # it is being packed
        if answer.is_redirect:
            place = httpx.URL(address).join(answer.headers.get("location", ""))
            answer = httpx.get(place, timeout=patience, follow_redirects=True)
    except httpx.HTTPError as error:
        # not its text: an address may hold a key of its own
        raise EngineLost(
            f"The trained adapter cannot be fetched: {type(error).__name__}.", KEPT
        ) from error
    if answer.status_code != 200:
        raise InwitError(
            f"The trained adapter cannot be fetched: the server answers {answer.status_code}.", KEPT
        )
    return answer.content


KEPT = "It is kept at the server, and in the run's last checkpoint."
