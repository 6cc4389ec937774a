"""The `llm` command, with the deployment in its extra-openai-models.yaml."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.client_checks.checks import Checks, Target, command, expect

QUESTION = "Name three colours of the rainbow."


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    entry = f"model_name: {target.model}\n  api_base: {target.openai_url}\n"
    (Path(target.folder) / "extra-openai-models.yaml").write_text(
        f"- model_id: chat\n  {entry}  supports_schema: true\n  supports_tools: true\n"
        f"- model_id: text\n  {entry}  completion: true\n"
    )
    variables = {"LLM_USER_PATH": target.folder}
    greedy = ("-o", "temperature", "0", "-o", "max_tokens", "16")

    def llm(*arguments: str) -> str:
        return command(["llm", *arguments], variables).strip()

    answer = ""
    with checks("models"):
        listed = llm("models", "list")
        expect("chat" in listed and "text" in listed, listed)
    with checks("prompt without stream"):
        answer = llm("-m", "chat", "--no-stream", *greedy, QUESTION)
        expect(answer, answer)
    with checks("prompt with stream"):
        streamed = llm("-m", "chat", *greedy, QUESTION)
        expect(streamed == answer, streamed)
    with checks("system prompt and seed"):
        expect(llm("-m", "chat", "-s", "Answer in French.", "-o", "seed", "3", *greedy, QUESTION), "nothing")
    with checks("continued conversation"):
        expect(llm("-c", *greedy, "And three more?"), "nothing")
    with checks("completion model"):
        expect(llm("-m", "text", *greedy, "One, two,"), "nothing")
    with checks("schema"):
        schema = {
            "type": "object",
            "properties": {"legs": {"type": "integer", "enum": [2, 4]}},
            "required": ["legs"],
            "additionalProperties": False,
        }
        found = json.loads(llm("-m", "chat", "--no-stream", "--schema", json.dumps(schema), "A cat."))
        expect(found["legs"] in (2, 4), found)
    with checks("tools offered"):
        # Whether a model of this size calls one is its own affair; the conversation must end well.
        llm("-m", "chat", "-T", "llm_version", "-o", "max_tokens", "64", "-o", "temperature", "0", QUESTION)


if __name__ == "__main__":
    main()
