"""Runner of llama.cpp: `python -m benchmarks.peers.llamacpp LIBRARY MODEL.gguf THREADS VERSION`."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

from benchmarks.peers.protocol import Channel, Run

MAX_SEQUENCES = 16
TOKENS_EACH = 1280


class LlamaCpp:
    """Calls the loop of llamacpp_native/greedy_loop.cpp, which also keeps the time."""

    def __init__(self, library: str, model: str, threads: int) -> None:
        self._library = ctypes.CDLL(library)
        self._library.loop_open.restype = ctypes.c_void_p
        handle = self._library.loop_open(model.encode(), threads, MAX_SEQUENCES, TOKENS_EACH)
        if not handle:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._handle = ctypes.c_void_p(handle)

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """As `GreedyEngine.run`; prompts have one length."""
        sequences, length = len(prompts), len(prompts[0])
        flat = (ctypes.c_int * (sequences * length))(*(token for prompt in prompts for token in prompt))
        token_ids = (ctypes.c_int * (output_tokens * sequences))()
        seconds = (ctypes.c_double * (output_tokens * sequences))()
        status = self._library.loop_run(
            self._handle, flat, sequences, length, output_tokens, token_ids, seconds
        )
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return Run(
            [list(token_ids[sequence::sequences]) for sequence in range(sequences)],
            [list(seconds[sequence::sequences]) for sequence in range(sequences)],
        )


if __name__ == "__main__":
    channel = Channel()
    channel.serve(LlamaCpp(sys.argv[1], sys.argv[2], int(sys.argv[3])), sys.argv[4])
