"""Reads a deployment spec from a YAML file and from options, and words what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cluster.environment import Environment
from cluster.spec import DeploymentSpec

_SECRETS = frozenset({"router.api_key"})
# Parts of pydantic's own wording that are no advice to the author of a spec.
_PYDANTIC_PREFIX = re.compile(r"^(Value error, |Input should be (a )?(valid )?|String should have )")
_BOUNDS = {
    "greater_than_equal": "of at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "of at most {le}",
}


@dataclass(frozen=True, slots=True)
class Override:
    """A setting given beside the file.

    Attributes:
        key: dotted, as in the file.
        value: what was given.
        source: option or variable that gave it, for errors.
    """

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One thing wrong: where it was said, its dotted key, and what is allowed instead."""

    source: str
    key: str
    message: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.source}: {key}{self.message}"


@dataclass
class SpecError(Exception):
    """The spec cannot be used. One line for each problem."""

    problems: Sequence[SpecProblem] = field(default_factory=tuple)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML 1.1 without duplicate keys: the later one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain word", key_node.start_mark
                )
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_spec(
    path: Path | None, overrides: Sequence[Override] = (), environment: Environment | None = None
) -> DeploymentSpec:
    """The file's settings, overlaid with `overrides`; the environment fills what neither says.

    Raises:
        SpecError: the file cannot be read, or a setting is unknown or out of bounds.
    """
    data = _read_file(path) if path is not None else {}
    sources: dict[str, str] = {}
    given = [override for override in overrides if override.value is not None]
    for override in [*_from_environment(environment, data, given), *given]:
        _set(data, override)
        sources[override.key] = override.source
    try:
        return DeploymentSpec.model_validate(data)
    except ValidationError as error:
        problems = [_problem(details, str(path or "spec"), sources) for details in error.errors()]
        raise SpecError(problems) from None


def _from_environment(
    environment: Environment | None, data: Mapping[str, Any], given: Sequence[Override]
) -> Iterator[Override]:
    if environment is None:
        return
    said = {override.key for override in given}
    for key, value, variable in (
        ("router.api_key", environment.api_key, "KVRELAY_API_KEY"),
        ("log.level", environment.log_level, "KVRELAY_LOG_LEVEL"),
        ("log.format", environment.log_format, "KVRELAY_LOG_FORMAT"),
    ):
        section, name = key.split(".")
        in_file = data.get(section)
        if value and key not in said and not (isinstance(in_file, dict) and name in in_file):
            yield Override(key, value, variable)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise SpecError([SpecProblem(str(path), "", "no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError([SpecProblem(str(path), "", f"cannot be read: {error}")]) from None
    try:
        # A SafeLoader: it makes plain values only.
        data = yaml.load(text, _UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = getattr(error, "problem", None) or str(error)
        raise SpecError([SpecProblem(where, "", f"not valid YAML: {reason}")]) from None
    except ValueError as error:
        # A value that looks like a date or a number and is none.
        raise SpecError([SpecProblem(str(path), "", f"not valid YAML: {error}")]) from None
    except RecursionError:
        raise SpecError([SpecProblem(str(path), "", "not valid YAML: nested too deeply")]) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SpecError([SpecProblem(str(path), "", f"needs keys and values, not {_show(data)}")])
    return data


def _set(data: dict[str, Any], override: Override) -> None:
    *sections, name = override.key.split(".")
    target = data
    for section in sections:
        below = target.setdefault(section, {})
        if not isinstance(below, dict):
            # The file has something else here, which validation reports; the option must not hide it.
            return
        target = below
    target[name] = override.value


def _problem(details: ErrorDetails, file: str, sources: Mapping[str, str]) -> SpecProblem:
    key = ".".join(str(part) for part in details["loc"])
    source = sources.get(key, file)
    value = "***" if key in _SECRETS else _show(details["input"])
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        return SpecProblem(source, key, _unknown_key(details["loc"]))
    if kind == "string_pattern_mismatch":
        field_info = _section(details["loc"][:-1]).model_fields[str(details["loc"][-1])]
        allowed = f"must match {context['pattern']}"
        return SpecProblem(source, key, f"{value} is not allowed: {field_info.description} ({allowed})")
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        names = ", ".join(_section(details["loc"]).model_fields)
        return SpecProblem(source, key, f"{value} is not allowed: needs keys: {names}")
    reason = _PYDANTIC_PREFIX.sub("", details["msg"])
    if not details["loc"] or isinstance(details["input"], dict):
        return SpecProblem(source, key, reason)
    if kind in _BOUNDS:
        reason = f"needs a number {_BOUNDS[kind].format(**context)}"
    elif kind != "value_error":
        reason = f"needs {reason}"
    return SpecProblem(source, key, f"{value} is not allowed: {reason}")


def _section(location: Sequence[int | str]) -> type[BaseModel]:
    section: type[BaseModel] = DeploymentSpec
    for part in location:
        annotation = section.model_fields[str(part)].annotation
        if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
            break
        section = annotation
    return section


def _unknown_key(location: Sequence[int | str]) -> str:
    allowed = list(_section(location[:-1]).model_fields)
    close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown key; {hint}allowed: {', '.join(allowed)}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
