"""Building the kernels, doing without them, and changing over to them."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.cpu import CpuAttention
from engine.attention.registry import create_backend
from engine.attention.sdpa import SdpaAttention
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.models.upgrade import UpgradingModel
from engine.ops import registry
from engine.ops.cpu import build as building
from engine.ops.cpu.build import BuildError, best_target, build, find, supported_targets
from engine.ops.cpu.ops import CpuOps
from engine.ops.torch_ops import TorchOps
from tests.support.paged import PagedModel
from tests.support.tiny_models import tiny_llama

PROMPTS = [[1, 2, 3], list(range(50))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a machine where nothing was built; returns the empty cache."""
    monkeypatch.setattr(building, "PACKAGED", tmp_path / "none")
    registry._say_once.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building.shutil, "which", lambda _: None)


def parts(model: object) -> tuple[type, type]:
    assert isinstance(model, Decoder)
    return type(model._ops), type(model._attention)


def build_in_process(folder: Path, compiled: Path) -> None:
    """Builds; each compilation adds a line to the file."""
    compile_it = building._compile

    def counted(*arguments: Any) -> None:
        with compiled.open("a") as lines:
            lines.write("compiled\n")
        compile_it(*arguments)

    building._compile = counted
    build(best_target(), folder)


def test_of_processes_that_build_at_once_one_compiles(nothing_built: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=build_in_process, args=(nothing_built, compiled)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert compiled.read_text() == "compiled\n"
    assert [path.name for path in nothing_built.iterdir()] == [best_target().file_name]
    assert find(best_target(), nothing_built) == nothing_built / best_target().file_name


def test_names_tell_source_and_flags_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = best_target()
    names = {each.file_name for each in supported_targets()} | {replace(target, flags=("-O0",)).file_name}
    assert len(names) == len(supported_targets()) + 1
    source = building.SOURCE
    for name in (source.name, *(path.name for path in source.parent.glob("*.h"))):
        shutil.copytree(source.parent, tmp_path / name, ignore=shutil.ignore_patterns("built"))
        monkeypatch.setattr(building, "SOURCE", tmp_path / name / source.name)
        before = target.file_name
        assert before in names
        with (tmp_path / name / name).open("a") as changed:
            changed.write("\n")
        assert target.file_name not in names


def test_a_source_that_does_not_compile_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "kernels.cpp"
    broken.write_text("int f() { return missing; }")
    monkeypatch.setattr(building, "SOURCE", broken)
    with pytest.raises(BuildError, match="missing"):
        build(best_target(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot write"):
        build(best_target(), tmp_path / "file" / "cache")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_serves_and_the_log_says_why(
    folder: Path, nothing_built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        models = [load_model(folder, kernel_cache=nothing_built) for _ in range(2)]
    assert [parts(model) for model in models] == [(TorchOps, SdpaAttention)] * 2
    reason = "no C++ compiler: none of c++, g++, clang++ is installed"
    said = [record.message for record in caplog.records if "compiler" in record.message]
    assert said == [f"the engine uses torch instead of its CPU kernels: {reason}"]
    answers = PagedModel(models[0]).greedy(PROMPTS, 10, 16)
    assert answers == PagedModel(load_model(folder, ops="torch")).greedy(PROMPTS, 10, 16)
    for settings in ({"ops": "cpu"}, {"attention_backend": "cpu"}):
        with pytest.raises(ValueError, match="ops 'cpu' cannot be had: no C\\+\\+ compiler"):
            load_model(folder, kernel_cache=nothing_built, **settings)


def test_an_unknown_cpu_is_served_by_torch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry._say_once.cache_clear()
    monkeypatch.setattr(building, "_cpu_features", frozenset)
    monkeypatch.setattr(building.platform, "machine", lambda: "x86_64")
    with caplog.at_level(logging.WARNING):
        assert parts(load_model(folder)) == (TorchOps, SdpaAttention)
    assert "no kernels for this CPU" in caplog.text


def test_what_was_built_is_used_at_once(folder: Path, nothing_built: Path) -> None:
    build(best_target(), nothing_built)
    assert parts(load_model(folder, kernel_cache=nothing_built)) == (CpuOps, CpuAttention)


def test_serves_while_kernels_are_built(
    folder: Path, nothing_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is exchanged between two tokens of a running answer, over the same KV."""
    may_build = threading.Event()

    def build_when_told(target: building.Target, cache: Path) -> Path:
        assert may_build.wait(60)
        return build(target, cache)

    monkeypatch.setattr(registry, "build", build_when_told)
    model = load_model(folder, kernel_cache=nothing_built)
    assert isinstance(model, UpgradingModel)
    expected = PagedModel(load_model(folder, ops="torch")).greedy(PROMPTS, 12, 16)
    paged = PagedModel(model)
    sequences = [paged.start(prompt, 12) for prompt in PROMPTS]
    for sequence in sequences:
        sequence.tokens.append(int(paged.prefill(sequence, 16)[-1].argmax()))
    used = []
    for step in range(11):
        if step == 5:
            may_build.set()
            model.wait()
        for sequence, logits in zip(sequences, paged.advance([(each, 1) for each in sequences]), strict=True):
            sequence.tokens.append(int(logits[-1].argmax()))
        used.append(parts(model._model)[0])
    assert used == [TorchOps] * 5 + [CpuOps] * 6
    assert [each.tokens[len(prompt) :] for each, prompt in zip(sequences, PROMPTS, strict=True)] == expected


def test_a_failed_build_leaves_torch_serving(
    folder: Path, nothing_built: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(target: building.Target, cache: Path) -> Path:
        raise BuildError("the disk is full")

    monkeypatch.setattr(registry, "build", fail)
    with caplog.at_level(logging.ERROR):
        model = load_model(folder, kernel_cache=nothing_built)
        assert isinstance(model, UpgradingModel)
        model.wait()
    assert "the disk is full" in caplog.text
    assert len(PagedModel(model).greedy(PROMPTS, 3, 16)[0]) == 3
    assert parts(model._model) == (TorchOps, SdpaAttention)


def test_auto_means_torch_where_the_kernels_do_not_fit(folder: Path) -> None:
    assert parts(load_model(folder, dtype="bfloat16")) == (TorchOps, SdpaAttention)
    with pytest.raises(ValueError, match="in float32, not on 'cpu' in torch"):
        load_model(folder, dtype="bfloat16", ops="cpu")
    with pytest.raises(ValueError, match="'nope' do not exist; there are auto, torch, cpu"):
        load_model(folder, ops="nope")
    with pytest.raises(ValueError, match="'int3' does not exist; there are none, int8"):
        load_model(folder, quantization="int3")
    with pytest.raises(ValueError, match="'cpu' needs ops 'cpu'"):
        load_model(folder, ops="torch", attention_backend="cpu")


def test_heads_that_do_not_fit_leave_attention_to_torch(folder: Path) -> None:
    ops = registry.build_cpu_ops(building.DEFAULT_CACHE)
    config = load_model(folder).config
    assert isinstance(create_backend("auto", config, ops), CpuAttention)
    assert isinstance(create_backend("auto", replace(config, head_dim=24), ops), SdpaAttention)


def test_a_pool_of_another_dtype_is_refused(folder: Path) -> None:
    paged = PagedModel(load_model(folder, ops="cpu", attention_backend="cpu"), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="float32 pool"):
        paged.advance([(paged.start([1, 2], 0), 2)])
