"""`oneOf` whose alternatives exclude each other is `anyOf`: the engine proves that for some schemas only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

# Follows a `$ref` to the schema it means.
Follow = Callable[[object], object]


def exclusive(alternatives: list[object], follow: Follow) -> bool:
    """Whether no value can match two of them: other types, or objects told apart by a required string."""
    return all(_apart(follow(one), follow(other)) for one, other in combinations(alternatives, 2))


def _apart(one: object, other: object) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    kinds, others = _types(one), _types(other)
    if kinds and others and not kinds & others:
        return True
    if kinds != {"object"} or others != {"object"}:
        return False
    tags, other_tags = _tags(one), _tags(other)
    return any(not tags[name] & other_tags[name] for name in tags.keys() & other_tags.keys())


def _types(schema: Mapping[str, object]) -> set[str]:
    """Types that a value of the schema can have; empty where that is not known."""
    given = schema.get("type")
    names = set(given) if isinstance(given, list) else {given} if isinstance(given, str) else set()
    return {"number" if name == "integer" else name for name in names}


def _tags(schema: Mapping[str, object]) -> dict[str, set[str]]:
    """Required properties that are one of a few strings."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    found = {}
    for name in required:
        values = _strings(properties.get(name))
        if values:
            found[name] = values
    return found


def _strings(schema: object) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return set()
    return set(values)
