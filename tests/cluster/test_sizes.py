from __future__ import annotations

import pytest

from cluster.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GiB", 1 << 30), ("1.5 MiB", 3 << 19), ("10kb", 10_000), ("7", 7), ("2GB", 2_000_000_000)],
)
def test_parse(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "1 GiBs", "-1GiB", "1TiB", "1,5GiB"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="512MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1048577GiB", "9" * 400 + "GiB"])
def test_parse_refuses_what_no_machine_has(text: str) -> None:
    with pytest.raises(ValueError, match="at most 1048576 GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "expected"), [(12, "12 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_format(num_bytes: int, expected: str) -> None:
    assert format_size(num_bytes) == expected
