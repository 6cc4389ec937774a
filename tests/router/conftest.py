"""Fixtures of the doors' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.router.doors import HELLO, Doors, open_doors
from tests.support.scripted_dispatcher import ScriptedDispatcher


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    """Open doors whose dispatcher says hello; tests may change its script."""
    async with open_doors(tmp_path / "model", ScriptedDispatcher(HELLO)) as opened:
        yield opened
