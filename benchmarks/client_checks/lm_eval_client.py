"""lm-eval on a small task of its own, scored over the deployment and by transformers on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

from benchmarks.client_checks.checks import Checks, Target, expect

CHOICES = [
    ("The sky on a clear day is", ["blue", "wooden", "seven"], 0),
    ("Two plus two equals", ["nine", "four", "green"], 1),
    ("A cat is a kind of", ["planet", "metal", "animal"], 2),
    ("Fish live in", ["water", "books", "Tuesday"], 0),
    ("The opposite of hot is", ["loud", "cold", "round"], 1),
    ("Bread is made from", ["glass", "clouds", "flour"], 2),
    ("Snow is usually", ["white", "square", "angry"], 0),
    ("A week has seven", ["legs", "days", "roofs"], 1),
]
QUESTIONS = [
    ("What is the capital of France?", "Paris"),
    ("What colour is grass?", "green"),
    ("How many days has a week?", "seven"),
    ("What do bees make?", "honey"),
]
CHOICE_TASK = """task: kvrelay_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list: [{metric: acc}, {metric: acc_norm}]
metadata: {version: 1.0}
"""
ANSWER_TASK = """task: kvrelay_answer
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def write_tasks(folder: Path) -> None:
    """Both tasks with their data."""
    choices = [{"question": q, "choices": c, "label": label} for q, c, label in CHOICES]
    answers = [{"question": q, "answer": a} for q, a in QUESTIONS]
    for name, task, rows in (("choice", CHOICE_TASK, choices), ("answer", ANSWER_TASK, answers)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(task.replace("FILE", str(data)))


def score(folder: Path, task: str, model: str, settings: dict[str, Any], chat: bool) -> tuple[Any, Any]:
    """Metrics, and the responses one by one."""
    found: Any = lm_eval.simple_evaluate(
        model=model, model_args=settings, tasks=[task], task_manager=TaskManager(include_path=str(folder)),
        apply_chat_template=chat, log_samples=True, bootstrap_iters=0, batch_size=1,
    )  # fmt: skip
    metrics = {
        name: value
        for name, value in found["results"][task].items()
        if isinstance(value, float) and "stderr" not in name
    }
    return metrics, [sample["filtered_resps"] for sample in found["samples"][task]]


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    folder = Path(target.folder)
    write_tasks(folder)
    url = f"{target.openai_url}/completions"
    common: dict[str, Any] = {"model": target.model, "num_concurrent": 2, "max_retries": 1}
    text = {**common, "base_url": url, "tokenizer": target.model_dir, "tokenizer_backend": "huggingface"}
    chat = {**common, "base_url": f"{target.openai_url}/chat/completions"}
    yardstick = {"pretrained": target.model_dir, "dtype": "float32", "device": "cpu"}
    with checks("local-completions, log-likelihoods: score equals transformers'"):
        wanted, resps = score(folder, "kvrelay_choice", "hf", yardstick, False)
        found, own = score(folder, "kvrelay_choice", "local-completions", text, False)
        expect(found == wanted and "acc,none" in found, (found, wanted))
        pairs = [pair for samples in zip(own, resps, strict=True) for pair in zip(*samples, strict=True)]
        expect(all(abs(a[0] - b[0]) < 1e-2 and a[1] == b[1] for a, b in pairs), pairs)
    with checks("local-completions, generation: answers equal transformers'"):
        wanted, resps = score(folder, "kvrelay_answer", "hf", yardstick, False)
        found, own = score(folder, "kvrelay_answer", "local-completions", text, False)
        expect(found == wanted and own == resps, (own, resps))
    with checks("local-chat-completions, generation: answers equal transformers'"):
        wanted, resps = score(folder, "kvrelay_answer", "hf", yardstick, True)
        found, own = score(folder, "kvrelay_answer", "local-chat-completions", chat, True)
        expect(found == wanted and own == resps, (own, resps))


if __name__ == "__main__":
    main()
