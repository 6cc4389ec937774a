"""Tiny random models in the Hugging Face folder form, made by transformers itself.

The tokenizer is byte-level with no merges: token id = byte for ids below 256, then the special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
IM_END = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # GPT-2's byte alphabet: printable bytes stand for themselves, the others for code points from 256.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {byte: chr(byte) for byte in printable}
    extra = 0
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + extra)
            extra += 1
    assert sorted(symbols.values()) == alphabet
    tokenizer = Tokenizer(models.BPE(vocab={symbols[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    return tokenizer


def _save(model: PreTrainedModel, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    _byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _shapes(max_model_len: int) -> dict[str, int | float]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_model_len,
        "bos_token_id": 256,
        "eos_token_id": IM_END,
        "pad_token_id": 258,
        # Larger than the usual 0.02: random logits then lie far enough apart for greedy comparisons.
        "initializer_range": 0.2,
    }


def tiny_llama(folder: Path, seed: int = 0, max_model_len: int = 4096, tie: bool = True) -> Path:
    """Llama with 3 layers, hidden size 64, 4/2 heads, 259 tokens. Returns the folder."""
    torch.manual_seed(seed)
    config = LlamaConfig(**_shapes(max_model_len), tie_word_embeddings=tie)
    return _save(LlamaForCausalLM(config).to(torch.float32), folder)


def tiny_qwen2(folder: Path, seed: int = 0, max_model_len: int = 4096) -> Path:
    """Qwen2 (biased q, k, v) of the same shapes. Returns the folder."""
    torch.manual_seed(seed)
    config = Qwen2Config(**_shapes(max_model_len), tie_word_embeddings=False)
    model = Qwen2ForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.bias"):
                parameter.normal_(std=0.5)
    return _save(model, folder)
