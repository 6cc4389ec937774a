"""What a worker process is told at start, whatever its role."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of one worker. Picklable: it travels to the Ray actor.

    Attributes:
        worker_id: stable name, for example "prefill-0"; survives restarts.
        incarnation: larger for each process that bears the name (nanoseconds since 1970 at its start).
        node_id: the machine, as Ray names it.
        model_name: canonical name of the model, part of the identity.
        engine: the engine's settings.
        decodes: whether it writes answers; one that does not has a drafter only for what it hands over.
        host: address to bind and to advertise.
        redis_url: the prefix index's server.
        index_namespace: separates deployments that share a Redis.
        transports: names, best first.
        max_queue: requests admitted and not finished, at most.
        ticket_ttl_s: life of a ticket that nobody follows yet.
        reattach_grace_s: life of a ticket whose follower was lost.
        session_grace_s: how long a decode worker keeps a lost router's requests.
        heartbeat_s: interval of heartbeats on Follow, Session and Watch.
        heartbeat_timeout_s: silence after which a peer counts as lost.
        read_timeout_s: longest that one read may take before its blocks are quarantined.
        read_chunk_blocks: most blocks in one read.
        quarantine_alarm_s: age of an unsettled read that raises the alarm.
    """

    worker_id: str
    incarnation: int
    node_id: str
    model_name: str
    engine: EngineConfig
    decodes: bool = True
    host: str = "127.0.0.1"
    redis_url: str = ""
    index_namespace: str = "default"
    transports: tuple[str, ...] = ("nixl",)
    max_queue: int = 256
    ticket_ttl_s: float = 10.0
    reattach_grace_s: float = 5.0
    session_grace_s: float = 5.0
    heartbeat_s: float = 0.5
    heartbeat_timeout_s: float = 3.0
    read_timeout_s: float = 5.0
    read_chunk_blocks: int = 32
    quarantine_alarm_s: float = 30.0
