"""The tokenizer of the tiny models, and a model folder without weights. No torch.

Byte-level with no merges: token id = byte for ids below 256, then the special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
IM_END = 257
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """The library's tokenizer, not saved anywhere."""
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


def write_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def text_folder(folder: Path) -> Path:
    """A model folder with all that a router reads and no weights. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    config = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "eos_token_id": IM_END}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
