"""Functions to complete, with examples that were computed, and questions about programming."""

from __future__ import annotations

from random import Random
from typing import Any

from training.prompts.code_tasks import GROUPS, Task
from training.prompts.filling import entries, fill, lines_of, templates

_HINTS = {"numbers": "list", "words": "list", "text": "str", "number": "int"}
_ARGUMENTS = {
    "numbers": ("numbers", "values", "lst", "nums", "xs"),
    "words": ("words", "strings", "items", "names"),
    "text": ("text", "s", "string", "sentence"),
    "number": ("n", "number", "x"),
}
_IMPORTS = ("", "", "", "from typing import List\n\n\n")
_QUOTES = ('"""', '"""', '"""', "'''")


def _task(rng: Random) -> Task:
    return rng.choice(rng.choice(GROUPS))


def _argument(kind: str, rng: Random) -> Any:
    if kind == "numbers":
        return [rng.randint(-9, 30) for _ in range(rng.randint(3, 7))]
    if kind == "words":
        return rng.sample(entries("word"), rng.randint(2, 5))
    if kind == "text":
        return " ".join(rng.sample(entries("word"), rng.randint(1, 3)))
    return rng.randint(2, 20)


def _examples(task: Task, rng: Random) -> list[str]:
    """Lines that show calls with their results, in one of the ways in which docstrings do; none at times."""
    values = [_argument(task.argument, rng) for _ in range(rng.randint(1, 3))]
    calls = [(f"{task.name}({value!r})", repr(task.solve(value))) for value in values]
    style = rng.randrange(4)
    if style == 0:
        return [line for call, result in calls for line in (f">>> {call}", result)]
    if style == 1:
        return ["", "Examples:", *(f"    {call} => {result}" for call, result in calls)]
    if style == 2:
        return ["", "For example:", *(f"{call} == {result}" for call, result in calls)]
    return []


def unfinished(rng: Random) -> str:
    """A function with a docstring and without a body."""
    task = _task(rng)
    head = rng.choice(_ARGUMENTS[task.argument])
    returns = ""
    if rng.random() < 0.6:
        head += f": {_HINTS[task.argument]}"
        returns = rng.choice(("", f" -> {task.returns}"))
    quotes = rng.choice(_QUOTES)
    body = "\n".join(f"    {line}".rstrip() for line in (*_examples(task, rng), quotes))
    request, imports = rng.choice(lines_of("completions")), rng.choice(_IMPORTS)
    return f"{request}{imports}def {task.name}({head}){returns}:\n    {quotes}{task.text}.\n{body}\n"


def question(rng: Random) -> str:
    """A question about programming, or a program to write."""
    if rng.random() < 0.5:
        return fill(rng.choice(templates("programs")), rng)
    task = _task(rng)
    asked = fill(rng.choice(templates("tasks")), rng)
    return asked.replace("TEXT", task.text).replace("NAME", task.name)
