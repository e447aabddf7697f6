"""The command line. It reads arguments, calls the library, and prints; nothing is decided here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

# before transformers is imported: bars of its own would break the live line
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from rich.markup import escape

from inwit.cli import checking, evaluating, listing, training
from inwit.cli.common import app, err
from inwit.errors import InwitError

__all__ = ["app", "checking", "evaluating", "listing", "main", "training"]


def main(run: Callable[[], Any] = app) -> None:
    """Entry point: errors of the user's are printed without a traceback, and exit with 2."""
    try:
        run()
    except InwitError as error:
        err.print(f"[bold red]error[/] {escape(error.what)}", highlight=False)
        if error.fix:
            err.print(f"      {escape(error.fix)}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)
