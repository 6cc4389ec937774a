from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvrelay
from kvrelay import AsyncClient, AsyncStream, Client, Stream
from tests.client.scripted_server import Server

ROOT = Path(__file__).parents[2]
README = ROOT / "client/README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_what_is_exported() -> None:
    assert sorted(kvrelay.__all__) == kvrelay.__all__
    public = {
        name
        for name, value in vars(kvrelay).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(kvrelay.__all__)
    assert public == {
        *("AsyncClient", "AsyncStream", "Client", "Stream", "GenerateOptions", "PromptOptions"),
        *("Choice", "Chunk", "FinishReason", "Generation", "Message", "Model", "Span"),
        *("LikelyToken", "Timeline", "TokenLogprob", "Tokenization", "Usage"),
        *("Tool", "ToolCall", "ToolCallDelta"),
        *("AuthenticationError", "DeadlineExceededError", "InvalidRequestError", "KvrelayError"),
        *(
            "ModelNotFoundError",
            "OverloadedError",
            "RequestCancelledError",
            "ServerError",
            "UnavailableError",
        ),
    }


def test_results_are_frozen() -> None:
    for name in kvrelay.__all__:
        value = getattr(kvrelay, name)
        if dataclasses.is_dataclass(value):
            assert vars(value)["__dataclass_params__"].frozen, name
            assert "__slots__" in vars(value), name


def _surface(kind: type) -> dict[str, list[str]]:
    return {
        name: [
            f"{parameter.kind.name} {parameter.name}: {parameter.annotation} = {parameter.default}"
            for parameter in inspect.signature(member).parameters.values()
        ]
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_both_clients_have_the_same_surface() -> None:
    assert _surface(Client) == _surface(AsyncClient)
    streams = _surface(Stream), _surface(AsyncStream)
    assert set(streams[0]) - {"close"} == set(streams[1]) - {"aclose"}


def test_importing_loads_grpc_and_protobuf_alone() -> None:
    program = "import sys; before = set(sys.modules); import kvrelay; print(*(set(sys.modules) - before))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    loaded = result.stdout.split()
    # grpcio looks for its own companions (grpc_tools, ...), and its compiled part brings Cython's modules.
    own = re.compile(r"kvrelay|grpc\w*|google|_?cython\w*|typing_extensions")
    packages = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert {name for name in packages if not own.fullmatch(name)} == set()
    assert {"kvrelay", "grpc", "google"} <= packages
    assert {name.split(".")[1] for name in loaded if name.startswith("google.")} <= {"protobuf", "_upb"}


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_the_readmes_examples_run(
    block: str, server: Server, other_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    program = block.replace("127.0.0.1:8001", server.endpoint).replace(
        "127.0.0.1:8002", other_server.endpoint
    )
    exec(compile(program, str(README), "exec"), {"__name__": "__main__"})
    assert server.requests or other_server.requests
    assert re.search("Hello|demo", capsys.readouterr().out)
