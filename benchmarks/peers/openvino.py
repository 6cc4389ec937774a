"""Runner of OpenVINO GenAI: `python -m benchmarks.peers.openvino MODEL_DIR THREADS PRECISION`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from benchmarks.peers.protocol import Channel, Recorder, Run

channel = Channel()

import numpy  # noqa: E402
import openvino_genai  # noqa: E402
from openvino import Tensor  # noqa: E402

MAX_SEQUENCES = 16
MAX_BATCHED_TOKENS = 2048
CACHE_GIB = 2


class OpenVino:
    """The pipeline with continuous batching, step by step."""

    def __init__(self, model_dir: str, threads: int, precision: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = MAX_SEQUENCES
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        scheduler.cache_size = CACHE_GIB
        scheduler.enable_prefix_caching = False
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if precision == "fp32":
            # Its KV cache is int8 unless told otherwise: fp32 is compared with fp32.
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model_dir, scheduler, "CPU", properties)
        self._ids = itertools.count()

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """As `GreedyEngine.run`."""
        config = openvino_genai.GenerationConfig(
            max_new_tokens=output_tokens, ignore_eos=True, do_sample=False
        )
        recorder = Recorder(len(prompts))
        handles = [
            self._pipeline.add_request(next(self._ids), Tensor(numpy.array([prompt], numpy.int64)), config)
            for prompt in prompts
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for sequence, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        recorder.add(sequence, list(output.generated_ids))
        return recorder.finish()


if __name__ == "__main__":
    channel.serve(OpenVino(sys.argv[1], int(sys.argv[2]), sys.argv[3]), openvino_genai.get_version())
