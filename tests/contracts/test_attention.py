"""Every attention backend against a dense computation that knows nothing of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from engine.attention.base import AttentionBackend
from engine.attention.registry import backends, create_backend
from engine.kv.storage import allocate_pool
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig, Rope
from engine.models.layer_groups import places
from engine.ops.base import Ops
from engine.ops.cpu.build import DEFAULT_CACHE
from engine.ops.registry import build_cpu_ops
from engine.ops.torch_ops import TorchOps
from tests.support.paged import make_batch

CONFIG = ModelConfig(
    family="llama",
    vocab_size=10,
    hidden_size=96,
    intermediate_size=8,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    attention_scale=16**-0.5,
    windows=(0, 0),
    ropes=(Rope(16, 10_000.0),) * 2,
    tie_word_embeddings=True,
    eos_token_ids=frozenset(),
    bos_token_id=None,
)
# (tokens before, new tokens) of the sequences of a batch.
MIXES = {
    "one decode": [(37, 1)],
    "decodes of one length": [(16, 1)] * 3,
    "decodes of mixed lengths": [(3, 1), (200, 1), (31, 1), (32, 1), (1, 1)],
    "first token": [(0, 1)],
    "fresh prompt": [(0, 19)],
    "chunk": [(16, 7)],
    "chunk of a ragged past": [(5, 30)],
    "chunks and decodes": [(0, 5), (40, 1), (21, 9), (0, 1), (17, 1), (130, 3)],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over a filled pool, and the dense history of each sequence that it stands for."""

    batch: ForwardBatch
    kv: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    # For each layer and sequence: keys and values of the whole context [context, kv_heads, head_dim].
    dense: list[list[tuple[torch.Tensor, torch.Tensor]]]


