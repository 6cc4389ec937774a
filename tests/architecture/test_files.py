"""Sizes, generated code, skipped tests and stray words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT, is_generated, tracked_files

MAX_LINES = 400

# Every way to leave a test out, with the reason. A marker that is not here is a failure.
ALLOWED_SKIPS: dict[str, str] = {}


def test_files_hold_one_concept() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked_files("*.py")
        if not is_generated(path) and (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long, f"longer than {MAX_LINES} lines: {long}"


def test_generated_code_is_what_the_protos_say(tmp_path: Path) -> None:
    protos = [str(path.relative_to(ROOT / "proto")) for path in tracked_files("proto/*.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    subprocess.run([*command, *(f"proto/{name}" for name in protos)], cwd=ROOT, check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "kvrelay/v1").iterdir()}
    committed = {
        path.name: path.read_text() for path in tracked_files("client/kvrelay/v1/*") if is_generated(path)
    }
    assert sorted(fresh) == sorted(committed), "run `make proto`"
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run `make proto`"


def _skips(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "xfail", "importorskip")
    ]


def test_skipped_tests_are_known() -> None:
    skips = {name for path in tracked_files("tests/*.py") for name in _skips(path)}
    assert skips == set(ALLOWED_SKIPS)


def test_no_machine_path_is_committed() -> None:
    pattern = re.compile(r"/(?:work|root|farm)/")
    text = (".py", ".md", ".toml", ".yaml", ".proto", ".sh", "Makefile", "Dockerfile")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files("*")
        if path.name.endswith(text) and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, wrong
