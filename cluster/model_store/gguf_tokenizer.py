"""The tokenizer inside a GGUF file, as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from cluster.model_store.errors import ModelStoreError
from cluster.model_store.gguf_metadata import GgufMetadata

# Token types of the GGUF specification.
_CONTROL = 3
_USER_DEFINED = 4
# Text is split by this before byte pairs are merged; published in Qwen2's tokenizer.json.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _qwen2() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "qwen2": _qwen2,
    "smollm": _smollm,
}


def write_tokenizer(metadata: GgufMetadata, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, chat template included.

    Raises:
        ModelStoreError: no byte-level BPE tokenizer, or one whose way of splitting is not known here.
    """
    model = metadata.require("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise ModelStoreError(f"{metadata.path}: tokenizer {model!r} is not supported, only byte-level BPE")
    split = metadata.require("tokenizer.ggml.pre", str)
    if split not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelStoreError(f"{metadata.path}: pre-tokenizer {split!r} is not supported; there are {known}")
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens", list)
    types: list[int] = metadata.require("tokenizer.ggml.token_type", list)
    merges: list[str] = metadata.require("tokenizer.ggml.merges", list)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[_pair(merge, metadata) for merge in merges],
        )
    )
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token, kind in kinds if kind == _USER_DEFINED]
    )
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    named = {
        name: tokens[index]
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
        if (index := metadata.get(f"tokenizer.ggml.{key}_token_id", int)) is not None
    }
    if metadata.get("tokenizer.ggml.add_bos_token", bool):
        bos = named["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokens.index(bos))]
        )
    template = metadata.get("tokenizer.chat_template", str)
    if template is not None:
        config["chat_template"] = template
    # Not `save`, which raises a bare Exception where the disk is full.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    text = json.dumps(config | named, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _pair(merge: str, metadata: GgufMetadata) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelStoreError(f"{metadata.path}: merge {merge!r} is no pair")
    return left, right
