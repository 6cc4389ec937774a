"""What an installation of the client puts on the import path."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "client"
_BUILD = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"


def test_an_editable_installation_is_a_path(tmp_path: Path) -> None:
    """An import hook would lose against any folder named kvrelay beside the script that is run."""
    project = tmp_path / "client"
    shutil.copytree(SOURCE, project, ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    built = subprocess.run(
        [sys.executable, "-c", _BUILD, str(tmp_path)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        paths = [archive.read(name).decode().strip() for name in archive.namelist() if name.endswith(".pth")]
    assert paths == [str(project)]
