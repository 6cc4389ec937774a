"""JSON Schema: the part that is enforced to the letter, and the place of whatever is not.

The engine ignores keywords that it does not know, so only those listed here are let through; every other one
is refused with its path, and annotations are taken off. What is left has the same meaning in drafts 6 to
2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import unquote

from router.errors import InvalidRequestError
from router.structured.alternatives import exclusive
from router.structured.patterns import pattern_problem

MAX_DEPTH = 64
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
FORMATS = (
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
)  # fmt: skip
DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)
# Say something to readers and nothing about what is valid.
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly",
        # OpenAPI's, which data model libraries put beside a oneOf.
        "discriminator",
    )
)  # fmt: skip

# Keywords that say nothing at this value.
NEUTRAL: Mapping[str, object] = {"uniqueItems": False}

Schema = dict[str, object] | bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where an element stands: `path` names it to the client, `pointer` is its JSON Pointer in the schema."""

    path: str
    pointer: str = ""

    def member(self, name: str) -> Place:
        """Of an object."""
        escaped = name.replace("~", "~0").replace("/", "~1")
        return Place(f"{self.path}.{name}", f"{self.pointer}/{escaped}")

    def item(self, index: int) -> Place:
        """Of a list."""
        return Place(f"{self.path}[{index}]", f"{self.pointer}/{index}")


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """The enforceable part of a schema, in the client's order, and all places where a schema stands in it."""

    schema: Schema
    places: tuple[Place, ...]


# A keyword's value and its place, to what the engine is given.
_Check = Callable[["_Walk", object, Place, int], object]


def refuse(place: Place, problem: str) -> NoReturn:
    """Raises InvalidRequestError for one element of a schema."""
    raise InvalidRequestError(f"Invalid {place.path!r}: {problem}.", place.path, "invalid_json_schema")


def checked_schema(schema: object, path: str, strict: bool = False) -> CheckedSchema:
    """The enforceable part of `schema`.

    Args:
        schema: parsed JSON.
        path: the parameter that holds it, for messages.
        strict: also ask for what OpenAI's strict mode asks for: the root is an object, and every object
            requires all its properties and forbids others.

    Raises InvalidRequestError, whose `param` is the path of the element at fault.
    """
    root = Place(path)
    walk = _Walk(strict)
    cleaned = walk.schema(schema, root, 0)
    walk.check_references()
    walk.resolve_alternatives()
    if strict and (not isinstance(cleaned, dict) or cleaned.get("type") != "object"):
        refuse(root, "strict mode needs a root of the type 'object'")
    return CheckedSchema(cleaned, tuple(walk.places))


