"""`oneOf` whose alternatives exclude each other is `anyOf`: the engine proves that for some schemas only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

# Follows a `$ref` to the schema it means.
Follow = Callable[[object], object]


def exclusive(alternatives: list[object], follow: Follow) -> bool:
    """Whether no value can match two of them: other types, or objects told apart by a required string."""
    # Each is looked into once: there may be thousands of pairs for each of them.
    told = [_Told.of(follow(alternative)) for alternative in alternatives]
    return all(_apart(one, other) for one, other in combinations(told, 2))


@dataclass(frozen=True, slots=True)
class _Told:
    """What is known of the values of one alternative: their types, and the strings of required properties."""

    types: set[str]
    tags: dict[str, set[str]]

    @classmethod
    def of(cls, schema: object) -> _Told:
        if not isinstance(schema, dict):
            return cls(set(), {})
        types = _types(schema)
        return cls(types, _tags(schema) if types == {"object"} else {})


def _apart(one: _Told, other: _Told) -> bool:
    if one.types and other.types and one.types.isdisjoint(other.types):
        return True
    return any(
        name in other.tags and strings.isdisjoint(other.tags[name]) for name, strings in one.tags.items()
    )


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
