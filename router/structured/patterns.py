"""Regular expressions inside JSON schemas: only what every dialect reads alike.

A schema's `pattern` is ECMA-262 by the book, Rust's dialect in the engine and Python's in the validators that
clients use. What the three read differently is refused, so that an answer matches under each.
"""

from __future__ import annotations

import re
import warnings

MAX_LENGTH = 4096
# Letters that mean the same after a backslash; any punctuation does too.
_ESCAPES = frozenset("dwsSntrfvxu")
_INSTEAD = {"D": "[^0-9]", "W": "[^A-Za-z0-9_]"}


def pattern_problem(pattern: str) -> str | None:
    """What keeps a pattern from being used, for the client; None for a good one."""
    if len(pattern) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    problem = _scan(pattern)
    if problem is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                re.compile(pattern)
        except (re.error, FutureWarning, RecursionError, OverflowError) as error:
            problem = f"is no regular expression that every validator reads alike: {error}"
    return problem


def _scan(pattern: str) -> str | None:
    in_class = False
    position = 0
    while position < len(pattern):
        character, rest = pattern[position], pattern[position + 1 :]
        if character == "\\":
            problem = _escape_problem(rest)
            if problem is not None:
                return problem
            position += 2
            continue
        if in_class:
            in_class = character != "]"
            if character == "[" or pattern[position : position + 2] in ("&&", "--", "~~", "||"):
                return "nests or combines character classes, which dialects read differently"
        elif character == "[":
            in_class = True
            # A bracket right after the opening is a member in Python and the end in ECMA-262.
            if rest.startswith(("]", "^]")):
                return "has a ']' right after '[', which dialects read differently; escape it"
        elif character == "(" and rest.startswith("?") and not rest.startswith("?:"):
            return "uses a '(?' group other than '(?:', which is not supported"
        elif character in "*+?}" and rest.startswith("+"):
            return "uses a possessive quantifier, which is not supported"
        elif character == "{" and rest.startswith(","):
            return "uses '{,', which dialects read differently; write '{0,'"
        position += 1
    return None


def _escape_problem(rest: str) -> str | None:
    if not rest:
        return "ends with a backslash"
    letter = rest[0]
    if letter in _INSTEAD:
        return f"uses \\{letter}, which dialects read differently; write {_INSTEAD[letter]}"
    if letter in _ESCAPES or (letter.isascii() and not letter.isalnum()):
        return None
    return f"uses \\{letter}, which is not supported"
