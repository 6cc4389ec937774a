from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kv_transfer.identity import fingerprint, require_same, require_same_layout, without_draft
from kv_transfer.types import Identity, IdentityMismatchError, KvLayout, LayerGroup, LayoutMismatchError

GROUP = LayerGroup("full", num_layers=3, num_kv_heads=2, head_dim=16)
IDENTITY = Identity("demo", "abc", "float32", 16, (GROUP,), draft="", hash_version=1)
LAYOUT = KvLayout(tensor_parallel_size=1, first_head=0, num_heads=2, block_bytes=12288)

DIFFERENT: dict[str, Identity] = {
    "model": replace(IDENTITY, model="other"),
    "revision": replace(IDENTITY, revision="def"),
    "dtype": replace(IDENTITY, dtype="bfloat16"),
    "block_size": replace(IDENTITY, block_size=32),
    "layer_groups": replace(IDENTITY, layer_groups=(replace(GROUP, head_dim=32),)),
    "draft": replace(IDENTITY, draft="eagle"),
    "hash_version": replace(IDENTITY, hash_version=2),
}


def test_the_fingerprint_is_the_same_everywhere() -> None:
    # A constant on purpose: another value would make every running deployment refuse its own peers.
    assert fingerprint(IDENTITY) == "83d591a46f5c206503c66fedcd4f00c3"
    assert fingerprint(IDENTITY) == fingerprint(replace(IDENTITY))


def test_every_field_counts() -> None:
    assert set(DIFFERENT) == {field.name for field in fields(Identity)}
    prints = {fingerprint(identity) for identity in DIFFERENT.values()} | {fingerprint(IDENTITY)}
    assert len(prints) == len(DIFFERENT) + 1


def test_a_drafters_share_may_be_left_out_of_account() -> None:
    require_same(IDENTITY, without_draft(DIFFERENT["draft"]))
    longer = replace(LAYOUT, block_bytes=2 * LAYOUT.block_bytes)
    require_same_layout(LAYOUT, longer, may_be_longer=True)
    for local, remote in ((longer, LAYOUT), (LAYOUT, replace(longer, num_heads=1))):
        with pytest.raises(LayoutMismatchError):
            require_same_layout(local, remote, may_be_longer=True)


def test_equal_identities_pass() -> None:
    require_same(IDENTITY, replace(IDENTITY))
    require_same_layout(LAYOUT, replace(LAYOUT))


@pytest.mark.parametrize("name", [name for name in DIFFERENT if name != "layer_groups"])
def test_the_refusal_names_prints_field_and_values(name: str) -> None:
    other = DIFFERENT[name]
    with pytest.raises(IdentityMismatchError) as caught:
        require_same(IDENTITY, other)
    message = str(caught.value)
    assert f"local {fingerprint(IDENTITY)}, remote {fingerprint(other)}" in message
    assert f"{name}: local {getattr(IDENTITY, name)!r}, remote {getattr(other, name)!r}" in message
    assert sum(f"{field.name}: " in message for field in fields(Identity)) == 1


def test_the_refusal_names_every_difference() -> None:
    with pytest.raises(IdentityMismatchError, match=r"dtype: .*; draft: local '', remote 'eagle'"):
        require_same(IDENTITY, replace(IDENTITY, dtype="bfloat16", draft="eagle"))


def test_the_refusal_looks_into_layer_groups() -> None:
    with pytest.raises(IdentityMismatchError, match=r"; layer_groups\[0\]\.head_dim: local 16, remote 32$"):
        require_same(IDENTITY, DIFFERENT["layer_groups"])
    with pytest.raises(IdentityMismatchError, match=r"; len\(layer_groups\): local 1, remote 2$"):
        require_same(IDENTITY, replace(IDENTITY, layer_groups=(GROUP, GROUP)))


def test_another_layout_is_refused() -> None:
    other = replace(LAYOUT, tensor_parallel_size=2, num_heads=1)
    with pytest.raises(LayoutMismatchError) as caught:
        require_same_layout(LAYOUT, other)
    assert str(caught.value) == (
        "layouts differ and resharding is not built: tensor_parallel_size: local 1, remote 2; "
        "num_heads: local 2, remote 1"
    )
