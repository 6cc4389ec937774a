"""Deployments that cannot be: each command ends with a clear error, no traceback, and no process left."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.live_cluster import run_kvrelay
from tests.support.tiny_models import tiny_llama

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def refused(home: Path, *arguments: str) -> str:
    """What the command says on standard error; it must fail."""
    result = run_kvrelay(home, *arguments)
    assert result.returncode in (1, 2), result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert "error:" in result.stderr
    assert not (home / "run" / "default.json").exists()
    return result.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def _spec(folder: Path, text: str) -> str:
    path = folder / "spec.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dtype", "float16"), "--dtype: dtype: 'float16' is not allowed"),
        (("--model", "/no/such/folder"), "model '/no/such/folder' not found"),
        (("--kv-memory", "lots"), "--kv-memory"),
        (("--prefill", "-1"), "--prefill"),
        (("--decode", "0"), "--decode"),
        (("--prefill", "0", "--force-remote-prefill"), "force_remote_prefill needs prefill.replicas"),
        (("--http-port", "70000"), "--http-port"),
        (("--redis", "http://127.0.0.1"), "--redis"),
        (("no-such-spec.yaml",), "no-such-spec.yaml: no such file"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(tmp_path, "up", *arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prefil: {replicas: 2}", "prefil: unknown key; did you mean prefill?"),
        ("router: {http_prot: 1}", "router.http_prot: unknown key; did you mean http_port?"),
        ("dtype: float16", "dtype: 'float16' is not allowed"),
        ("a: [", "not valid YAML"),
    ],
)
def test_specs_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    for command in ("up", "validate"):
        assert says in refused(tmp_path, command, _spec(tmp_path, text))


def test_port_in_use(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--http-port", "--grpc-port"):
            other = "--grpc-port" if option == "--http-port" else "--http-port"
            said = refused(tmp_path, "up", "--model", str(model), option, port, other, "0")
            key = option.removeprefix("--").replace("-", "_")
            assert f"router.{key}: port {port} of 127.0.0.1 cannot be used" in said


def _folder(tmp_path: Path, model: Path) -> Path:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_corrupt_safetensors(tmp_path: Path, model: Path) -> None:
    folder = _folder(tmp_path, model)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    said = refused(tmp_path, "up", "--model", str(folder), "--http-port", "0", "--grpc-port", "0")
    assert str(weights) in said


def test_missing_weight(tmp_path: Path, model: Path) -> None:
    folder = _folder(tmp_path, model)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights)
    said = refused(tmp_path, "up", "--model", str(folder), "--http-port", "0", "--grpc-port", "0")
    assert "model.norm.weight" in said


def test_folders_that_are_no_model(tmp_path: Path, model: Path) -> None:
    folder = _folder(tmp_path, model)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    assert "mamba" in refused(tmp_path, "up", "--model", str(folder))
    (folder / "config.json").write_text("{")
    assert "config.json" in refused(tmp_path, "up", "--model", str(folder))
    (folder / "config.json").unlink()
    assert "config.json" in refused(tmp_path, "up", "--model", str(folder))


def test_no_deployment_to_speak_to(tmp_path: Path) -> None:
    for arguments in (("status",), ("generate", "hi"), ("chat",), ("down",)):
        assert "no deployment named 'default' runs here" in refused(tmp_path, *arguments)
