"""SkyRL's real server, started by the tests on loopback and ended by them."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import httpx
import pytest

from inwit.engines.tinker import TinkerSettings
from inwit.engines.tinker.engine import TinkerEngine
from tests.engines.models import POSITIONS, model_of, tokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "tinker-server.sh"
RANK = 8


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass
class Server:
    """One server, its database and its checkpoints. It can be killed, and started again."""

    model: Path
    place: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, patience: float = 180.0) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["sh", str(SCRIPT), "serve", str(self.model), str(self.port)],
                env=os.environ | {"TINKER_DATA": str(self.place), "JAX_PLATFORMS": "cpu"},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.kill)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=5).status_code == 200:
                    return
            time.sleep(0.2)
        end = (self.place / "log").read_text("utf-8", "replace")[-3000:]
        raise RuntimeError(f"SkyRL's server did not start:\n{end}")

    def kill(self) -> None:
        """The server and its engine, at once, as a machine that goes down."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


def missing() -> str | None:
    """Why there is no server to test against; None where there is one."""
    found = subprocess.run(["sh", str(SCRIPT), "where"], capture_output=True, text=True)
    return None if found.returncode == 0 else found.stderr.strip()


@cache
def serving(model: Path) -> Server:
    """A server of this model folder, up until the tests end."""
    if why := missing():
        pytest.skip(why)
    place = Path(tempfile.mkdtemp(prefix="inwit-tinker-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    server = Server(model, place)
    server.start()
    return server


@cache
def tiny_model() -> Path:
    """The tests' tiny Qwen3 with its tokenizer, as a folder."""
    folder = Path(tempfile.mkdtemp(prefix="inwit-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model_of("qwen3").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def engine_at(url: str, model: Path, *, seed: int = 0, pipelined: bool = False) -> TinkerEngine:
    settings = TinkerSettings(url=url, rank=RANK, patience=120.0, pipelined=pipelined)
    return TinkerEngine(settings, tokenizer(), str(model), POSITIONS, seed)
