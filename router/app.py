"""One router process put together: the core, both doors, the supervisor's port, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefix_index.index import IndexConfigError, RedisPrefixIndex
from router.addresses import Addresses, PortInUseError, join_address
from router.auth import ApiKeys
from router.config import RouterConfig
from router.core import RouterCore
from router.door_metrics import DoorMetrics
from router.http.app import create_app, package_version
from router.http.server import HttpServer
from router.model_reading import ModelReading
from router.prompts import ServedModel
from router.rpc.inference import InferenceDoor
from router.rpc.server import RpcServer, admin_server, inference_server
from router.serving import Serving
from router.text.chat_template import ChatTemplate
from router.text.errors import ModelFilesError
from router.text.tokenizer import Tokenizer
from telemetry.logs import fields

logger = logging.getLogger(__name__)

# How often readiness is looked at, for grpc.health.v1, seconds.
_POLL_S = 0.1
# What calls get that are still open when the drain is over, seconds.
_LAST_GRACE_S = 1.0


class ConfigError(ValueError):
    """A setting cannot be used. `key` is its name in the configuration."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def _load_model(config: RouterConfig, metrics: DoorMetrics) -> ServedModel:
    try:
        tokenizer = Tokenizer.load(config.model_dir)
        template = ChatTemplate.load(config.model_dir)
    except ModelFilesError as error:
        raise ConfigError("model_dir", str(error)) from error
    return ServedModel(
        name=config.served_name,
        tokenizer=tokenizer,
        chat_template=template,
        max_model_len=config.max_model_len,
        created=int(time.time()),
        reading=ModelReading(
            tokenizer, template, config.tool_parser, config.reasoning_parser, metrics.grammar
        ),
    )


def _open_index(config: RouterConfig) -> RedisPrefixIndex | None:
    if not config.redis_url:
        return None
    try:
        return RedisPrefixIndex(config.redis_url, config.index_namespace)
    except IndexConfigError as error:
        raise ConfigError("redis_url", str(error)) from error


def _keys(config: RouterConfig) -> ApiKeys:
    try:
        return ApiKeys(config.api_keys)
    except ValueError as error:
        raise ConfigError("api_keys", str(error)) from error


@contextmanager
def _setting(key: str) -> Iterator[None]:
    """Names the setting behind a port that cannot be had."""
    try:
        yield
    except PortInUseError as error:
        raise PortInUseError(f"{key}: {error}") from error


class Router:
    """A router, from its making to its end. Belongs to one event loop; made inside it.

    Args:
        config: its settings.

    Raises:
        ConfigError: a setting cannot be used.
        PortInUseError: a port cannot be listened on.

    Attributes:
        serving: the request path of both doors.
        addresses: where it listens.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        keys = _keys(config)
        try:
            self._core = RouterCore(config, _open_index(config))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError("policy", str(error)) from error
        metrics = DoorMetrics(self._core.metrics.registry)
        model = _load_model(config, metrics)
        self.serving = Serving(model, self._core.dispatcher, metrics.answered)
        app = create_app(
            self.serving, metrics, keys, config.max_body_bytes, self._fingerprint_of, config.cors_origins
        )
        inference = InferenceDoor(self.serving, metrics)
        with _setting("grpc_port"):
            self._rpc: RpcServer = inference_server(
                config.host, config.grpc_port, inference, keys, config.max_body_bytes
            )
        with _setting("admin_port"):
            self._admin: RpcServer = admin_server(config.admin_host, config.admin_port, self._core.admin)
        with _setting("http_port"):
            self._http = HttpServer(app, config.host, config.http_port)
        self._watch: asyncio.Task[None] | None = None
        self.addresses = Addresses(
            http=join_address(config.host, self._http.port),
            grpc=join_address(config.host, self._rpc.port),
            admin=join_address(config.admin_host, self._admin.port),
            pid=os.getpid(),
        )

    async def start(self) -> None:
        """Serves from now on. The addresses file is written last."""
        await self.serving.model.reading.warm()
        await self._core.start()
        await self._admin.start()
        await self._admin.set_ready(True)
        await self._rpc.start()
        await self._http.start()
        self._watch = asyncio.create_task(self._watch_readiness())
        if self._config.addresses_file is not None:
            self.addresses.write(self._config.addresses_file)
        logger.info("listening", extra=fields(**_addresses_fields(self.addresses)))

    async def drain(self) -> None:
        """Takes no new requests, and returns when the last running one has ended or the limit is reached.

        The ports stay open meanwhile: `/ready` says 503, new requests get 503 or UNAVAILABLE.
        """
        self.serving.draining = True
        logger.info("draining", extra=fields(active=self.serving.active))
        await self._rpc.set_ready(False)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.serving.wait_idle(), self._config.drain_timeout_s)

    async def close(self) -> None:
        """Ends everything; requests that still run are cancelled after a moment."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        logger.info("stopping", extra=fields(active=self.serving.active))
        await asyncio.gather(self._http.stop(_LAST_GRACE_S), self._rpc.stop(_LAST_GRACE_S))
        await self._core.close()
        await self._admin.stop(0)

    def _fingerprint_of(self) -> str:
        return f"{package_version()} {self._config.served_name} {self._core.table.hash_model}"

    async def _watch_readiness(self) -> None:
        known: bool | None = None
        while True:
            ready = self.serving.ready
            if ready is not known:
                known = ready
                await self._rpc.set_ready(ready)
                logger.info("ready" if ready else "not ready")
            await asyncio.sleep(_POLL_S)


def _addresses_fields(addresses: Addresses) -> dict[str, object]:
    return {"http": addresses.http, "grpc": addresses.grpc, "admin": addresses.admin}


async def run(config: RouterConfig) -> None:
    """Runs a router until SIGTERM or SIGINT, then drains; a second signal ends the drain.

    Raises as Router.
    """
    router = Router(config)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await router.start()
        await stop.wait()
        drain = asyncio.ensure_future(router.drain())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, hurried):
            task.cancel()
        await asyncio.gather(drain, hurried, return_exceptions=True)
    finally:
        await router.close()
