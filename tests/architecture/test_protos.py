"""Every field of every message says what it is; those that clients see, in a fixed form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, tracked_files

FIELD = re.compile(r"^(?:optional |repeated )?(?:map<[^>]+>|[\w.]+) (\w+) = \d+;|^([A-Z][A-Z_0-9]*) = \d+;")
OPENING = re.compile(r"^(?:message|enum|oneof|service) (\w+) \{")
CALL = re.compile(r"^rpc (\w+)\(")
PROTOS = tracked_files("proto/*.proto")
ASKED = re.compile(r"\. Range: \S.*\. Default: \S.*\. Unit: \S.*\.$")
TOLD = re.compile(r"\. Range: \S.*\. Unit: \S.*\.$")


def described(path: Path) -> Iterator[tuple[str, str]]:
    """(message.field or call, its comment on one line) in a file."""
    owners: list[str] = []
    comment: list[str] = []
    for line in map(str.strip, path.read_text().splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        opening, field, call = OPENING.match(line), FIELD.match(line), CALL.match(line)
        if opening:
            owners.append(opening[1])
        if field:
            yield f"{owners[-1]}.{field[1] or field[2]}", " ".join(comment)
        if call:
            yield call[1], " ".join(comment)
        if line.startswith("}"):
            owners.pop()
        comment = []


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_field_and_call_has_a_comment(path: Path) -> None:
    found = dict(described(path))
    assert len(found) > 5
    assert [name for name, comment in found.items() if not comment] == []


def test_what_clients_see_says_range_default_and_unit() -> None:
    found = dict(described(ROOT / "proto/kvrelay/v1/inference.proto"))
    answers = ("Response.", "LikelyToken.", "TokenLogprob.", "ToolCallDelta.", "Model.")
    wrong = [
        name
        for name, comment in found.items()
        if "." in name and not (TOLD if any(kind in name for kind in answers) else ASKED).search(comment)
    ]
    assert not wrong
    assert len(found) > 60
