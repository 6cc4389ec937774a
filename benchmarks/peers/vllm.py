"""Runner of vLLM's CPU build: `python -m benchmarks.peers.vllm MODEL_DIR`.

The engine lives in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that nothing spins while others run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.peers.protocol import Channel, Recorder, Run

channel = Channel()  # vLLM prints while it is imported

import vllm  # noqa: E402

MAX_SEQUENCES = 16
MAX_MODEL_LEN = 1280


class Vllm:
    """vLLM's own step loop, as its server drives it."""

    def __init__(self, model_dir: str) -> None:
        llm = vllm.LLM(
            model_dir,
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_SEQUENCES,
            enable_prefix_caching=False,
        )
        self._engine = llm.llm_engine
        self._runs = 0

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """As `GreedyEngine.run`."""
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._runs += 1
        recorder = Recorder(len(prompts))
        for sequence, prompt in enumerate(prompts):
            request = {"prompt_token_ids": list(prompt)}
            self._engine.add_request(f"{self._runs}-{sequence}", request, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                # vLLM may add a suffix of its own to the name.
                sequence = int(output.request_id.split("-")[1])
                recorder.add(sequence, list(output.outputs[0].token_ids))
        return recorder.finish()


if __name__ == "__main__":
    channel.serve(Vllm(sys.argv[1]), vllm.__version__)
