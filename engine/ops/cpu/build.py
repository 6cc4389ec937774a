"""Builds the kernels, once for each kind of CPU.

A library is named by a digest of its source and flags, so that it is found again at the next start, and
never by mistake. It is built for a kind of CPU rather than for "this machine", so that an image or a shared
folder serves machines that differ. Install builds into the package (`python -m engine.ops.cpu.build`), and an
engine that finds nothing there into its own cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
"""What is compiled; it includes the headers (*.h) beside it."""
PACKAGED = Path(__file__).with_name("built")
DEFAULT_CACHE = Path("~/.cache/kvrelay/kernels").expanduser()

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")
_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_DIGEST_BYTES = 8
_TIMEOUT_S = 300


class BuildError(Exception):
    """The kernels cannot be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of CPU.

    Attributes:
        name: part of the file's name.
        machine: as `platform.machine()` calls it.
        features: that the CPU must have, in /proc/cpuinfo's words.
        flags: of the compiler.
    """

    name: str
    machine: str
    features: frozenset[str]
    flags: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Of the library built from the present source."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for path in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
        digest.update(repr((_FLAGS, self.flags)).encode())
        return f"kernels-{self.name}-{digest.hexdigest()}.so"


TARGETS = (
    Target(
        "avx512bf16",
        "x86_64",
        _AVX512 | {"avx512_vnni", "avx512_bf16"},
        ("-march=cooperlake", "-mprefer-vector-width=512"),
    ),
    Target(
        "avx512vnni",
        "x86_64",
        _AVX512 | {"avx512_vnni"},
        ("-march=cascadelake", "-mprefer-vector-width=512"),
    ),
    Target("avx512", "x86_64", _AVX512, ("-march=skylake-avx512", "-mprefer-vector-width=512")),
    Target("avx2", "x86_64", _AVX2, ("-march=haswell",)),
    Target("neon", "aarch64", frozenset(), ("-march=armv8-a",)),
)
"""Best first."""


def supported_targets() -> tuple[Target, ...]:
    """Those that this CPU can run, best first."""
    machine, features = platform.machine(), _cpu_features()
    return tuple(target for target in TARGETS if target.machine == machine and target.features <= features)


def best_target() -> Target:
    """Raises BuildError where there is none."""
    targets = supported_targets()
    if not targets:
        raise BuildError(f"no kernels for this CPU ({platform.machine()} without AVX2)")
    return targets[0]


def find(target: Target, cache: Path) -> Path | None:
    """The built library, or None."""
    for folder in (PACKAGED, cache):
        path = folder / target.file_name
        if path.is_file():
            return path
    return None


def require_compiler() -> str:
    """Path of the C++ compiler. Raises BuildError where there is none."""
    for name in _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BuildError(f"no C++ compiler: none of {', '.join(_COMPILERS)} is installed")


def build(target: Target, folder: Path) -> Path:
    """Builds the library into the folder unless it is there; seconds. Of processes that ask at once one does.

    Raises:
        BuildError: no compiler, or it failed, or the folder cannot be written.
    """
    path = folder / target.file_name
    if path.is_file():
        return path
    compiler = require_compiler()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
            if path.is_file():
                return path
            handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        except OSError as error:
            raise BuildError(f"cannot write {folder}: {error}") from error
        os.close(handle)
        _compile(compiler, target, Path(name), path)
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process, however that ends.

    The workers of a machine start together: without it as many compilers would take its cores from them.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some shared file systems lock no folders: there several build, and the last one's result stays.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compile(compiler: str, target: Target, fresh: Path, path: Path) -> None:
    """Compiles into `fresh` and gives it its name. Raises BuildError; `fresh` is gone then."""
    try:
        command = [compiler, *_FLAGS, *target.flags, str(SOURCE), "-o", str(fresh)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        if result.returncode:
            raise BuildError(f"{compiler} failed: {result.stderr.strip()[-2000:]}")
        fresh.chmod(0o755)
        fresh.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} failed: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _cpu_features() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def main() -> None:
    """Builds into the package: for this CPU, or with --all for every CPU of this machine's architecture."""
    try:
        if "--all" in sys.argv[1:]:
            targets = [target for target in TARGETS if target.machine == platform.machine()]
        else:
            targets = [best_target()]
        for target in targets:
            print(f"CPU kernels: {build(target, PACKAGED).name}")
    except BuildError as error:
        print(f"CPU kernels were not built, so the engine will use torch: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
