from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cluster import embedded_redis
from cluster.redis_check import RedisUnusableError, require_answer


def test_a_server_that_answers(tmp_path: Path) -> None:
    with embedded_redis.start(tmp_path / "redis.log") as server:
        require_answer(server.url)


def test_a_server_that_does_not_and_whose_password_stays_secret() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"redis://:hunter2@127.0.0.1:{reserved.getsockname()[1]}/3"
        with pytest.raises(RedisUnusableError, match="does not answer") as caught:
            require_answer(url, patience_s=0.0)
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
