"""Whether a Redis that the spec names can be used, looked at before anything else is started."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

_TRY_S = 2.0
_PAUSE_S = 0.2


class RedisUnusableError(Exception):
    """The Redis does not answer; the message holds its address without the password."""


def require_answer(url: str, patience_s: float = 10.0) -> None:
    """Returns once the server answers PING; it may be starting just now. Blocks.

    Raises RedisUnusableError after `patience_s`, and at once where the URL cannot be read.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with Redis.from_url(
                url, socket_timeout=_TRY_S, socket_connect_timeout=_TRY_S, retry=Retry(NoBackoff(), 0)
            ) as client:
                client.ping()
            return
        except ValueError as error:
            raise RedisUnusableError(f"redis.url: {error}") from None
        except (RedisError, OSError) as error:
            if time.monotonic() > deadline:
                raise RedisUnusableError(
                    f"redis.url: the Redis at {_without_password(url)} does not answer: {error}"
                ) from None
        time.sleep(_PAUSE_S)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
