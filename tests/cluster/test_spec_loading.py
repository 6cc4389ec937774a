from __future__ import annotations

from pathlib import Path

import pytest

from cluster.environment import read_environment
from cluster.spec_loading import Override, SpecError, load_spec


def _write(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return path


def _problems(path: Path | None, *overrides: Override) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(path, overrides)
    return str(caught.value).splitlines()


def test_everything_has_a_default() -> None:
    spec = load_spec(None)
    assert (spec.name, spec.model, spec.dtype) == ("default", "demo", "float32")
    assert (spec.prefill.replicas, spec.decode.replicas, spec.kv_memory) == (1, 1, 1 << 30)


def test_a_file_and_options_over_it(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "model: demo\nkv_memory: 64MiB\nprefill: {replicas: 2}\n"
        "router: {http_port: 9000, policy: least_loaded}\n",
    )
    spec = load_spec(
        path,
        [
            Override("router.http_port", 0, "--http-port"),
            Override("decode.replicas", 3, "--decode"),
            Override("kv_memory", None, "--kv-memory"),
        ],
    )
    assert spec.kv_memory == 64 << 20
    assert (spec.prefill.replicas, spec.decode.replicas) == (2, 3)
    assert (spec.router.http_port, spec.router.policy) == (0, "least_loaded")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dtype: fp16", ["dtype: 'fp16'", "'float32' or 'bfloat16'"]),
        ("block_size: '16'", ["block_size: '16'", "integer"]),
        ("block_size: 0", ["block_size: 0", "at least 1"]),
        ("kv_memory: 3 bananas", ["kv_memory: '3 bananas'", "GiB"]),
        ("decode: {replicas: 0}", ["decode.replicas: 0", "at least 1"]),
        ("decode: {replica: 1}", ["decode.replica: unknown key", "did you mean replicas?", "threads"]),
        ("prefill: 3", ["prefill: 3", "replicas"]),
        ("router: {http_port: 70000}", ["router.http_port: 70000", "at most 65535"]),
        ("router: {policy: random}", ["router.policy: 'random'", "cost", "least_loaded"]),
        ("redis: {url: localhost}", ["redis.url: 'localhost'", "redis://"]),
        ("ray: {address: 'ray://host:10001'}", ["ray.address: 'ray://host:10001'", "host:port"]),
        ("ray: {auth: maybe}", ["ray.auth: 'maybe'", "'token' or 'disabled'"]),
        ("name: Ups", ["name: 'Ups'", "lower case"]),
        ("log: {level: loud}", ["log.level: 'loud'", "'warning'"]),
        ("health: {silence_s: 1}", ["health: silence_s (1)", "heartbeat_s (0.5)"]),
        ("debug: {check_invariants: 1}", ["debug.check_invariants: 1", "boolean"]),
        ("prefill: {replicas: 0}\nrouter: {force_remote_prefill: true}", ["force_remote_prefill needs"]),
        ("modell: x", ["modell: unknown key", "did you mean model?"]),
        ("1: x", ["1: unknown key", "allowed: name, model"]),
        ("model: ''", ["model: ''", "needs at least 1 character"]),
        ("kv_memory: 4503599627370496", ["kv_memory: 4503599627370496", "at most 1125899906842624"]),
        ("swap_memory: some", ["swap_memory: 'some'", "GiB"]),
        ("max_decode_slowdown: 0.5", ["max_decode_slowdown: 0.5", "at least 1, or 0"]),
        ("max_decode_slowdown: 1001", ["max_decode_slowdown: 1001", "at most 1000"]),
        ("decode: {threads: 1000}", ["decode.threads is 1000, but this machine has", "cores; at most"]),
        ("max_model_len: 1", ["max_model_len: 1", "at least 2"]),
        ("router: {http_port: 9000, grpc_port: 9000}", ["router: http_port and grpc_port are both 9000"]),
        ("health: {drain_timeout_s: .inf}", ["health.drain_timeout_s: inf", "finite"]),
    ],
)
def test_an_error_names_file_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = _write(tmp_path, text)
    problems = _problems(path)
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}: ")
    for part in expected:
        assert part in problems[0]