def make_case(
    mix: list[tuple[int, int]], block_size: int, config: ModelConfig, dtype: torch.dtype, seed: int = 0
) -> Case:
    """Random blocks; the pool is full of garbage where nothing of the case lies."""
    torch.manual_seed(seed)
    shape = (config.num_kv_heads, config.head_dim)
    groups = len(config.layer_groups)
    counts = [-(-(before + new) // block_size) * groups for before, new in mix]
    blocks = (torch.randperm(sum(counts) + 4) + 1).tolist()
    kv = allocate_pool(config, len(blocks), block_size, dtype)
    kv.normal_(std=30.0)
    sequences = []
    for (before, new), count in zip(mix, counts, strict=True):
        table, blocks = blocks[:count], blocks[count:]
        sequences.append(([1] * new, before, table))
    batch = make_batch(sequences, block_size, num_groups=groups)
    total = len(batch.token_ids)
    query = torch.randn(total, config.num_heads, config.head_dim).to(dtype)
    key, value = (torch.randn(total, *shape).to(dtype) for _ in range(2))
    dense = []
    for group, place in places(config.layer_groups):
        histories = []
        for index, (new, before, table) in enumerate(sequences):
            past = [torch.randn(before, *shape).to(dtype) for _ in range(2)]
            for position in range(before):
                page, offset = divmod(position, block_size)
                for kind in range(2):
                    kv[table[page * groups + group], place, kind, :, offset] = past[kind][position]
            start = batch.query_starts[index]
            own = slice(start, start + len(new))
            histories.append((torch.cat((past[0], key[own])), torch.cat((past[1], value[own]))))
        dense.append(histories)
    return Case(batch, kv, query, key, value, dense)


def dense_attention(case: Case, layer: int, config: ModelConfig = CONFIG) -> torch.Tensor:
    """The definition, in float64, over the dense histories."""
    window, softcap = config.windows[layer], config.attention_softcap
    group = case.query.shape[1] // case.key.shape[1]
    outputs = []
    for index, (keys, values) in enumerate(case.dense[layer]):
        start, end = case.batch.query_starts[index], case.batch.query_starts[index + 1]
        for row in range(start, end):
            visible = len(keys) - (end - 1 - row)
            seen = slice(max(0, visible - window) if window else 0, visible)
            for head in range(case.query.shape[1]):
                scores = keys[seen, head // group].double() @ case.query[row, head].double()
                scores *= config.attention_scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                outputs.append(torch.softmax(scores, dim=0) @ values[seen, head // group].double())
    return torch.stack(outputs).view(case.query.shape[0], -1)


@cache
def cpu_ops() -> Ops:
    return build_cpu_ops(DEFAULT_CACHE)


def make_backend(name: str, config: ModelConfig, coarse: bool = False) -> AttentionBackend:
    return create_backend(name, config, cpu_ops() if name == "cpu" else TorchOps(), coarse=coarse)


def run(name: str, case: Case, config: ModelConfig, coarse: bool = False) -> list[torch.Tensor]:
    """All layers' outputs."""
    backend = make_backend(name, config, coarse)
    backend.begin(case.batch, case.kv)
    return [
        backend.attend(layer, case.query, case.key, case.value).clone() for layer in range(config.num_layers)
    ]


def test_backends_are_found_by_file_name() -> None:
    assert {"reference", "sdpa"} <= set(backends())
    with pytest.raises(ValueError, match=r"'nope' does not exist; there are .*sdpa"):
        create_backend("nope", CONFIG, TorchOps())
    with pytest.raises(ValueError, match="'cpu' needs ops 'cpu'"):
        create_backend("cpu", CONFIG, TorchOps())
    with pytest.raises(ValueError, match=r"multiple of 16 .* not 24"):
        create_backend("cpu", replace(CONFIG, head_dim=24), cpu_ops())


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("name", backends())
def test_equals_dense_attention(name: str, mix: list[tuple[int, int]], block_size: int) -> None:
    case = make_case(mix, block_size, CONFIG, torch.float32)
    for layer, output in enumerate(run(name, case, CONFIG)):
        torch.testing.assert_close(output.double(), dense_attention(case, layer), atol=2e-6, rtol=1e-5)


SETTINGS = {
    "scale": replace(CONFIG, attention_scale=0.9),
    "softcap": replace(CONFIG, attention_softcap=1.5),
    "windows": replace(CONFIG, windows=(20, 0)),
    "window of one token": replace(CONFIG, windows=(1, 16)),
    "windows and softcap": replace(CONFIG, windows=(0, 7), attention_softcap=2.0, attention_scale=0.3),
    "window beyond every context": replace(CONFIG, windows=(1000, 134)),
}


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("name", backends())
def test_scale_softcap_and_windows(
    name: str, config: ModelConfig, mix: list[tuple[int, int]], block_size: int
) -> None:
    case = make_case(mix, block_size, config, torch.float32)
    for layer, output in enumerate(run(name, case, config)):
        torch.testing.assert_close(
            output.double(), dense_attention(case, layer, config), atol=2e-6, rtol=1e-5
        )


# Head dimensions around the vectors of the CPU's kernels, odd numbers of keys among the mixes.
COARSE = SETTINGS | {
    f"head_dim {dim}": replace(CONFIG, head_dim=dim, attention_scale=dim**-0.5) for dim in (48, 64, 512)
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("config", COARSE.values(), ids=COARSE.keys())
@pytest.mark.parametrize("name", backends())
def test_coarse_is_near(name: str, config: ModelConfig, mix: list[tuple[int, int]]) -> None:
    """Rounded to 8 bits, and nothing else: no key is lost or counted twice."""
    case = make_case(mix, 16, config, torch.float32)
    for layer, output in enumerate(run(name, case, config, coarse=True)):
        exact = dense_attention(case, layer, config)
        torch.testing.assert_close(output.double(), exact, atol=0.05, rtol=0.05)
        assert (output - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("coarse", [False, True])
def test_unused_slots_of_a_block_may_hold_no_number(coarse: bool) -> None:
    """Also beside the last of an odd number of keys, whose values share a lane with what follows."""
    case = make_case([(100, 1), (32, 3), (5, 8), (0, 1)], 16, CONFIG, torch.float32)
    expected = run("cpu", case, CONFIG, coarse)
    used = torch.zeros(case.kv.shape[0], case.kv.shape[4], dtype=torch.bool)
    for table, context in zip(case.batch.block_tables, case.batch.context_lens, strict=True):
        for position in range(context):
            used[table[position // 16], position % 16] = True
    spoilt = case.kv.clone()
    spoilt.permute(0, 4, 1, 2, 3, 5)[~used] = float("nan")
    for output, wanted in zip(run("cpu", replace(case, kv=spoilt), CONFIG, coarse), expected, strict=True):
        assert torch.equal(output, wanted)


@pytest.mark.parametrize("name", backends())
def test_blocks_behind_the_window_do_not_matter(name: str) -> None:
    """Not even that their place in the table still names them: they may have been given away."""
    config = replace(CONFIG, windows=(20, 20))
    case = make_case([(100, 1), (77, 3), (20, 1)], 16, config, torch.float32)
    expected = run(name, case, config)
    tables = case.batch.block_tables.clone()
    tables[0, 0, : (101 - 20) // 16] = 0
    tables[0, 1, : (78 - 20) // 16] = 0
    again = replace(case, batch=replace(case.batch, block_tables=tables))
    for output, wanted in zip(run(name, again, config), expected, strict=True):
        assert torch.equal(output, wanted)


@pytest.mark.parametrize("name", backends())
def test_each_layer_group_has_its_own_blocks(name: str) -> None:
    """Layers of two windows and of none, whose groups hold several layers: only their own windows matter."""
    windows = (0, 20, 0, 20, 7, 0, 20, 7, 0)
    config = replace(CONFIG, num_layers=9, windows=windows, ropes=CONFIG.ropes[:1] * 9)
    assert [group.window for group in config.layer_groups] == [0, 0, 20, 20, 7]
    case = make_case([(100, 1), (77, 3), (20, 1), (0, 30)], 16, config, torch.float32)
    tables = case.batch.block_tables
    for tables_of_group, group in zip(tables, config.layer_groups, strict=True):
        if group.window:
            tables_of_group[0, : (101 - group.window) // 16] = 0
            tables_of_group[1, : (78 - group.window) // 16] = 0
    for layer, output in enumerate(run(name, case, config)):
        torch.testing.assert_close(
            output.double(), dense_attention(case, layer, config), atol=2e-6, rtol=1e-5
        )


@pytest.mark.parametrize("kv_heads", [1, 6])
@pytest.mark.parametrize("name", backends())
def test_any_number_of_kv_heads(name: str, kv_heads: int) -> None:
    config = replace(CONFIG, num_kv_heads=kv_heads)
    case = make_case(MIXES["chunks and decodes"], 16, config, torch.float32)
    for layer, output in enumerate(run(name, case, config)):
        torch.testing.assert_close(output.double(), dense_attention(case, layer), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, SETTINGS["windows and softcap"]], ids=["plain", "capped"])
@pytest.mark.parametrize("name", sorted({*backends()} - {"cpu"}))
def test_bfloat16(name: str, config: ModelConfig) -> None:
    case = make_case(MIXES["chunks and decodes"], 16, config, torch.bfloat16)
    for layer, output in enumerate(run(name, case, config)):
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(
            output.double(), dense_attention(case, layer, config), atol=0.03, rtol=0.03
        )


@pytest.mark.parametrize("name", backends())
def test_writes_its_slots_and_nothing_else(name: str) -> None:
    case = make_case(MIXES["chunks and decodes"], 16, CONFIG, torch.float32)
    before = case.kv.clone()
    run(name, case, CONFIG)
    for layer in range(CONFIG.num_layers):
        for row, slot in enumerate(case.batch.slots[0].tolist()):
            block, offset = divmod(slot, 16)
            assert torch.equal(case.kv[block, layer, 0, :, offset], case.key[row])
            assert torch.equal(case.kv[block, layer, 1, :, offset], case.value[row])
            before[block, layer, :, :, offset] = case.kv[block, layer, :, :, offset]
    assert torch.equal(case.kv, before)


@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("name", backends())
def test_scratch_slots_leave_shared_blocks_alone(name: str, new: int) -> None:
    """A recomputed token attends to its KV in the shared block, and what it writes goes to block 0."""
    case = make_case([(50, new), (9, 1)], 16, CONFIG, torch.float32)
    expected = run(name, case, CONFIG)
    written = case.kv.clone()
    batch = replace(case.batch, slots=case.batch.slots.remainder(16))
    again = replace(
        case, batch=batch, key=torch.full_like(case.key, 7.0), value=torch.full_like(case.value, 7.0)
    )
    for output, wanted in zip(run(name, again, CONFIG), expected, strict=True):
        torch.testing.assert_close(output, wanted, atol=1e-6, rtol=1e-6)
    assert torch.equal(case.kv[1:], written[1:])


@pytest.mark.parametrize("name", backends())
def test_sequences_may_share_blocks(name: str) -> None:
    """Two sequences with one prefix read the same blocks; the outputs are as if each had its own."""
    block_size, prefix = 4, 8
    own = make_case([(12, 1), (12, 3)], block_size, CONFIG, torch.float32)
    tables = own.batch.block_tables.clone()
    shared = tables[0, 0, : prefix // block_size]
    for block, copy in zip(shared.tolist(), tables[0, 1, : prefix // block_size].tolist(), strict=True):
        own.kv[copy] = own.kv[block]
    expected = run(name, own, CONFIG)
    tables[0, 1, : prefix // block_size] = shared
    together = replace(own, batch=replace(own.batch, block_tables=tables))
    for output, wanted in zip(run(name, together, CONFIG), expected, strict=True):
        assert torch.equal(output, wanted)


@pytest.mark.parametrize("name", backends())
def test_a_backend_serves_batches_of_any_size_in_turn(name: str) -> None:
    """Buffers kept between steps must neither be too small nor leak an earlier step."""
    backend = make_backend(name, CONFIG)
    for seed, mix in enumerate((MIXES["one decode"], MIXES["chunks and decodes"], MIXES["chunk"])):
        case = make_case(mix, 16, CONFIG, torch.float32, seed)
        backend.begin(case.batch, case.kv)
        for layer in range(CONFIG.num_layers):
            output = backend.attend(layer, case.query, case.key, case.value)
            torch.testing.assert_close(output.double(), dense_attention(case, layer), atol=2e-6, rtol=1e-5)
