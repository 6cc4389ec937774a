"""Small functions with what they do in words: what code prompts ask for, and their examples come from."""

from __future__ import annotations

import calendar
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """A function over one argument.

    Attributes:
        name: of the function.
        text: what it does, a sentence without its full stop.
        argument: "numbers", "words", "text" or "number": what it takes.
        returns: its return type.
        solve: computes it.
    """

    name: str
    text: str
    argument: str
    returns: str
    solve: Callable[[Any], Any]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, n))


# What an element is, in words, and whether it is so.
_TESTS: dict[str, tuple[tuple[str, str, Callable[[Any], bool]], ...]] = {
    "numbers": (
        ("even", "even", lambda n: n % 2 == 0),
        ("odd", "odd", lambda n: n % 2 == 1),
        ("positive", "positive", lambda n: n > 0),
        ("negative", "negative", lambda n: n < 0),
        ("small", "smaller than ten", lambda n: n < 10),
        ("large", "larger than twenty", lambda n: n > 20),
        ("divisible_by_three", "divisible by three", lambda n: n % 3 == 0),
        ("two_digit", "two digits long", lambda n: 10 <= abs(n) < 100),
        ("square", "perfect squares", lambda n: n >= 0 and math.isqrt(n) ** 2 == n),
        ("prime", "prime", _is_prime),
    ),
    "words": (
        ("short", "shorter than six letters", lambda word: len(word) < 6),
        ("long", "longer than six letters", lambda word: len(word) > 6),
        ("starting_with_vowel", "starting with a vowel", lambda word: word[0] in "aeiou"),
        ("ending_with_e", "ending with the letter e", lambda word: word.endswith("e")),
        ("containing_o", "containing the letter o", lambda word: "o" in word),
        ("doubled", "written with a double letter", lambda word: any(a == b for a, b in pairwise(word))),
    ),
}
# What is made of the elements that are so.
_GATHERED: tuple[tuple[str, str, str, Callable[[list[Any]], Any]], ...] = (
    ("filter_{}", "Return a list of those {items} that are {test}", "list", lambda kept: kept),
    ("count_{}", "Count the {items} that are {test}", "int", len),
    (
        "first_{}",
        "Return the first of the {items} that is {test}, or None if there is none",
        "object",
        lambda kept: kept[0] if kept else None,
    ),
    ("has_{}", "Return True if any of the {items} is {test}, and False otherwise", "bool", bool),
    (
        "last_{}",
        "Find the last of the {items} that is {test}; return None if there is none",
        "object",
        lambda kept: kept[-1] if kept else None,
    ),
    ("sorted_{}", "Return those {items} that are {test}, in ascending order", "list", sorted),
    (
        "unique_{}",
        "Return those {items} that are {test} without duplicates, keeping their order",
        "list",
        lambda kept: list(dict.fromkeys(kept)),
    ),
)


def _gathering(
    argument: str, phrase: str, holds: Callable[[Any], bool], label: str, gathered: int, suffix: str
) -> Task:
    name, text, returns, gather = _GATHERED[gathered]
    return Task(
        name.format(label) + suffix,
        text.format(items=argument, test=phrase),
        argument,
        returns,
        lambda items: gather([item for item in items if holds(item)]),
    )


_GATHERING = [
    _gathering(argument, phrase, holds, label, gathered, suffix)
    for argument, tests in _TESTS.items()
    for label, phrase, holds in tests
    for gathered in range(len(_GATHERED))
    for suffix in ("", f"_{argument}")
]


# (name, what it does, return type, computed by)
_Row = tuple[str, str, str, Callable[[Any], Any]]

