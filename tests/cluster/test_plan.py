from __future__ import annotations

from pathlib import Path

from cluster.model_store.store import ModelEntry
from cluster.plan import plan_workers, short_context
from cluster.spec import DeploymentSpec
from kvrelay.v1 import worker_pb2

BLOCK_BYTES = 1 << 20


def worker(name: str, max_model_len: int, num_groups: int = 1) -> worker_pb2.WorkerInfo:
    return worker_pb2.WorkerInfo(
        worker_id=name,
        max_model_len=max_model_len,
        model_context_tokens=8192,
        identity=worker_pb2.Identity(layer_groups=[worker_pb2.LayerGroup()] * num_groups),
        layout=worker_pb2.KvLayout(block_bytes=BLOCK_BYTES),
    )


def test_a_pool_that_cuts_the_context_short_is_told_with_the_way_out() -> None:
    note = short_context(DeploymentSpec(), [worker("prefill-0", 8192), worker("decode-0", 5120)])
    assert note == (
        "decode-0: prompt and answer together can have 5120 tokens, as many as the KV pool holds; "
        "for all 8192 of the model: --kv-memory 513MiB"
    )


def test_a_context_takes_blocks_of_every_layer_group() -> None:
    note = short_context(DeploymentSpec(), [worker("decode-0", 5120, num_groups=3)])
    assert note.endswith("--kv-memory 1537MiB")


def test_a_context_that_is_whole_or_meant_short_is_not_told() -> None:
    assert short_context(DeploymentSpec(), [worker("decode-0", 8192)]) == ""
    assert short_context(DeploymentSpec(max_model_len=4096), [worker("decode-0", 4096)]) == ""


def test_engines_get_what_the_spec_says() -> None:
    spec = DeploymentSpec(swap_memory=0, max_decode_slowdown=2.0)
    model = ModelEntry(name="m", path=Path("unused"))
    for plan in plan_workers(spec, model, "redis://unused", Path("kernels"), Path("logs")):
        assert (plan.engine.swap_memory_bytes, plan.engine.max_decode_slowdown) == (0, 2.0)
