"""Prompts from Python itself: functions of its library to complete, pages of its manual to summarise.

Both come with every Python, under the PSF licence.
"""

from __future__ import annotations

import ast
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

from training.prompts.filling import lines_of, templates

_DOCSTRING_CHARACTERS = range(40, 900)
_PARAGRAPH_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class _Library:
    functions: tuple[str, ...]
    pages: tuple[tuple[str, ...], ...]


def documented_functions(path: Path) -> list[str]:
    """Heads of a module's documented functions, docstring included.

    Raises:
        OSError: it cannot be read.
        SyntaxError, ValueError: it is no Python in UTF-8.
    """
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        documented = ast.get_docstring(node)
        if documented is None or len(documented) not in _DOCSTRING_CHARACTERS or len(node.body) < 2:
            continue
        head = lines[node.lineno - 1 : node.body[0].end_lineno]
        found.append("\n".join(line[node.col_offset :] for line in head))
    return found


@cache
def _library() -> _Library:
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for name in templates("library_modules") if (path := folder / f"{name}.py").exists()]
    functions = [head for path in paths for head in documented_functions(path)]
    pages = []
    for page in topics.values():
        paragraphs = [" ".join(part.split()) for part in page.split("\n\n")]
        prose = [part for part in paragraphs if len(part) >= _PARAGRAPH_CHARACTERS and part[0].isalpha()]
        if prose:
            pages.append(tuple(prose))
    return _Library(tuple(functions), tuple(pages))


def unfinished(rng: Random) -> str:
    """A function of the standard library without its body."""
    return f"{rng.choice(lines_of('completions'))}{rng.choice(_library().functions)}\n"


def passage(rng: Random, max_characters: int) -> str:
    """Consecutive paragraphs of the language manual."""
    page = rng.choice(_library().pages)
    first = rng.randrange(len(page))
    text = page[first]
    for paragraph in page[first + 1 :]:
        if len(text) + len(paragraph) > max_characters:
            break
        text += " " + paragraph
    return text[:max_characters]
