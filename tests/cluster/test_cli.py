"""What users do wrong, and what they are told. Nothing here starts a deployment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli.generate import result_json
from cluster.cli.main import app
from cluster.cli.sampling import generate_options
from kvrelay import Choice, FinishReason, Generation, LikelyToken, TokenLogprob, Usage
from tests.support.tiny_models import tiny_llama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVRELAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("KVRELAY_API_KEY", raising=False)
    return tmp_path / "home"


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    # Users' mistakes end in a message, never in a trace.
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize(
    "command",
    ["up", "down", "status", "chat", "generate", "demo", "validate", "models", "train-draft"],
)
def test_every_command_explains_itself(command: str) -> None:
    listed = _run("--help")
    assert command in listed.output
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version() -> None:
    result = _run("--version")
    assert (result.exit_code, result.output.split()[0]) == (0, "kvrelay")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nonsense",), "No such command"),
        (("generate",), "Missing argument"),
        (("up", "--prefill", "two"), "--prefill"),
        (("up", "--dtype", "fp16"), "--dtype: dtype: 'fp16' is not allowed: needs 'float32' or 'bfloat16'"),
        (("up", "--decode", "0"), "--decode: decode.replicas: 0 is not allowed"),
        (("up", "--kv-memory", "lots"), "--kv-memory: kv_memory: 'lots' is not allowed"),
        (
            ("up", "--tool-parser", "xml"),
            "--tool-parser: router.tool_parser: 'xml' is not allowed: needs one of: "
            "auto, none, hermes, llama3_json",
        ),
        (
            ("up", "--reasoning-parser", "deep"),
            "--reasoning-parser: router.reasoning_parser: 'deep' is not allowed: needs one of: "
            "auto, none, think",
        ),
        (("up", "--swap-memory", "-1"), "--swap-memory: swap_memory: '-1' is not allowed"),
        (("up", "none.yaml"), "none.yaml: no such file"),
        (("up", "--cors-origin", "chat.example"), "--cors-origin: router.cors_origins"),
        (("up", "--prefill", "0", "--force-remote-prefill"), "force_remote_prefill needs prefill.replicas"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert expected in result.output


@pytest.mark.parametrize("command", ["status", "down", "chat"])
def test_no_deployment_is_exit_code_1(command: str) -> None:
    result = _run(command)
    assert result.exit_code == 1
    assert "no deployment named 'default' runs here" in result.output


def test_validate_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("decode: {replicas: 2}\n")
    assert _run("validate", str(path)).output == f"{path}: valid (default: demo, 1 prefill, 2 decode)\n"
    path.write_text("decode: {replicas: two}\n")
    result = _run("validate", str(path))
    assert result.exit_code == 1
    assert f"{path}: decode.replicas: 'two' is not allowed: needs integer" in result.output


@pytest.mark.parametrize(
    ("model", "expected"),
    [("missing", "model 'missing' not found"), ("no-such-owner/", "not found"), (".", "config.json")],
)
def test_a_model_that_is_not_there(
    model: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _run("up", "--model", model)
    assert result.exit_code == 1
    assert expected in result.output


def test_models_are_imported_and_listed(tmp_path: Path, home: Path) -> None:
    source = tiny_llama(tmp_path / "tiny")
    assert _run("models", "list").output == ""
    imported = _run("models", "import", str(source), "--name", "mine")
    assert imported.exit_code == 0, imported.output
    assert str(home / "models" / "mine") in imported.output
    assert _run("models", "list").output == "mine\n"
    again = _run("models", "import", str(source), "--name", "mine")
    assert again.exit_code == 1
    assert "mine" in again.output
    assert _run("models", "import", str(tmp_path / "none")).exit_code == 1


def test_a_leftover_state_file_is_recognised(home: Path) -> None:
    supervisor = {"name": "supervisor", "pid": 1, "start_ticks": 123456789}
    state = {"name": "default", "instance": "gone", "supervisor": supervisor, "phase": "ready"}
    path = home / "run" / "default.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(state))
    result = _run("status")
    assert result.exit_code == 1
    assert "is gone" in result.output
    down = _run("down")
    assert down.exit_code == 0
    assert "was gone already" in down.output
    assert not path.exists()
    path.write_text("{")
    assert "default.json is not a state file" in _run("status").output


@pytest.mark.parametrize("arguments", [("up", "--model"), ("models", "import")])
def test_a_home_that_cannot_be_written(home: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    model = tiny_llama(tmp_path / "tiny")
    home.touch()
    result = _run(*arguments, str(model))
    assert result.exit_code == 1
    assert f"(KVRELAY_HOME is {home})" in result.output


def test_a_home_that_is_a_file_holds_no_deployment(home: Path) -> None:
    home.touch()
    result = _run("status")
    assert result.exit_code == 1
    assert "default.json cannot be read: Not a directory" in result.output


@pytest.mark.parametrize("command", [("generate", "hi"), ("chat",)])
@pytest.mark.parametrize("option", ["top_k", "nonsense=1", "=1"])
def test_options_that_do_not_exist(command: tuple[str, ...], option: str) -> None:
    result = _run(*command, "-o", option)
    assert result.exit_code == 2
    assert f"-o {option}: needs NAME=VALUE" in result.output
    assert "repetition_penalty" in result.output


def test_options_of_the_commands_that_generate() -> None:
    more = ["n=2", 'logit_bias={"7": -1.5}', 'bad_words=["a"]', "request_id=mine", "echo=true"]
    assert generate_options(more, max_tokens=4, temperature=None, stop=["x"]) == {
        "max_tokens": 4,
        "stop": ["x"],
        "n": 2,
        "logit_bias": {7: -1.5},
        "bad_words": ["a"],
        "request_id": "mine",
        "echo": True,
    }


def test_tokens_of_log_probabilities_are_text_in_json() -> None:
    position = TokenLogprob(5, b"\xc3", -0.5, 1, (LikelyToken(6, b"a", -1.0),))
    choice = Choice(0, "é", (5,), FinishReason.STOP, None, (position,))
    written = json.loads(result_json(Generation("r", (choice,), Usage(1, 1, 0))))
    assert written["choices"][0]["logprobs"][0]["token"] == "\\xc3"
    assert written["choices"][0]["logprobs"][0]["top"][0]["token"] == "a"
