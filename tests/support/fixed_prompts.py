"""Prompts whose answers are counted on: of a talk, of a text to be repeated, of code and of arithmetic."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

_ASKED = (
    "What should I pack for a weekend of hiking in the mountains in autumn?",
    "Repeat the following text word for word: The harbour lies below the old town. In the morning the boats "
    "come in with the night's catch, and the gulls follow them to the quay. By noon the market is over, and "
    "the harbour is quiet until the boats go out again in the evening.",
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "A baker sells 24 loaves in the morning and half as many in the afternoon. Each loaf costs 3 dollars. "
    "How much money does the baker earn in a day? Explain step by step.",
)


def fixed_prompts(model_dir: Path) -> list[list[int]]:
    """Tokens of the demo model's chats with nothing but a question."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in _ASKED]
    return [tokenizer.encode(chat, add_special_tokens=False).ids for chat in chats]
