"""Reads the project's own source: which files there are and what each imports."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_files(pattern: str) -> list[Path]:
    """Files under version control, new ones included, that match a pathspec."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in output.splitlines() if (ROOT / line).is_file()]


def is_generated(path: Path) -> bool:
    """Whether protoc wrote the file."""
    return path.parent == ROOT / "client/kvrelay/v1" and path.name != "__init__.py"


def room_of(path: Path) -> str:
    """Import name of the top-level package that a file belongs to."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "client" else parts[0]


def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; imports are absolute here"
            names.add(node.module or "")
    return names


def function_level_imports(path: Path) -> list[int]:
    """Lines of imports that stand inside functions."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(
                inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)
            )
    return sorted(lines)
