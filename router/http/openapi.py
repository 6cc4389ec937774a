"""The OpenAPI page: FastAPI's own, with the bodies and streams that handlers read and write themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from router.described import asked
from router.http.errors import ErrorBody
from router.http.responses import ChatCompletionChunk
from router.http.schema.chat import ChatCompletionRequest
from router.http.schema.common import MAX_TIMEOUT_S
from router.http.schema.completions import CompletionRequest
from router.http.schema.tokens import DetokenizeRequest, TokenizeRequest

_SCHEMAS = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ERRORS = {
    400: "The request is wrong; `param` names the part.",
    401: "No valid API key.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The server failed.",
    503: "No worker, or shutting down.",
    504: "The request's time limit passed.",
}
_HEADERS = [
    {
        "name": "x-request-id",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "maxLength": 128},
        "description": asked(
            "Names the request in logs, and comes back in the answer.",
            "1 to 128 printable ASCII characters without spaces; another is replaced",
            "made by the server",
        ),
    },
    {
        "name": "x-request-timeout",
        "in": "header",
        "required": False,
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S},
        "description": asked(
            "Ends the request with an error after so long, as `timeout` in the body does.",
            f"(0, {MAX_TIMEOUT_S:g}]",
            "no limit",
            "seconds",
        ),
    },
]
_STREAM = (
    "Server-sent events: each `data:` line is one {chunk} as JSON; then, where it went well, `data: "
    "[DONE]`. With "
    "`stream_options.include_usage` the last one before that has no choices and carries the usage. After "
    "an error "
    "in mid-stream the last event is an ErrorBody, and `[DONE]` does not come."
)


def error_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a call; all that there are where none is named."""
    return {
        status: {"model": ErrorBody, "description": _ERRORS[status]} for status in statuses or tuple(_ERRORS)
    }


def body_docs(body: type[BaseModel]) -> dict[str, Any]:
    """The body of a call whose handler reads it itself."""
    schema = {"schema": {"$ref": _SCHEMAS.format(model=body.__name__)}}
    return {"requestBody": {"required": True, "content": {"application/json": schema}}}


def generation_docs(body: type[BaseModel], chunk: str) -> dict[str, Any]:
    """The same for a call that generates, whose answer may be a stream of chunks."""
    stream = {"schema": {"$ref": _SCHEMAS.format(model=chunk)}}
    answer = {
        "description": f"The whole answer, or with `stream` its events. {_STREAM.format(chunk=chunk)}",
        "content": {"text/event-stream": stream},
    }
    return {**body_docs(body), "parameters": _HEADERS, "responses": {"200": answer}}


def _definitions(models: Iterable[Any]) -> dict[str, Any]:
    """JSON schemas of the models and of what they hold, by name."""
    inputs = [(model, "validation", TypeAdapter(model).core_schema) for model in models]
    generator = GenerateJsonSchema(ref_template=_SCHEMAS)
    _, definitions = generator.generate_definitions(inputs)  # type: ignore[arg-type] # a literal, widened
    return {str(name): schema for name, schema in definitions.items()}


class RouterApi(FastAPI):
    """FastAPI whose page also describes the bodies that the handlers parse themselves."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            for operation in [call for path in document["paths"].values() for call in path.values()]:
                # FastAPI's own answer to bad parameters, which none of these calls can have.
                operation["responses"].pop("422", None)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_definitions((*_BODIES, ChatCompletionChunk)))
            used = _reached(document["paths"], schemas)
            document["components"]["schemas"] = {name: schemas[name] for name in sorted(used)}
            self.openapi_schema = document
        return self.openapi_schema


def _reached(node: object, schemas: dict[str, Any]) -> set[str]:
    """Names of the schemas that are referred to from `node`, by whatever way."""
    found: set[str] = set()
    nodes = [node]
    while nodes:
        match nodes.pop():
            case dict() as inner:
                name = str(inner.get("$ref", "")).rpartition("/")[2]
                if name and name not in found:
                    found.add(name)
                    nodes.append(schemas[name])
                nodes.extend(inner.values())
            case list() as items:
                nodes.extend(items)
    return found
