from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.layer_groups import MAX_GROUPS, LayerGroup, layer_groups, layers_per_block, places


def mixed(full: int, sliding: int, window: int = 512) -> tuple[int, ...]:
    return (window,) * sliding + (0,) * full


@pytest.mark.parametrize("windows", [(0,), (0, 0, 0), (7, 7)])
def test_one_history_is_one_group(windows: tuple[int, ...]) -> None:
    assert layer_groups(windows) == (LayerGroup(windows[0], tuple(range(len(windows)))),)
    assert places(layer_groups(windows)) == tuple((0, layer) for layer in range(len(windows)))


def test_layers_that_take_turns_are_two_groups_of_one_size() -> None:
    groups = layer_groups((8, 0, 8, 0))
    assert groups == (LayerGroup(0, (1, 3)), LayerGroup(8, (0, 2)))
    assert places(groups) == ((1, 0), (0, 0), (1, 1), (0, 1))


@pytest.mark.parametrize(
    ("full", "sliding", "size", "count"),
    [
        # Gemma 2 2B; Gemma 3 1B, 4B, 12B and 27B.
        (13, 13, 13, 2),
        (4, 22, 4, 7),
        (5, 29, 5, 7),
        (8, 40, 8, 6),
        (10, 52, 11, 6),
        # Qwen2 with windows in the upper layers.
        (21, 7, 7, 4),
        (27, 1, 4, 8),
    ],
)
def test_the_shapes_of_known_models(full: int, sliding: int, size: int, count: int) -> None:
    groups = layer_groups(mixed(full, sliding))
    assert (layers_per_block(groups), len(groups)) == (size, count)
    assert groups[0].window == 0


@given(st.lists(st.sampled_from([0, 0, 4, 4, 4, 9, 30]), min_size=1, max_size=70))
def test_every_layer_has_its_place_in_a_group_of_its_window(windows: list[int]) -> None:
    groups = layer_groups(tuple(windows))
    where = places(groups)
    assert len(where) == len(windows)
    for layer, (group, place) in enumerate(where):
        assert groups[group].layers[place] == layer
        assert groups[group].window == windows[layer]
    assert sum(len(group.layers) for group in groups) == len(windows)
    assert len(groups) <= max(MAX_GROUPS, len(set(windows)))
    # The longest history first, and none has more groups than its layers fill.
    order = [group.window or 1 << 30 for group in groups]
    assert order == sorted(order, reverse=True)
    size = layers_per_block(groups)
    for window, count in Counter(group.window for group in groups).items():
        assert count == -(-windows.count(window) // size)
