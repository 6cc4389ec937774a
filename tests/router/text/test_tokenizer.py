from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from router.text.errors import ModelFilesError
from router.text.tokenizer import INLINE_CHARACTERS, Tokenizer
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, text_folder

TEXTS = (
    "",
    "hello",
    "<|im_start|>user\nhi<|im_end|>",
    "naïve 😀 中文",
    " \n\t ",
    "x" * (INLINE_CHARACTERS + 1),
)

BOS_POST_PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [256], "tokens": ["<|im_start|>"]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return text_folder(tmp_path / "model")


@pytest.mark.parametrize("text", TEXTS)
async def test_ids_equal_those_of_transformers(folder: Path, text: str) -> None:
    reference = AutoTokenizer.from_pretrained(folder)
    ids = await Tokenizer.load(folder).encode(text, add_special_tokens=False)
    assert ids == reference(text, add_special_tokens=False)["input_ids"]


async def test_post_processor_applies_only_when_asked(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = BOS_POST_PROCESSOR
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer.load(folder)
    assert await tokenizer.encode("a", add_special_tokens=True) == [256, 97]
    assert await tokenizer.encode("a", add_special_tokens=False) == [97]


@pytest.mark.parametrize("add_bos_token", [None, True, False])
@pytest.mark.parametrize("writes_bos", [True, False])
async def test_the_post_processor_alone_decides_on_bos(
    folder: Path, writes_bos: bool, add_bos_token: bool | None
) -> None:
    """As in transformers, which ignores `add_bos_token` where there is a tokenizer.json."""
    path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content, config = json.loads(path.read_text()), json.loads(config_path.read_text())
    if writes_bos:
        content["post_processor"] = BOS_POST_PROCESSOR
    path.write_text(json.dumps(content))
    wanted = {"bos_token": "<|im_start|>"} | (
        {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    )
    config_path.write_text(json.dumps(config | wanted))
    ids = await Tokenizer.load(folder).encode("a", add_special_tokens=True)
    assert ids == AutoTokenizer.from_pretrained(folder)("a")["input_ids"]
    assert ids == ([256, 97] if writes_bos else [97])


async def test_truncation_and_padding_of_the_file_are_off(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    assert len(await Tokenizer.load(folder).encode("a" * 100, add_special_tokens=False)) == 100


def test_vocabulary_and_eos(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert tokenizer.eos_token_ids == {IM_END}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert Tokenizer.load(folder).eos_token_ids == {7, 8}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("config.json", None, "config.json is missing"),
        ("config.json", "nonsense", "config.json cannot be read"),
        ("config.json", "[]", "must hold a JSON object"),
        ("config.json", '{"vocab_size": 0}', "vocab_size"),
    ],
)
def test_bad_files_are_named(folder: Path, name: str, content: str | None, says: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ModelFilesError, match=says):
        Tokenizer.load(folder)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")


def test_unknown_decoder_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(content))
    with pytest.raises(ModelFilesError, match="WordPiece"):
        Tokenizer.load(folder)
