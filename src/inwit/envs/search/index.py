"""Passages out of JSON Lines, and a BM25 index of them that is kept on disk.

The arrays of the index are memory-mapped; the passages themselves are held in memory. Nothing is
fetched: what is not in the files is not found.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bm25s
import numpy as np

from inwit.envs.answers import normalised
from inwit.envs.records import HUB, BadRecord, Fault, read_records
from inwit.errors import InwitError

WORDS = {"token_pattern": r"(?u)\w+", "stopwords": "english"}
"""How bm25s tells words apart, and which it leaves out (Lucene's English list)."""

WEIGHTS = {"method": "lucene", "k1": 1.5, "b": 0.75}

TITLE = 2
"""How often a title is counted: on every question set tried, twice finds more than once."""

LONGEST_QUERY = 1000
"""Characters of a query that are looked at."""

SEAL = "seal"
"""The file of a cached index that holds the digest of all others; written last."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph. White space is single blanks; the title may be empty."""

    title: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """Passages that are equal by this are one: case and punctuation say nothing."""
        return normalised(self.title), normalised(self.text)


def default_cache() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inwit" / "search"


# ---------------------------------------------------------------------- reading


def passages_of(fields: Mapping[str, Any]) -> list[Passage]:
    """Those of a question's `paragraphs`, or the one that a record of a corpus is.

    A paragraph has a `title`, or none, and a `text` or `sentences`. Raises BadRecord.
    """
    paragraphs = fields.get("paragraphs", [fields])
    if not isinstance(paragraphs, list):
        raise BadRecord("'paragraphs' is not a list", "Write a list of {title, text}.")
    return [_passage(each) for each in paragraphs]


def _passage(fields: object) -> Passage:
    if not isinstance(fields, Mapping):
        raise BadRecord("a paragraph is not an object", "Write {title, text}.")
    title, text = fields.get("title") or "", fields.get("text")
    if text is None:
        sentences = fields.get("sentences")
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise BadRecord(
                "a passage has neither a 'text' nor a list of 'sentences'", "Write {title, text}."
            )
        text = " ".join(sentences)
    if not isinstance(title, str) or not isinstance(text, str):
        raise BadRecord("a passage's 'title' or 'text' is no text", "Write {title, text}.")
    return Passage(" ".join(title.split()), " ".join(text.split()))


def read_corpus(files: Iterable[Path], questions: bool = False) -> list[Passage]:
    """The distinct passages of some files, in order.

    Args:
        questions: the files hold questions, which may have no paragraphs.

    Raises InwitError, naming the first record that holds no passage.
    """
    found: dict[tuple[str, str], Passage] = {}
    for file in files:
        if not (str(file).startswith(HUB) or file.is_file()):
            raise InwitError(f"There is no corpus file '{file}'.", "Check env.corpus.")
        for passage in _read(file, questions):
            if passage.text:
                found.setdefault(passage.key, passage)
    return list(found.values())


def _read(file: Path, questions: bool) -> Iterator[Passage]:
    for record in read_records(file):
        if isinstance(record, Fault):
            raise InwitError(f"{record.where}: {record.why}.", record.fix)
        if questions and record.fields.get("paragraphs") is None:
            continue
        try:
            yield from passages_of(record.fields)
        except BadRecord as bad:
            raise InwitError(f"{record.where}: {bad.why}.", bad.fix) from bad


# ---------------------------------------------------------------------- searching


class Index:
    """BM25 over passages (bm25s). Equal passages and queries give equal results.

    Args:
        cache: a folder in which indexes are kept, each under a name made of what is in it; the
            default is the user's cache folder. One that is torn is built again, and where nothing
            can be written the index is held in memory.

    Raises InwitError where there is no word to be found.
    """

    def __init__(self, passages: Sequence[Passage], cache: Path | None = None) -> None:
        self.passages = tuple(passages)
        folder = (cache or default_cache()) / _name(self.passages)
        try:
            self._bm25 = _load(folder)
        except (OSError, ValueError):  # absent, torn, or just being replaced
            self._bm25 = _build(self.passages)
            # a full or read-only disk; another process was first, or replaces it as it is read
            with suppress(OSError, ValueError):
                _store(self._bm25, folder)
                self._bm25 = _load(folder)

    def search(self, query: str, k: int) -> list[Passage]:
        """At most k passages that share a word with the query, best first.

        Of equally good ones, those that come first in the corpus.
        """
        [words] = _words([query[:LONGEST_QUERY]], return_ids=False)
        ids = self._bm25.get_tokens_ids(words)
        if not ids:
            return []
        scores = self._bm25.get_scores(ids)
        k = min(k, len(scores))
        least = np.partition(scores, -k)[-k]
        found = np.flatnonzero((scores >= least) & (scores > 0))
        best = found[np.argsort(-scores[found], kind="stable")][:k]
        return [self.passages[i] for i in best]


def _words(texts: Sequence[str], **how: Any) -> Any:
    return bm25s.tokenize([_folded(text) for text in texts], **WORDS, **how, show_progress=False)


def _folded(text: str) -> str:
    """Lower case without accents: models and questions spell names as their keyboard lets them."""
    letters = unicodedata.normalize("NFKD", text)
    return "".join(c for c in letters if not unicodedata.combining(c)).lower()


# ---------------------------------------------------------------------- keeping


def _name(passages: Sequence[Passage]) -> str:
    """A digest of everything that an index depends on."""
    versions = [bm25s.__version__, unicodedata.unidata_version]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([versions, WORDS, WEIGHTS, TITLE]).encode())
    for passage in passages:
        line = json.dumps([passage.title, passage.text])  # ASCII, whatever the text
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _build(passages: Sequence[Passage]) -> Any:
    words = _words([f"{p.title} " * TITLE + p.text for p in passages])
    if not words.vocab:
        raise InwitError("The corpus holds no words.", "Check env.corpus.")
    bm25 = bm25s.BM25(**WEIGHTS)
    bm25.index(words, create_empty_token=False, show_progress=False)
    return bm25


def _store(bm25: Any, folder: Path) -> None:
    """Write beside and rename, so that the folder is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".", ignore_cleanup_errors=True) as beside:
        new = Path(beside) / "new"
        bm25.save(new, show_progress=False)
        (new / SEAL).write_text(_digest(new))
        if folder.exists():
            folder.rename(Path(beside) / "torn")
        new.rename(folder)


def _load(folder: Path) -> Any:
    """Raises OSError where there is none, ValueError where it is not what was written."""
    if (folder / SEAL).read_text() != _digest(folder):
        raise ValueError(f"'{folder}' is torn")
    return bm25s.BM25.load(folder, mmap=True, show_progress=False)


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.name != SEAL:
            with path.open("rb") as file:
                part = hashlib.file_digest(file, "blake2b").hexdigest()
            digest.update(f"{path.name} {part}\n".encode())
    return digest.hexdigest()
