"""Loads a draft model for a target."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.models.errors import CheckpointError, ModelError
from engine.models.loader import load_model, torch_dtype
from engine.models.registry import read_config
from engine.sampling.sampler import Sampler
from engine.speculation.base import Drafter, Target
from engine.speculation.config import COUPLED, SpeculationConfig
from engine.speculation.draft_weights import draft_quantization
from engine.speculation.settings import check_chain
from engine.speculation.two_model.cache import DraftCache
from engine.speculation.two_model.drafter import DraftLimits, TwoModelDrafter
from engine.speculation.verification.base import Bounds

TOKENIZER_FILE = "tokenizer.json"

_LEAST_PORTION = 32
_PORTIONS_IN_CHUNK = 4
"""A portion comes on top of a step, so it is less than what a step may have of a prompt."""


def create_two_model(config: SpeculationConfig, target: Target) -> Drafter:
    """Loads a draft model and makes its drafter.

    Dtype, device, operations and attention backend are the target's. Its KV takes memory beside the target's
    pool, for as many tokens. Contexts that are longer than the draft model's own limit are not drafted for.

    Raises:
        ValueError: settings out of bounds, or none that names the draft model's folder.
        ModelError: no such model, one that is broken or not supported, or another vocabulary.
        KvMemoryError: the memory for its KV is not there.
    """
    check_chain(config)
    if config.model is None:
        raise ValueError(f"model must name the folder of a draft model for method {config.method!r}")
    settings, groups = target.settings, len(target.model.config.layer_groups)
    context = min(target.max_model_len, read_config(config.model).max_position_embeddings)
    check_vocabularies(settings.model_dir, config.model)
    model = load_model(
        config.model,
        dtype=settings.dtype,
        ops=settings.ops,
        quantization=draft_quantization(settings, target.model),
        attention_backend=settings.attention_backend,
        device=settings.device,
        context_length=context,
        kernel_cache=settings.kernel_cache,
    )
    pages = (target.kv.shape[0] - 1) // groups
    pages = min(pages, settings.max_running * -(-context // settings.block_size))
    cache = DraftCache(
        model.config,
        pages * len(model.config.layer_groups),
        settings.block_size,
        torch_dtype(settings.dtype),
        settings.device,
    )
    limits = DraftLimits(
        drafts=config.num_speculative_tokens,
        portion=max(_LEAST_PORTION, settings.prefill_chunk // _PORTIONS_IN_CHUNK),
        context=context,
        vocab_size=target.model.config.vocab_size,
        tells=config.verification != COUPLED,
    )
    bounds = Bounds(target.model.config.eos_token_ids, target.max_model_len)
    return TwoModelDrafter(model, cache, Sampler(target.grammars), bounds, limits)


def check_vocabularies(target: Path, draft: Path) -> None:
    """Checks that each token means the same to both models.

    What text becomes which tokens is the target's business alone, so only tokens and their numbers count.

    Args:
        target: the target's folder.
        draft: the draft model's.

    Raises:
        ModelError: a folder without a readable tokenizer, or two vocabularies that differ.
    """
    ours, theirs = _vocabulary(target), _vocabulary(draft)
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        difference = f"{len(theirs)} tokens where the model has {len(ours)}"
    else:
        number = min(
            number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number)
        )
        difference = f"token {number} is {theirs.get(number)!r} where the model has {ours.get(number)!r}"
    raise ModelError(
        f"the vocabulary of draft model {draft} is not that of {target}: {difference}; name a smaller model "
        "of the same family, or another method"
    )


def _vocabulary(folder: Path) -> dict[int, str]:
    path = folder / TOKENIZER_FILE
    if not path.exists():
        raise CheckpointError(f"{path} is missing, by which the vocabularies of the two models are compared")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises plain exceptions.
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