_NUMBERS: tuple[_Row, ...] = (
    (
        "sum_of_squares",
        "Return the sum of the squares of the numbers",
        "int",
        lambda xs: sum(x * x for x in xs),
    ),
    (
        "running_total",
        "Return a list in which each element is the sum of all elements so far",
        "list",
        lambda xs: list(accumulate(xs)),
    ),
    (
        "differences",
        "Return the differences between neighbouring elements",
        "list",
        lambda xs: [b - a for a, b in pairwise(xs)],
    ),
    ("second_largest", "Return the second largest number in the list", "int", lambda xs: sorted(xs)[-2]),
    (
        "largest_gap",
        "Return the largest difference between two neighbouring numbers of the sorted list",
        "int",
        lambda xs: max(b - a for a, b in pairwise(sorted(xs))),
    ),
    ("double_all", "Multiply every number of the list by two", "list", lambda xs: [2 * x for x in xs]),
    (
        "swap_ends",
        "Exchange the first and the last element of the list",
        "list",
        lambda xs: [xs[-1], *xs[1:-1], xs[0]],
    ),
    ("rotate_left", "Move the first element of the list to its end", "list", lambda xs: [*xs[1:], xs[0]]),
    ("is_sorted", "Check whether the numbers are in ascending order", "bool", lambda xs: xs == sorted(xs)),
    ("maximum_index", "Return the index of the largest number", "int", lambda xs: xs.index(max(xs))),
    (
        "clip_to_range",
        "Replace numbers below zero with 0 and numbers above ten with 10",
        "list",
        lambda xs: [min(10, max(0, x)) for x in xs],
    ),
    ("mean", "Compute the arithmetic mean of the numbers", "float", lambda xs: sum(xs) / len(xs)),
    ("median", "Return the median of the numbers", "float", statistics.median),
    ("product", "Return the product of all numbers", "int", math.prod),
    (
        "alternating_sum",
        "Add the first number, subtract the second, add the third, and so on",
        "int",
        lambda xs: sum(xs[::2]) - sum(xs[1::2]),
    ),
    (
        "pairs_with_sum_ten",
        "Count the pairs of elements that add up to ten",
        "int",
        lambda xs: sum(a + b == 10 for a, b in combinations(xs, 2)),
    ),
)
_TEXT: tuple[_Row, ...] = (
    ("reverse_text", "Return the text backwards", "str", lambda s: s[::-1]),
    ("count_vowels", "Count the vowels in the text", "int", lambda s: sum(c in "aeiou" for c in s)),
    ("is_palindrome", "Return True if the text reads the same backwards", "bool", lambda s: s == s[::-1]),
    ("capitalize_words", "Make the first letter of every word a capital letter", "str", str.title),
    (
        "letter_counts",
        "Return a dictionary that maps each letter to how often it occurs",
        "dict",
        lambda s: {c: s.count(c) for c in s if c != " "},
    ),
    (
        "longest_word",
        "Return the longest word of the text; the first one if there are several",
        "str",
        lambda s: max(s.split(), key=len),
    ),
    ("remove_spaces", "Return the text without its spaces", "str", lambda s: s.replace(" ", "")),
    (
        "reverse_words",
        "Return the words of the text in reverse order",
        "str",
        lambda s: " ".join(s.split()[::-1]),
    ),
    ("swap_case", "Turn small letters into capital ones and the other way round", "str", str.swapcase),
    (
        "initials",
        "Return the first letters of all words as one string in upper case",
        "str",
        lambda s: "".join(word[0].upper() for word in s.split()),
    ),
    (
        "shift_letters",
        "Replace each letter by the one that follows it in the alphabet, z by a",
        "str",
        lambda s: "".join(chr((ord(c) - 96) % 26 + 97) if c.isalpha() else c for c in s),
    ),
    (
        "word_lengths",
        "Return a list with the length of each word",
        "list",
        lambda s: [len(word) for word in s.split()],
    ),
    (
        "distinct_letters",
        "Return how many different letters the text has",
        "int",
        lambda s: len(set(s) - {" "}),
    ),
    ("repeat_letters", "Write every letter of the text twice", "str", lambda s: "".join(2 * c for c in s)),
)


def _factors(n: int) -> list[int]:
    found, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return found


def _collatz_steps(n: int) -> int:
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


_NUMBER: tuple[_Row, ...] = (
    ("digit_sum", "Return the sum of the digits of n", "int", lambda n: sum(map(int, str(n)))),
    ("is_prime_number", "Return True if n is a prime number", "bool", _is_prime),
    ("factorial", "Compute the factorial of n", "int", math.factorial),
    (
        "divisors",
        "Return all divisors of n in ascending order",
        "list",
        lambda n: [d for d in range(1, n + 1) if n % d == 0],
    ),
    ("to_binary", "Return n as a string of binary digits", "str", lambda n: format(n, "b")),
    ("count_down", "Return a list that counts down from n to one", "list", lambda n: list(range(n, 0, -1))),
    ("multiples", "Return the first five multiples of n", "list", lambda n: [n * i for i in range(1, 6)]),
    ("prime_factors", "Return the prime factors of n in ascending order", "list", _factors),
    (
        "collatz_steps",
        "Count the steps until n becomes 1, where even numbers are halved and odd ones become 3n + 1",
        "int",
        _collatz_steps,
    ),
    ("triangle_number", "Return the sum of all whole numbers up to n", "int", lambda n: n * (n + 1) // 2),
    ("is_leap_year", "Return True if the year n is a leap year", "bool", calendar.isleap),
    (
        "squares_below",
        "Return all square numbers smaller than n",
        "list",
        lambda n: [i * i for i in range(n) if i * i < n],
    ),
)
GROUPS: tuple[tuple[Task, ...], ...] = (
    tuple(task for task in _GATHERING if task.argument == "numbers"),
    tuple(task for task in _GATHERING if task.argument == "words"),
    tuple(Task(name, text, "numbers", returns, solve) for name, text, returns, solve in _NUMBERS),
    tuple(Task(name, text, "text", returns, solve) for name, text, returns, solve in _TEXT),
    tuple(Task(name, text, "number", returns, solve) for name, text, returns, solve in _NUMBER),
)
"""All of them, in groups that are to be asked for equally often."""
