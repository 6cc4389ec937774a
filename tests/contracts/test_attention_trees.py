"""Every attention backend over draft trees, and over contexts that begin with keys that are not there.

A token of a tree must see what it would see if its ancestors were the only drafts: each path is computed as a
chain of its own, densely.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.attention.registry import backends
from engine.models.config import ModelConfig
from engine.speculation.tree import DraftTree
from tests.contracts.test_attention import CONFIG, Case, make_case, run

TREES = {
    "chain": (0, 1, 2, 3),
    "star": (0, 0, 0, 0, 0),
    "binary": (0, 0, 1, 1, 2, 2, 3, 6),
    "deep and wide": (0, 0, 1, 0, 3, 3, 2, 7, 7, 5, 9, 10, 4),
    "largest": (0, *range(31), *range(31)),
}
CONFIGS = {
    "plain": CONFIG,
    "softcap": replace(CONFIG, attention_softcap=1.5),
    # No window is shorter than a tree is deep.
    "windows": replace(CONFIG, windows=(40, 0), attention_softcap=2.0, attention_scale=0.3),
}


def make_tree(parents: tuple[int, ...]) -> DraftTree:
    return DraftTree(tuple(range(len(parents))), parents)


def with_trees(case: Case, trees: dict[int, DraftTree], first_new: dict[int, int]) -> Case:
    """The same case, some sequences' last tokens being trees.

    Args:
        case: whose tokens lie one after the other.
        trees: by sequence; their nodes are the last tokens of the context.
        first_new: by sequence: the first node that is new; those before it have their KV already.
    """
    batch = case.batch
    positions, visible = batch.positions.clone(), torch.zeros_like(batch.positions)
    starts = []
    for index, (start, end) in enumerate(zip(batch.query_starts, batch.query_starts[1:], strict=False)):
        tree, context = trees.get(index), batch.context_lens[index]
        starts.append(context - (end - start) if tree is None else context - tree.num_nodes)
        if tree is not None:
            first = first_new.get(index, 0)
            depths = torch.tensor(tree.depths)
            positions[start:end] = (starts[-1] + depths)[first:]
            visible[start:end] = torch.tensor(tree.visible)[first:]
    tree_starts = tuple(starts) if first_new else None
    return replace(case, batch=replace(batch, positions=positions, visible=visible, tree_starts=tree_starts))


def paths(case: Case, layer: int, config: ModelConfig, trees: dict[int, DraftTree]) -> torch.Tensor:
    """The definition, in float64: for each row the keys of its own path alone, in order."""
    window, softcap, batch = config.windows[layer], config.attention_softcap, case.batch
    group = config.num_heads // config.num_kv_heads
    outputs = []
    for index, (keys, values) in enumerate(case.dense[layer]):
        start, end = batch.query_starts[index], batch.query_starts[index + 1]
        first = 0 if batch.first_keys is None else batch.first_keys[index]
        for row in range(start, end):
            path = list(range(len(keys) - (end - row) + 1))
            if index in trees:
                tree = trees[index]
                root = len(keys) - tree.num_nodes
                node, path = tree.num_nodes - (end - row), []
                while node:
                    path.insert(0, root + node)
                    node = tree.parents[node - 1]
                path = [*range(root + 1), *path]
            path = [key for key in (path[-window:] if window else path) if key >= first]
            for head in range(config.num_heads):
                scores = keys[path, head // group].double() @ case.query[row, head].double()
                scores *= config.attention_scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                outputs.append(torch.softmax(scores, dim=0) @ values[path, head // group].double())
    return torch.stack(outputs).view(case.query.shape[0], -1)


def check(name: str, case: Case, config: ModelConfig, trees: dict[int, DraftTree]) -> None:
    for layer, output in enumerate(run(name, case, config)):
        torch.testing.assert_close(output.double(), paths(case, layer, config, trees), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("parents", TREES.values(), ids=TREES.keys())
@pytest.mark.parametrize("name", backends())
def test_each_path_is_a_chain(
    name: str, parents: tuple[int, ...], config: ModelConfig, block_size: int
) -> None:
    """Beside decodes and chunks of prompts, which are causal."""
    trees = {1: make_tree(parents), 3: make_tree(parents[:3])}
    mix = [(50, 1), (75, len(parents) + 1), (21, 9), (3, 4), (0, 6)]
    check(name, with_trees(make_case(mix, block_size, config, torch.float32), trees, {}), config, trees)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("name", backends())
def test_a_tree_may_have_begun_before(name: str, new: int, config: ModelConfig) -> None:
    """A tree that is drafted level by level: only its last nodes are new."""
    tree = make_tree(TREES["deep and wide"])
    trees = {0: tree, 2: make_tree((0, 0, 1))}
    first_new = {0: tree.num_nodes - new, 2: 4 - new}
    mix = [(90 - new, new), (12, 1), (30, new)]
    case = with_trees(make_case(mix, 16, config, torch.float32), trees, first_new)
    check(name, case, config, trees)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("name", backends())
def test_keys_that_are_not_there_are_not_seen(name: str, config: ModelConfig, block_size: int) -> None:
    """Decodes, chunks, a chunk that begins its context, and a tree, each without its first keys."""
    trees = {4: make_tree(TREES["binary"])}
    mix = [(100, 1), (45, 1), (33, 12), (0, 5), (60, 9), (0, 1)]
    case = with_trees(make_case(mix, block_size, config, torch.float32), trees, {})
    firsts = (1, 45, 20, 0, 37, 0)
    # What lies there is wild: it would show.
    for index, first in enumerate(firsts):
        for position in range(first):
            block = int(case.batch.block_tables[0, index, position // block_size])
            case.kv[block, :, :, :, position % block_size] = 1e4
    check(name, replace(case, batch=replace(case.batch, first_keys=firsts)), config, trees)


@pytest.mark.parametrize("name", sorted({*backends()} - {"cpu"}))
def test_bfloat16(name: str) -> None:
    trees = {0: make_tree(TREES["binary"])}
    case = with_trees(make_case([(40, 9), (7, 3)], 16, CONFIG, torch.bfloat16), trees, {})
    case = replace(case, batch=replace(case.batch, first_keys=(3, 1)))
    for layer, output in enumerate(run(name, case, CONFIG)):
        torch.testing.assert_close(output.double(), paths(case, layer, CONFIG, trees), atol=0.03, rtol=0.03)
