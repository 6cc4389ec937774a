"""Runner of the engine itself, with no process beside it: `python -m benchmarks.peers.kvrelay SETTINGS_JSON`.

SETTINGS_JSON are fields of `EngineConfig`; sequences and their length are bounded as for every peer.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import benchmarks.as_worker  # noqa: F401 - before torch is imported
from benchmarks.peers.protocol import Channel, Recorder, Run
from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from worker.assembly import assemble
from worker.config import WorkerConfig

MAX_SEQUENCES = 16
MAX_MODEL_LEN = 1280


class Kvrelay:
    """The engine as a worker builds it, stepped from here."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = assemble(WorkerConfig("bench-0", 1, "local", "bench", config, transports=())).engine
        self._ids = itertools.count()

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """As `GreedyEngine.run`. Raises RuntimeError where the engine gives a sequence up."""
        sampling = SamplingParams(
            temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=output_tokens, ignore_eos=True
        )
        recorder = Recorder(len(prompts))
        sequences: dict[str, int] = {}
        for sequence, prompt in enumerate(prompts):
            request_id = str(next(self._ids))
            sequences[request_id] = sequence
            self._engine.submit(EngineRequest(request_id, tuple(prompt), sampling))
        while self._engine.has_work():
            output = self._engine.step()
            if output.failures:
                raise RuntimeError(f"the engine gave up: {output.failures}")
            for token in output.tokens:
                recorder.add(sequences[token.request_id], (token.token_id,))
        return recorder.finish()


if __name__ == "__main__":
    channel = Channel()
    settings = json.loads(sys.argv[1])
    config = EngineConfig(
        **{**settings, "model_dir": Path(settings["model_dir"])},
        max_model_len=MAX_MODEL_LEN,
        max_running=MAX_SEQUENCES,
    )
    channel.serve(Kvrelay(config), version("kvrelay-cluster"))
