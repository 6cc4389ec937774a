"""One worker in a process of its own, until its stdin ends.

Usage: python -m tests.support.worker_process prefill|decode CONFIG_JSON DELAY_S
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from decode_worker.worker import DecodeWorker
from engine.config import EngineConfig
from engine.speculation.config import SpeculationConfig
from prefill_worker.worker import PrefillWorker
from telemetry import logs
from tests.support.workers import READY, Pace
from worker.config import WorkerConfig


def parse_config(values: dict[str, Any]) -> WorkerConfig:
    """The configuration of its JSON form."""
    own = values.pop("engine")
    speculation = SpeculationConfig(**own.pop("speculation"))
    model_dir = Path(values.pop("model_dir"))
    engine = EngineConfig(**{**own, "model_dir": model_dir, "speculation": speculation})
    return WorkerConfig(**{**values, "engine": engine, "transports": tuple(values["transports"])})


async def main(role: str, config: WorkerConfig, delay_s: float) -> None:
    """Serves until stdin ends."""
    logs.configure(config.worker_id, style="text")
    pace = Pace(delay_s)
    worker = (PrefillWorker if role == "prefill" else DecodeWorker)(config, pace.build)
    info = await worker.start()
    print(READY + base64.b64encode(info.SerializeToString()).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await worker.stop()


if __name__ == "__main__":
    raw = json.loads(sys.argv[2])
    raw["model_dir"] = raw["engine"]["model_dir"]
    asyncio.run(main(sys.argv[1], parse_config(raw), float(sys.argv[3])))
