"""Parameters and log probabilities through real workers, against transformers and against themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvrelay import Client
from tests.end_to_end.two_by_two.conftest import MODEL
from tests.support.live_cluster import LiveCluster
from tests.support.requests import prompt
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE

# Below and above the limit for local prefill, in one batch.
PROMPTS = [prompt(length, seed=900 + length) for length in (2, 17, 64, 130, 300)]
CONTINUATION = 2
EVERYTHING: dict[str, Any] = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "typical_p": 0.95, "presence_penalty": 0.5,
    "frequency_penalty": 0.25, "repetition_penalty": 1.1, "bad_words": ["ab"], "seed": 7, "max_tokens": 24,
    "min_tokens": 4, "ignore_eos": True, "logprobs": 3,
}  # fmt: skip


def complete(cluster: LiveCluster, **body: Any) -> dict[str, Any]:
    """One call of /v1/completions."""
    url = f"{cluster.state.http_url}/v1/completions"
    response = httpx.post(url, json={"model": MODEL, **body}, timeout=120.0)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def logprobs_by(reference: Any, token_ids: list[int]) -> torch.Tensor:
    """Row p: the distribution of the token at p + 1, shape [tokens, vocabulary]."""
    with torch.no_grad():
        return torch.log_softmax(reference(torch.tensor([token_ids])).logits[0].float(), dim=-1)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scores_of_prompts_equal_those_of_transformers(
    cluster: LiveCluster, reference: Any, max_tokens: int
) -> None:
    """As an evaluation harness asks: log probability of a continuation, and whether it is the greedy one."""
    answer = complete(
        cluster,
        prompt=[list(token_ids) for token_ids in PROMPTS],
        max_tokens=max_tokens,
        temperature=0,
        echo=True,
        logprobs=1,
        return_tokens_as_token_ids=True,
    )
    assert answer["usage"]["completion_tokens"] == max_tokens * len(PROMPTS)
    for token_ids, choice in zip(PROMPTS, answer["choices"], strict=True):
        expected = logprobs_by(reference, list(token_ids))
        logprobs = choice["logprobs"]
        assert logprobs["tokens"][: len(token_ids)] == [f"token_id:{token_id}" for token_id in token_ids]
        assert len(logprobs["tokens"]) == len(token_ids) + max_tokens
        own = logprobs["token_logprobs"]
        assert own[0] is None
        rows = torch.arange(len(token_ids) - 1)
        right = expected[rows, torch.tensor(token_ids[1:])].tolist()
        assert own[1 : len(token_ids)] == pytest.approx(right, abs=2e-4)
        for position in range(max(1, len(token_ids) - CONTINUATION), len(token_ids)):
            likeliest = max(logprobs["top_logprobs"][position].values())
            assert likeliest == pytest.approx(expected[position - 1].max().item(), abs=2e-4)


def test_logprobs_of_answers_equal_those_of_transformers(client: Client, reference: Any) -> None:
    for token_ids in PROMPTS[:4]:
        answer = client.generate(
            token_ids=token_ids, max_tokens=8, temperature=0, ignore_eos=True, logprobs=2, prompt_logprobs=0
        )
        whole = [*token_ids, *answer.token_ids]
        expected = logprobs_by(reference, whole)
        for number, found in enumerate(answer.logprobs):
            row = expected[len(token_ids) + number - 1]
            assert found.token_id == answer.token_ids[number]
            assert found.logprob == pytest.approx(row[found.token_id].item(), abs=2e-4)
            # Greedy: the drawn token is the likeliest.
            assert (found.rank, found.top[0].token_id) == (1, found.token_id)
            assert [likely.logprob for likely in found.top] == pytest.approx(
                row.topk(2).values.tolist(), abs=2e-4
            )
        assert len(answer.prompt_logprobs) == len(token_ids) - 1


def test_both_doors_give_the_same_with_everything_set(cluster: LiveCluster, client: Client) -> None:
    token_ids = PROMPTS[3]
    bias = {"101": 2.0, "102": -100.0}
    there = complete(
        cluster, prompt=[list(token_ids)], logit_bias=bias, return_token_ids=True, n=2, **EVERYTHING
    )
    here = client.generate(
        token_ids=token_ids, logit_bias={int(key): value for key, value in bias.items()}, n=2, **EVERYTHING
    )
    for choice, ours in zip(there["choices"], here.choices, strict=True):
        assert choice["token_ids"] == list(ours.token_ids)
        assert choice["text"] == ours.text
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(
            [position.logprob for position in ours.logprobs], abs=2e-4
        )
        assert 102 not in ours.token_ids
    assert there["usage"]["completion_tokens"] == here.usage.completion_tokens == 48


def test_bounds_on_what_may_be_drawn(client: Client) -> None:
    common: dict[str, Any] = {"token_ids": PROMPTS[1], "max_tokens": 16, "ignore_eos": True, "seed": 1}
    allowed = [97, 98, 99]
    assert set(client.generate(**common, allowed_token_ids=allowed).token_ids) <= set(allowed)
    forced = client.generate(**common, logit_bias={100: 100.0}, temperature=0)
    assert forced.token_ids == (100,) * 16
    never = client.generate(
        **common, allowed_token_ids=allowed, bad_words=["a"], logit_bias={97: 100.0, 98: 50.0}, temperature=0
    )
    assert never.token_ids == (98,) * 16


def test_the_best_of_several(client: Client) -> None:
    common: dict[str, Any] = {"token_ids": PROMPTS[2], "max_tokens": 12, "seed": 3, "ignore_eos": True}
    tried = client.generate(**common, n=4, logprobs=0)
    best = client.generate(**common, n=2, best_of=4)

    def mean(number: int) -> float:
        logprobs = tried.choices[number].logprobs
        return sum(position.logprob for position in logprobs) / len(logprobs)

    ranked = sorted(range(4), key=mean, reverse=True)
    assert [choice.token_ids for choice in best.choices] == [
        tried.choices[number].token_ids for number in ranked[:2]
    ]
    assert best.usage.completion_tokens == tried.usage.completion_tokens == 48
    assert all(not choice.logprobs for choice in best.choices)


def test_stop_strings_and_what_is_reported(cluster: LiveCluster) -> None:
    """A string that greedy decoding is sure to meet: part of its own answer."""
    common: dict[str, Any] = {
        "prompt": [list(PROMPTS[1])], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 0,
        "allowed_token_ids": list(range(97, 123)),
    }  # fmt: skip
    whole = complete(cluster, **common)["choices"][0]["text"]
    stop = whole[10:12]
    end = whole.index(stop)
    for include in (False, True):
        choice = complete(cluster, **common, stop=stop, include_stop_str_in_output=include)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == whole[: end + (len(stop) if include else 0)]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_texts_and_tokens(cluster: LiveCluster, client: Client) -> None:
    answer = client.generate("Hello", max_tokens=4, echo=True, ignore_eos=True, skip_special_tokens=False)
    assert answer.text.startswith("Hello")
    tokens = client.tokenize("Hello<|im_end|>")
    assert tokens.token_ids == (*b"Hello", IM_END)
    assert client.detokenize(tokens.token_ids) == "Hello<|im_end|>"
    url = cluster.state.http_url
    counted = httpx.post(f"{url}/tokenize", json={"prompt": "Hello<|im_end|>"}).json()
    assert (counted["count"], counted["tokens"]) == (6, list(tokens.token_ids))
    assert max(tokens.token_ids) < VOCAB_SIZE
    assert client.model(MODEL).max_model_len == counted["max_model_len"]


def test_requests_choose_how_they_are_drafted_for(cluster: LiveCluster, client: Client) -> None:
    """In a deployment without a draft method, near and remote; a seed gives the same tokens however."""
    common: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    for token_ids in (PROMPTS[1], PROMPTS[3]):
        plain = client.generate(token_ids=token_ids, allowed_token_ids=[97, 98, 99], **common)
        assert plain.timeline.decode_passes == 0
        for method in ("none", "ngram", "suffix"):
            speculation = {"method": method, "num_speculative_tokens": 2}
            answer = client.generate(
                token_ids=token_ids, allowed_token_ids=[97, 98, 99], speculation=speculation, **common
            )
            assert answer.token_ids == plain.token_ids
            assert (answer.timeline.drafted_tokens > 0) == (method != "none")
    body = {"model": MODEL, "prompt": "a", "speculation": {"method": "eagle3"}}
    response = httpx.post(f"{cluster.state.http_url}/v1/completions", json=body)
    assert response.status_code == 400
    assert "must be one of none, ngram, suffix" in response.json()["error"]["message"]