def moved_down(schema: object, name: str) -> object:
    """A checked schema as it reads when it stands at `#/$defs/NAME` of another one."""
    if isinstance(schema, list):
        return [moved_down(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: f"#/$defs/{name}{value[1:]}"
        if keyword == "$ref" and isinstance(value, str)
        else moved_down(value, name)
        for keyword, value in schema.items()
    }


class _Walk:
    """One schema on its way through."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._references: list[tuple[str, Place]] = []
        self._found: dict[str, Schema] = {}
        self.places: list[Place] = []

    def schema(self, value: object, place: Place, depth: int) -> Schema:
        """A schema or subschema without its annotations."""
        if not isinstance(value, dict | bool):
            refuse(place, "must be a JSON Schema, an object or a boolean")
        if depth > MAX_DEPTH:
            refuse(place, f"is nested more than {MAX_DEPTH} deep")
        # A schema that nothing matches is meant to be one, and no fault.
        if value is not False or depth == 0:
            self.places.append(place)
        if isinstance(value, bool):
            self._found[place.pointer] = value
            return value
        cleaned: dict[str, object] = {}
        for keyword, content in value.items():
            inner = place.member(keyword)
            if keyword in ANNOTATIONS or (keyword in NEUTRAL and content is NEUTRAL[keyword]):
                continue
            if depth == 0 and keyword in ("$schema", "$id"):
                self._identification(keyword, content, inner)
                continue
            check = _KEYWORDS.get(keyword)
            if check is None:
                refuse(inner, f"the keyword {keyword!r} is not supported")
            cleaned[keyword] = check(self, content, inner, depth)
        self._objects(cleaned, place)
        self._found[place.pointer] = cleaned
        return cleaned

    def reference(self, target: str, place: Place) -> None:
        """Remembers a `$ref`, which must lead to a schema of this document."""
        self._references.append((target, place))

    def check_references(self) -> None:
        """Raises for a `$ref` that leads to no schema, or through other `$ref`s to itself."""
        for start, place in self._references:
            seen: set[str] = set()
            target: object = start
            while isinstance(target, str):
                if target in seen:
                    refuse(place, "refers to itself without end")
                seen.add(target)
                found = self._found.get(unquote(target[1:]))
                if found is None:
                    refuse(place, f"{target!r} leads to no schema")
                target = found.get("$ref") if isinstance(found, dict) else None

    def resolve_alternatives(self) -> None:
        """Makes each `oneOf` that is one by itself an `anyOf`."""
        for schema in self._found.values():
            alternatives = schema.get("oneOf") if isinstance(schema, dict) else None
            if isinstance(alternatives, list) and exclusive(alternatives, self._followed):
                assert isinstance(schema, dict)
                if "anyOf" not in schema:
                    # Rebuilt in place: the order of members is the order of an answer's.
                    members = [("anyOf" if name == "oneOf" else name, schema[name]) for name in schema]
                    schema.clear()
                    schema.update(members)

    def _followed(self, schema: object) -> object:
        while isinstance(schema, dict) and schema.keys() == {"$ref"}:
            schema = self._found[unquote(str(schema["$ref"])[1:])]
        return schema

    def _identification(self, keyword: str, content: object, place: Place) -> None:
        if not isinstance(content, str):
            refuse(place, "must be a string")
        if keyword == "$schema" and content.removesuffix("#") not in DRAFTS:
            refuse(place, f"{content!r} is not supported; supported are: {', '.join(DRAFTS)}")

    def _objects(self, cleaned: Mapping[str, object], place: Place) -> None:
        """Rules between the keywords of one schema."""
        required = cleaned.get("required", [])
        properties = cleaned.get("properties", {})
        assert isinstance(required, list)
        assert isinstance(properties, dict)
        least = cleaned.get("minProperties", 0)
        # The engine does not tell two members of one undeclared name from two names.
        if isinstance(least, int) and least > len(set(required)) + 1:
            refuse(
                place.member("minProperties"),
                f"at most one more than the {len(set(required))} required properties can be enforced",
            )
        if not self._strict or (cleaned.get("type") != "object" and not properties):
            return
        if cleaned.get("additionalProperties") is not False:
            refuse(place.member("additionalProperties"), "strict mode needs it to be given and false")
        missing = [name for name in properties if name not in required]
        if missing:
            refuse(place.member("required"), f"strict mode needs all properties; {missing[0]!r} is missing")


def _subschema(walk: _Walk, value: object, place: Place, depth: int) -> object:
    return walk.schema(value, place, depth + 1)


def _subschemas(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, list) or not value:
        refuse(place, "must be a list of at least one schema")
    return [walk.schema(item, place.item(index), depth + 1) for index, item in enumerate(value)]


def _named_schemas(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, dict):
        refuse(place, "must be an object of schemas")
    _constant(walk, list(value), place, depth)
    return {name: walk.schema(item, place.member(name), depth + 1) for name, item in value.items()}


def _pattern_schemas(walk: _Walk, value: object, place: Place, depth: int) -> object:
    schemas = _named_schemas(walk, value, place, depth)
    assert isinstance(schemas, dict)
    for pattern in schemas:
        _pattern(walk, pattern, place.member(pattern), depth)
    return schemas


def _is_shallow(value: object) -> bool:
    """Whether a value can be walked and written by recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for part in level
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return not level


def _can_be_written(value: object) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str) and any(
            (character < " " and character not in "\b\f\n\r\t") or "\ud800" <= character <= "\udfff"
            for character in part
        ):
            return False
        if isinstance(part, dict):
            pending.extend((*part.keys(), *part.values()))
        elif isinstance(part, list):
            pending.extend(part)
    return True


def _type(walk: _Walk, value: object, place: Place, depth: int) -> object:
    names = value if isinstance(value, list) else [value]
    if not names or any(name not in TYPES for name in names):
        refuse(place, f"must be one or several of: {', '.join(TYPES)}")
    return value


def _names(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(place, "must be a list of strings")
    return _constant(walk, value, place, depth)


def _values(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, list) or not value:
        refuse(place, "must be a list of at least one value")
    return _constant(walk, value, place, depth)


def _constant(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not _is_shallow(value):
        refuse(place, f"is nested more than {MAX_DEPTH} deep")
    # As in an answer, where they cannot be written: escapes by number would give names a second spelling.
    if not _can_be_written(value):
        refuse(place, "has control characters or lone surrogates, which cannot be generated")
    return value


def _count(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(place, "must be a whole number of at least 0")
    return value


def _number(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(place, "must be a number")
    return value


def _multiple(walk: _Walk, value: object, place: Place, depth: int) -> object:
    # Validators divide in binary floating point, where 0.07 is no multiple of 0.01.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse(place, "must be a whole number of at least 1; others cannot be enforced exactly")
    return value


def _pattern(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, str):
        refuse(place, "must be a regular expression, as a string")
    problem = pattern_problem(value)
    if problem is not None:
        refuse(place, f"the pattern {problem}")
    return value


def _format(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if value not in FORMATS:
        refuse(place, f"the format {value!r} is not supported; supported are: {', '.join(FORMATS)}")
    return value


def _reference(walk: _Walk, value: object, place: Place, depth: int) -> object:
    if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
        refuse(place, "must refer to a place in this schema: '#' or '#/$defs/NAME'")
    walk.reference(value, place)
    return value


_KEYWORDS: Mapping[str, _Check] = {
    "type": _type,
    "enum": _values,
    "const": _constant,
    "anyOf": _subschemas,
    "oneOf": _subschemas,
    "allOf": _subschemas,
    "$ref": _reference,
    "$defs": _named_schemas,
    "definitions": _named_schemas,
    "properties": _named_schemas,
    "patternProperties": _pattern_schemas,
    "additionalProperties": _subschema,
    "required": _names,
    "minProperties": _count,
    "maxProperties": _count,
    "items": _subschema,
    "prefixItems": _subschemas,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "format": _format,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _multiple,
}
