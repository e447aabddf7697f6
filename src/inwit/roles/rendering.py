"""From role prompts to token ids, once: token-in/token-out.

The model's own chat template is rendered one time per prompt, with marks where the fields go; from
then on fields are filled in as text. What a policy sampled is never re-encoded: the next turn's
prompt is the earlier ids, and after them only the ids of what was added (LESSONS 13, 14).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from inwit.errors import InwitError
from inwit.roles.conditions import View
from inwit.roles.prompt import FIELD, Prompt
from inwit.rows import Completion, Ids, Stop

MARK = "inwit-mark-{}-inwit"
MARKED = re.compile(r"inwit-mark-(\w+)-inwit")


class Renderer:
    """Renders for one tokenizer. Raises InwitError where the tokenizer has no chat template.

    Args:
        tokenizer: the model's own; its chat template decides the format.
        template_settings: passed on to the template, such as `enable_thinking` of Qwen3.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise InwitError(
                f"The tokenizer of '{tokenizer.name_or_path}' has no chat template.",
                "Use an instruction-tuned model, or set `tokenizer.chat_template` and save it.",
            )
        self.tokenizer = tokenizer
        self._settings = dict(template_settings or {})
        self._skeletons: dict[Prompt, str] = {}
        # not `all_special_tokens`: that leaves out those without a name of their own, such as
        # Llama-3's `<|start_header_id|>` and Gemma-3's `<end_of_turn>`
        flagged = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        specials = {*tokenizer.all_special_tokens, *flagged.values()}
        pattern = "|".join(map(re.escape, sorted(specials, key=len, reverse=True)))
        self._special = re.compile(pattern or "(?!)")
        self._special_ids = frozenset((*tokenizer.all_special_ids, *flagged))
        self._after_turn = self._render_after_turn()
        self.stop_ids = self._find_stop_ids()

    def prompt_ids(self, prompt: Prompt, view: View) -> Ids:
        """The ids of a role's prompt. Raises ForbiddenField where it shows what it may not."""
        if prompt not in self._skeletons:
            self._skeletons[prompt] = self._skeleton(prompt)
        return self._encode(MARKED.sub(lambda m: self._plain(view[m[1]]), self._skeletons[prompt]))

    def continuation_ids(self, completion: Completion, observation: str) -> Ids:
        """The ids between what was sampled and the next turn: end of turn, observation, opening.

        A completion that ended on its stop token has already written the end of its turn.
        """
        closing, opening = self._after_turn
        text = opening.replace(MARK.format("observation"), self._plain(observation))
        if completion.stop is Stop.TOKEN:
            return self._encode(text)
        return self._encode(closing + text)

    def completion_ids(self, text: str) -> Ids:
        """A demonstration as the policy would have written it, stop token included."""
        return (*self.text_ids(text), self.stop_ids[0])

    def text_ids(self, text: str) -> Ids:
        """A text's ids alone: the beginning of an answer."""
        return self._encode(self._plain(text))

    def text(self, ids: Ids) -> str:
        """What the ids say, without special tokens."""
        decoded = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return str(decoded).strip()

    def length(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.text_ids(text))

    def random_text(self, rng: Random, n: int) -> str:
        """n random tokens as text: what a critique is compared with that says nothing."""
        ordinary = [i for i in range(len(self.tokenizer)) if i not in self._special_ids]
        return self.text(tuple(rng.choices(ordinary, k=n)))

    def _encode(self, text: str) -> Ids:
        try:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise InwitError(
                f"The tokenizer of '{self.tokenizer.name_or_path}' cannot write {text[:80]!r}: "
                f"{error}",
                "The text has words that the model's vocabulary lacks.",
            ) from error

    def _plain(self, text: str) -> str:
        """Text in which no special token's spelling can pass for the token itself."""
        removed = 1
        while removed:  # what a removal joins may spell a special token again
            text, removed = self._special.subn("", text)
        return text.strip()

    def _skeleton(self, prompt: Prompt) -> str:
        def fill(match: re.Match[str]) -> str:
            if match[1]:
                return MARK.format(match[1])
            return match[0][0] if match[0] in ("{{", "}}") else match[0]

        messages = [
            {"role": speaker, "content": FIELD.sub(fill, text)} for speaker, text in prompt.messages
        ]
        return self._template(messages, opening=True)

    def _template(self, messages: list[dict[str, str]], *, opening: bool) -> str:
        def render(messages: list[dict[str, str]]) -> str:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=opening, **self._settings
            )
            return str(text)

        try:
            return render(messages)
        except TemplateError as first:
            try:  # Gemma's template refuses a system message: it opens the user's instead
                return render(_without_system(messages))
            except TemplateError:
                raise InwitError(
                    f"The chat template of '{self.tokenizer.name_or_path}' refuses the roles' "
                    f"messages: {first}.",
                    "Mend the template, or write prompts with the speakers that it knows.",
                ) from first

    def _render_after_turn(self) -> tuple[str, str]:
        """(what closes a turn, what follows up to the next one), the observation marked."""
        said, seen = MARK.format("said"), MARK.format("observation")
        text = self._template(
            [
                {"role": "user", "content": "-"},
                {"role": "assistant", "content": said},
                {"role": "user", "content": seen},
            ],
            opening=True,
        )
        after = text.partition(said)[2]
        if seen not in after:
            raise InwitError(
                f"The chat template of '{self.tokenizer.name_or_path}' drops or reorders turns.",
                "Use a template that writes every message in order.",
            )
        start = self._special.match(after.lstrip())
        cut = after.index(start[0]) + len(start[0]) if start else 0
        return after[:cut], after[cut:]

    def _find_stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn: the template's end of turn first, then the tokenizer's EOS."""
        closing = self._encode(self._after_turn[0].strip())
        eos = self.tokenizer.eos_token_id
        stops = [*closing[-1:], *([] if eos is None else [int(eos)])]
        if not stops:
            raise InwitError(
                f"The tokenizer of '{self.tokenizer.name_or_path}' has no end-of-turn token.",
                "Set its `eos_token` and save it.",
            )
        return tuple(dict.fromkeys(stops))


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    if messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]
