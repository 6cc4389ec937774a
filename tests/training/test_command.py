"""`kvrelay train-draft`, from prompts in a file to a head with its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli.main import app
from tests.training.conftest import Written


def _run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["train-draft", "--threads", "1", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVRELAY_HOME", str(tmp_path / "home"))
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"What is {n}?"}) + "\n" for n in range(130)))
    return path


def test_a_head_is_trained_measured_and_trained_on(written: Written, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    common = ("--model", written.model_dir, "--data", prompts, "--out", out, "--prompts", 130)
    common += ("--max-new-tokens", 8, "--batch-tokens", 64, "--draft-vocab", 64, "--measure-every", 2)
    first = _run(*common, "--steps", 3)
    assert first.exit_code == 0, first.output
    assert "step 2: " in first.output
    assert "tokens a pass greedy" in first.output
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
        "training",
    }
    card = (out / "README.md").read_text()
    assert "Prompts of asked.jsonl." in card
    assert "3 steps of about 64" in card
    assert "tokens a pass" in card
    assert "attention that copies" in " ".join(card.split())
    answers = {path: path.stat().st_mtime_ns for path in out.glob("training/answers-*")}
    second = _run(*common, "--steps", 5)
    assert second.exit_code == 0, second.output
    assert "goes on after step 3" in second.output
    assert "5 steps of about 64" in (out / "README.md").read_text()
    assert answers == {path: path.stat().st_mtime_ns for path in out.glob("training/answers-*")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "absent.jsonl"), "absent.jsonl cannot be read"),
        (("--data", "builtin", "--data", "more.jsonl"), "either 'builtin' or files"),
        (("--init", "nowhere", "--prompts", "130"), "nowhere"),
        (("--draft-vocab", "0"), "--draft-vocab"),
        (("--tied",), "the model's LM head is not its embedding"),
        (("--quantization", "int3"), "int3"),
    ],
)
def test_mistakes_are_named(
    written: Written, prompts: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    data = () if "--data" in options else ("--data", prompts)
    short = ("--max-new-tokens", 2)
    result = _run("--model", written.model_dir, "--out", tmp_path / "head", *data, *short, *options)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
