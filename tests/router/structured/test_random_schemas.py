"""Whatever schema is let through, every complete answer validates with the `jsonschema` library."""

from __future__ import annotations

import json
import random

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequestError
from router.generation import GrammarSpec
from router.structured.json_schema import checked_schema
from router.structured.language import guided
from tests.support.grammar_walks import error_of, walk

_NAMES = st.sampled_from(["a", "b", "é", "a b"])
_SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "ab", "é\n", '"'])
_SMALL = st.integers(0, 3)


def _some(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional=fields)


def _of_type(name: str, fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    return _some(fields).map(lambda given: {"type": name, **given})


_STRINGS = _of_type(
    "string",
    {
        "minLength": _SMALL,
        "maxLength": st.integers(1, 5),
        "pattern": st.sampled_from(["^a", "b$", "[a-c]+", "^(?:a|b)*$", "é", "^.$", "\\d"]),
    },
)
_BOUNDS = {
    "minimum": st.integers(-9, 9) | st.sampled_from([0.5, -2.25]),
    "exclusiveMaximum": st.integers(-9, 99) | st.sampled_from([1.5]),
    "multipleOf": st.integers(1, 7),
}
_LEAVES = st.one_of(
    _STRINGS,
    _of_type("integer", _BOUNDS),
    _of_type("number", _BOUNDS),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["null", "integer"]}, True, False]),
    st.lists(_SCALARS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    _SCALARS.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/leaf"}),
)


def _composed(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    objects = _of_type(
        "object",
        {
            "properties": st.dictionaries(_NAMES, inner, max_size=3),
            "required": st.lists(_NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "^[xy]"]), inner, max_size=1),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 3),
        },
    )
    arrays = _of_type(
        "array",
        {
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
        },
    )
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        objects,
        arrays,
        several.map(lambda schemas: {"anyOf": schemas}),
        several.map(lambda schemas: {"oneOf": schemas}),
        several.map(lambda schemas: {"allOf": schemas}),
        st.tuples(objects, several).map(lambda pair: {**pair[0], "anyOf": pair[1]}),
    )


_SCHEMAS = st.recursive(_LEAVES, _composed, max_leaves=6)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(
    schema=_SCHEMAS,
    leaf=_LEAVES.filter(lambda leaf: leaf != {"$ref": "#/$defs/leaf"}),
    seed=st.integers(0, 99),
)
def test_answers_validate(schema: object, leaf: object, seed: int) -> None:
    whole: object = {"$defs": {"leaf": leaf}, **schema} if isinstance(schema, dict) else schema
    jsonschema.Draft202012Validator.check_schema(whole)
    try:
        checked = checked_schema(whole, "s").schema
    except InvalidRequestError:
        return
    spec = GrammarSpec("json_schema", guided(checked))
    if error_of(spec):
        return
    rng = random.Random(seed)
    for _ in range(4):
        text = walk(spec, rng, 150)
        if text is not None:
            jsonschema.Draft202012Validator(whole).validate(json.loads(text))
