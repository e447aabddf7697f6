"""A real OpenAI-compatible server for tests: transformers' own, on loopback, as a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE = 120.0
"""Seconds to come up; it takes five or so."""

UP = re.compile(r"running on (http://\S+)")


@contextmanager
def served(model_dir: Path) -> Iterator[tuple[str, str]]:
    """(url, model name) of a server that answers for a saved model, and is gone afterwards."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(model_dir, folder / model_dir.name)
        _make_servable(folder / model_dir.name)
        log = folder / "log"
        command = [
            f"{sysconfig.get_path('scripts')}/transformers",
            *("serve", model_dir.name, "--host", "127.0.0.1", "--port", "0", "--device", "cpu"),
        ]
        alone = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=os.environ | alone, stdout=out, stderr=out
            )
        try:
            yield f"{_address(process, log)}/v1", model_dir.name
        finally:
            _end(process)


def _make_servable(folder: Path) -> None:
    """Let the server sample, and give back what was sampled and nothing else.

    It heeds a temperature only where the model's own settings say that it samples. And it reads a
    model of a known family as that family writes: the answer of a Qwen with another chat template
    would begin with the whole prompt, and end with the stop token.
    """
    tokenizer = _change(folder / "tokenizer_config.json")
    template = {
        "start_anchor_pattern": r"\Z",
        "fields": {"content": {"content": "text", "close": tokenizer["eos_token"]}},
    }
    _change(folder / "tokenizer_config.json", response_template=template)
    _change(folder / "generation_config.json", do_sample=True, top_k=0, top_p=1.0)


def _change(file: Path, **settings: object) -> dict[str, Any]:
    found = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(found | settings), encoding="utf-8")
    return found


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens: at a port of its own choice, as soon as it says so."""
    latest = time.monotonic() + DEADLINE
    while time.monotonic() < latest and process.poll() is None:
        if up := UP.search(log.read_text("utf-8")):
            return up[1]
        time.sleep(0.05)
    raise RuntimeError(f"The server did not come up:\n{log.read_text('utf-8')[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
