"""Search: answer questions over several turns, with a BM25 index to look things up in.

solver       <think>Who is its director?</think> <search>Free Guy film director</search>
environment  <information>Doc 1(Title: Free Guy) Free Guy is … Doc 3(Title: …) …</information>
solver       <answer>Shawn Levy</answer>
"""

from inwit.envs.search.env import SearchQA, SearchSettings, first_action, information
from inwit.envs.search.index import Index, Passage, passages_of, read_corpus
from inwit.envs.search.scores import exact_match, f1

__all__ = [
    "Index",
    "Passage",
    "SearchQA",
    "SearchSettings",
    "exact_match",
    "f1",
    "first_action",
    "information",
    "passages_of",
    "read_corpus",
]
