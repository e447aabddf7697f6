"""Files that a kill at any moment leaves whole, and data as JSON has it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def write_json(path: Path, value: object) -> None:
    """Write beside and rename, so that the file is there whole or not at all."""
    write_whole(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def plain(value: object) -> Any:
    """Data as JSON has it: NaN is null, sets are sorted lists, dataclasses are objects."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def append_jsonl(path: Path, values: Iterable[object]) -> None:
    """Add lines to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(plain(v), ensure_ascii=False) + "\n" for v in values)


def cut_torn_line(path: Path) -> None:
    """Take away a last line that a kill cut short, so that the next one is not appended to it."""
    with path.open("r+b") as file:
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All lines of a file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]
