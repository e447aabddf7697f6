"""Programs in answers, and what tests take from them. Text only: nothing is run here."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings
from collections.abc import Iterable, Sequence

LONGEST = 200_000
"""Characters of a program; longer ones are none."""

PARSED = 50_000
"""Characters of a text that is parsed here, in the trainer's process."""

LONGEST_FENCE = 200
"""Characters of a line that may begin or end a block."""

CUTS = 20
"""Times that text after a bare program is cut off where it stops being Python."""

PYTHON = {"python", "py", "python3", "py3"}
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
BEGINS = re.compile(r"(def|class|import|from|async def|@)[ \t]*[\w.(]")
BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What parsing raises on text that is no program."""


# ---------------------------------------------------------------------- out of an answer


def code_in(answer: str, entry: str, prompt: str = "") -> str | None:
    """The program in an answer; None where there is none.

    The last fenced block that defines `entry`; else the last that says it is Python, or nothing;
    else, without any fence, the answer from its first line of code on.

    Args:
        prompt: the program so far, where the question is one: a body alone is put after it.
    """
    text = answer.replace("\r\n", "\n").replace("\r", "\n")
    found = _blocks(text)
    blocks = [code for language, code in found if language.lower() in PYTHON | {""}]
    marked = [code for language, code in found if language.lower() in PYTHON]
    if not found:
        blocks = [bare] if (bare := _bare(text, prompt)) else []
    defining = [code for code in blocks if defines(code, entry)]
    code = next(reversed(defining or marked or blocks), "")
    if prompt and not defining and code.startswith((" ", "\t")):
        code = f"{prompt.rstrip()}\n{code}"
    return code if code.strip() and len(code) <= LONGEST else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block; one that is not closed ends with the text."""
    blocks: list[tuple[str, str]] = []
    fence, language, margin, inside = "", "", 0, list[str]()
    for line in text.split("\n"):
        found = FENCE.fullmatch(line) if _fences(line) else None
        if not fence:
            if found:
                fence, language = found.groups()
                margin, inside = len(line) - len(line.lstrip()), []
        elif found and found[1].startswith(fence) and not found[2]:
            blocks.append((language, "\n".join(inside)))
            fence = ""
        else:  # a block in a list is indented as a whole
            inside.append(line[margin:] if not line[:margin].strip() else line)
    if fence:
        blocks.append((language, "\n".join(inside)))
    return blocks


def _fences(line: str) -> bool:
    return line.lstrip()[:3] in ("```", "~~~") and len(line) <= LONGEST_FENCE


def _bare(text: str, prompt: str) -> str:
    """Code that stands in an answer without a fence: up to where it stops being Python."""
    lines = text.split("\n")
    body = bool(prompt) and text.startswith((" ", "\t"))
    first = 0 if body else next((i for i, line in enumerate(lines) if BEGINS.match(line)), None)
    if first is None:
        return ""
    code = "\n".join(lines[first:])
    for _ in range(CUTS):
        if not code or len(code) > PARSED:
            break
        try:
            parsed(f"def f():\n{code}" if body else code)
        except SyntaxError as error:
            line = (error.lineno or 1) - body
            code = "\n".join(code.split("\n")[: max(line - 1, 0)])
        except BROKEN:
            break
        else:
            break
    return code or "\n".join(lines[first:])


def defines(code: str, name: str) -> bool:
    """Whether a line at the margin defines it."""
    word = re.escape(name)
    return bool(re.search(rf"^((async )?def|class) +{word}\b|^{word} *[:=]", code, re.MULTILINE))


def fenced(code: str) -> str:
    """As an answer is to be written."""
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}python\n{code.strip(chr(10))}\n{fence}"


def same_program(code: str) -> str:
    """Equal for two programs that differ in comments and spacing only."""
    if len(code) <= PARSED:
        try:
            return ast.unparse(parsed(code))
        except BROKEN:
            pass
    return code.strip()


# ---------------------------------------------------------------------- what tests need


def defined(program: str) -> set[str]:
    """Names that a program defines at its top level, but does not import."""
    found: set[str] = set()
    for node in parsed(program).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def entry_of(test: str, known: set[str]) -> str:
    """The outermost function that a test calls and the program knows; empty for none."""
    calls = (node.func for node in ast.walk(parsed(test)) if isinstance(node, ast.Call))
    names = (call.id for call in calls if isinstance(call, ast.Name))
    return next((name for name in names if name in known or (not known and not _built(name))), "")


def _built(name: str) -> bool:
    return hasattr(builtins, name)


def imports_of(program: str) -> dict[str, str]:
    """Statements at the top of a program, by the name that each one binds."""
    found: dict[str, str] = {}
    for node in parsed(program).body:
        if isinstance(node, ast.Import | ast.ImportFrom) and not _future(node):
            for alias in node.names:
                whole = ast.unparse(node)
                found[alias.asname or alias.name.split(".")[0]] = whole
    return found


def _future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def needs(tests: Iterable[str], program: str, entry: str) -> tuple[tuple[str, ...], str]:
    """What tests take from the program under test, and the imports that they make themselves.

    Args:
        program: one that is known to fit the tests: what it imports, they import.
    """
    loaded: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(parsed("\n".join(tests))):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    free = loaded - bound
    imports = {name: line for name, line in imports_of(program).items() if name in free}
    theirs = {name for name in free - set(imports) if not _built(name)}
    # a program must not stand in for a module that its tests compare with
    for name in sorted(theirs & sys.stdlib_module_names - defined(program) - {entry}):
        imports[name] = f"import {name}"
    names = theirs - set(imports) | {entry}
    return tuple(sorted(names)), "\n".join(dict.fromkeys(imports.values()))


def signature_of(program: str, entry: str) -> str:
    """`name(a, b)`, as the program defines it; the name alone where it defines no function."""
    for node in parsed(program).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            return f"{entry}({ast.unparse(node.args)})"
    return entry


def head_of(prompt: str, entry: str) -> str:
    """What stands before a function in a program: imports, and functions that it may call."""
    found = re.search(rf"^def +{re.escape(entry)}\b", prompt, re.MULTILINE)
    return prompt[: found.start()] if found else ""


def parsed(text: str) -> ast.Module:
    """Its tree, without a word about escapes that Python would warn of. Raises as BROKEN says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def joined(lines: Sequence[str]) -> str:
    """Statements one after the other, with plain line ends."""
    return "\n".join(line.replace("\r\n", "\n").rstrip() for line in lines)
