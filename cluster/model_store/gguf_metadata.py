"""Typed reading of a GGUF file's metadata (https://github.com/ggml-org/ggml, docs/gguf.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from gguf import GGUFReader

from cluster.model_store.errors import ModelStoreError

T = TypeVar("T")


class GgufMetadata:
    """The key-value pairs of one file. The reader's own types are not annotated, hence Any."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises ModelStoreError where it is not a whole GGUF file."""
        self.path = path
        try:
            self.reader: Any = GGUFReader(path)
        except (ValueError, IndexError, OSError, OverflowError) as error:
            raise ModelStoreError(f"{path} is not a GGUF file, or is cut short: {error}") from error

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.require("general.architecture", str)

    def value(self, key: str) -> object:
        """A value by key; `{arch}` in it stands for the architecture. None where it is absent."""
        if "{arch}" in key:
            key = key.replace("{arch}", self.architecture)
        field = self.reader.fields.get(key)
        return None if field is None else field.contents()

    def get(self, key: str, kind: type[T]) -> T | None:
        """A value of the given type, or None. Raises ModelStoreError for another type."""
        value = self.value(key)
        if value is not None and not isinstance(value, kind):
            raise ModelStoreError(f"{self.path}: {key} is {value!r}, which is no {kind.__name__}")
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """A value of the given type. Raises ModelStoreError where it is absent."""
        value = self.get(key, kind)
        if value is None:
            raise ModelStoreError(f"{self.path}: {key} is missing")
        return value

    def require_number(self, key: str) -> float:
        """A number, freed of the noise of being stored in 32 bits (1e-05, not 9.99999974e-06)."""
        value = self.value(key)
        if not isinstance(value, int | float):
            raise ModelStoreError(f"{self.path}: {key} is {value!r}, which is no number")
        return float(f"{value:.6g}")