def test_all_errors_are_named_at_once(tmp_path: Path) -> None:
    assert len(_problems(_write(tmp_path, "dtype: x\nblock_size: 0\nlog: {format: xml}\n"))) == 3


def test_an_error_of_an_option_names_the_option(tmp_path: Path) -> None:
    path = _write(tmp_path, "block_size: 16")
    problems = _problems(path, Override("block_size", 0, "--block-size"))
    assert problems == ["--block-size: block_size: 0 is not allowed: needs a number of at least 1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: [", "deploy.yaml:1:9: not valid YAML"),
        ("model: a\nmodel: b", "deploy.yaml:2:1: not valid YAML: key 'model' is given twice"),
        ("- a\n- b", "needs keys and values"),
        ("model: !!python/object:os.system x", "not valid YAML"),
        ("? [a, b]\n: 1", "deploy.yaml:1:3: not valid YAML: a key must be a plain word"),
        ("{}: 1", "deploy.yaml:1:1: not valid YAML: a key must be a plain word"),
        ("name: 2024-13-45", "not valid YAML: month must be in 1..12"),
        ("[" * 5000, "not valid YAML: nested too deeply"),
    ],
)
def test_a_file_that_is_no_spec(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in _problems(_write(tmp_path, text))[0]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert _problems(tmp_path / "none.yaml") == [f"{tmp_path / 'none.yaml'}: no such file"]
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in _problems(binary)[0]


def test_the_environment_fills_what_nobody_said(tmp_path: Path) -> None:
    environment = read_environment({"KVRELAY_API_KEY": "from-env", "KVRELAY_LOG_LEVEL": "debug"})
    assert load_spec(None, (), environment).router.api_key == "from-env"
    path = _write(tmp_path, "router: {api_key: from-file}")
    spec = load_spec(path, (), environment)
    assert (spec.router.api_key, spec.log.level) == ("from-file", "debug")
    option = Override("router.api_key", "from-option", "--api-key")
    assert load_spec(path, [option], environment).router.api_key == "from-option"


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"KVRELAY_LOG_LEVEL: log\.level: 'loud'"):
        load_spec(None, (), read_environment({"KVRELAY_LOG_LEVEL": "loud"}))


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    problems = _problems(_write(tmp_path, "router: {api_key: [hunter2]}"))
    assert "hunter2" not in problems[0]


def test_external_routers_and_resources(tmp_path: Path) -> None:
    text = "router: {external: ['routers:8002', '[::1]:1']}\nray: {address: 'ray-head:6379'}\n"
    spec = load_spec(_write(tmp_path, text + "prefill: {resources: {kvrelay_prefill: 1}}\n"))
    assert spec.router.external == ("routers:8002", "[::1]:1")
    assert spec.prefill.resources == {"kvrelay_prefill": 1.0}
    assert spec.decode.resources == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("router: {external: ['routers']}", ["router.external", "host:port", "routers"]),
        ("router: {external: ['http://routers:8002']}", ["router.external", "host:port"]),
        ("router: {external: ['routers:80020']}", ["router.external", "host:port"]),
        ("router: {external: [1]}", ["router.external.0", "1"]),
        ("prefill: {resources: {GPU: 1}}", ["prefill.resources", "GPU", "custom"]),
        ("decode: {resources: {fast: 1.5}}", ["decode.resources", "fast", "whole"]),
        ("decode: {resources: {fast: many}}", ["decode.resources.fast", "many"]),
        ("decode: {resources: {fast: 1}}", ["decode.resources", "ray.address"]),
    ],
)
def test_external_routers_and_resources_that_cannot_be(tmp_path: Path, text: str, says: list[str]) -> None:
    (problem,) = _problems(_write(tmp_path, text))
    for part in says:
        assert part in problem
