"""The HTTP application: routes, error handlers and the OpenAPI page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from router.auth import ApiKeys
from router.door_metrics import DoorMetrics
from router.errors import MAX_PARAM, InvalidRequestError, clipped, from_validation
from router.generation import GenerationError
from router.http.door import HttpDoor
from router.http.errors import HttpError, http_error
from router.http.middleware import CallMiddleware
from router.http.openapi import RouterApi, body_docs, error_docs, generation_docs
from router.http.other_responses import Detokenization, Model, ModelList, Status, Tokenization, Version
from router.http.responses import ChatCompletion, Completion
from router.http.schema.chat import ChatCompletionRequest
from router.http.schema.common import MODEL
from router.http.schema.completions import CompletionRequest
from router.http.schema.tokens import DetokenizeRequest, TokenizeRequest
from router.serving import Serving

_DESCRIPTION = """
OpenAI-compatible. Unknown parameters are refused by name; known ones that this server does not have yet are
accepted only at the value that changes nothing.

Header `x-request-id` names the request in logs, `x-request-timeout` ends it after so many seconds. With API
keys configured every call but `/health`, `/ping`, `/ready` and `/metrics` needs `Authorization: Bearer KEY`.
"""
# What browsers' scripts may read of an answer beside its body.
_EXPOSED_HEADERS = ("x-request-id", "retry-after")


def package_version() -> str:
    """Version of the installed package; "0+unknown" where it runs from a checkout that is not installed."""
    try:
        return version("kvrelay-cluster")
    except PackageNotFoundError:
        return "0+unknown"


def _model_body(serving: Serving) -> Model:
    model = serving.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "kvrelay",
        "max_model_len": model.max_model_len,
    }


def _add_status_routes(app: FastAPI, serving: Serving, metrics: DoorMetrics) -> None:
    @app.get("/health", tags=["operations"], summary="The process lives")
    async def health() -> Status:
        return {"status": "ok"}

    @app.get("/ping", tags=["operations"], summary="The same as /health")
    async def ping() -> Status:
        return {"status": "ok"}

    @app.post("/ping", tags=["operations"], summary="The same as /health")
    async def post_ping() -> Status:
        return {"status": "ok"}

    @app.get(
        "/ready",
        tags=["operations"],
        summary="A request can be served now",
        responses={503: {"model": Status, "description": "No live workers, or shutting down."}},
    )
    async def ready(response: Response) -> Status:
        if serving.ready:
            return {"status": "ready"}
        response.status_code = 503
        return {"status": "shutting down" if serving.draining else "no live workers for every role"}

    @app.get("/metrics", tags=["operations"], summary="Prometheus metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version", tags=["operations"], summary="Version of this server")
    async def server_version() -> Version:
        return {"version": package_version()}


def _add_model_routes(app: FastAPI, serving: Serving) -> None:
    @app.get("/v1/models", tags=["models"], summary="The served model", responses=error_docs(401))
    async def models() -> ModelList:
        return {"object": "list", "data": [_model_body(serving)]}

    # A path, not a segment: model names often have a slash.
    @app.get("/v1/models/{name:path}", tags=["models"], summary="One model", responses=error_docs(401, 404))
    async def model(name: Annotated[str, Path(description=MODEL)]) -> Model:
        serving.preparer.check_model(name)
        return _model_body(serving)


def _add_generation_routes(app: FastAPI, door: HttpDoor) -> None:
    for path, endpoint, body, answer, chunk, summary in (
        (
            "/v1/chat/completions",
            door.chat_completions,
            ChatCompletionRequest,
            ChatCompletion,
            "ChatCompletionChunk",
            "Answer a chat",
        ),
        (
            "/v1/completions",
            door.completions,
            CompletionRequest,
            Completion,
            "Completion",
            "Continue a prompt",
        ),
    ):
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            tags=["generation"],
            summary=summary,
            # The handler makes the response itself; the model only documents it.
            response_model=None,
            responses={200: {"model": answer}, **error_docs()},
            openapi_extra=generation_docs(body, chunk),
        )


def _add_token_routes(app: FastAPI, door: HttpDoor) -> None:
    for name, endpoint, body, answer, summary in (
        ("tokenize", door.tokenize, TokenizeRequest, Tokenization, "Token ids of a text or a chat"),
        ("detokenize", door.detokenize, DetokenizeRequest, Detokenization, "Text of token ids"),
    ):
        # Servers of the same kind have them at the one place or the other.
        for path in (f"/{name}", f"/v1/{name}"):
            app.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                tags=["tokens"],
                summary=summary,
                response_model=None,
                responses={200: {"model": answer}, **error_docs(400, 401, 404, 408, 413, 500)},
                openapi_extra=body_docs(body),
            )


def _add_error_handlers(app: FastAPI) -> None:
    async def known_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, InvalidRequestError | GenerationError)
        return http_error(error).response()

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, ValidationError)
        return http_error(from_validation(error)).response()

    async def no_such_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = clipped(request.url.path, MAX_PARAM)
        message = f"{request.method} {path}: {error.detail}."
        headers = dict(error.headers or {})
        code = "not_found" if error.status_code == 404 else "invalid_method"
        return HttpError(error.status_code, message, "invalid_request_error", None, code, headers).response()

    app.add_exception_handler(InvalidRequestError, known_error)
    app.add_exception_handler(GenerationError, known_error)
    app.add_exception_handler(ValidationError, invalid_body)
    app.add_exception_handler(HTTPException, no_such_route)


def create_app(
    serving: Serving,
    metrics: DoorMetrics,
    keys: ApiKeys,
    max_body_bytes: int,
    fingerprint_of: Callable[[], str],
    cors_origins: Sequence[str] = (),
) -> ASGIApp:
    """The application, for an ASGI server.

    Args:
        serving: the shared request path.
        metrics: its registry is what `/metrics` shows.
        keys: API keys.
        max_body_bytes: largest body.
        fingerprint_of: gives the text behind `system_fingerprint`.
        cors_origins: origins whose pages may call from a browser; "*" for all.
    """
    app = RouterApi(
        title="kvrelay",
        version=package_version(),
        description=_DESCRIPTION,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_status_routes(app, serving, metrics)
    _add_model_routes(app, serving)
    door = HttpDoor(serving, max_body_bytes, fingerprint_of)
    _add_generation_routes(app, door)
    _add_token_routes(app, door)
    _add_error_handlers(app)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    app.add_middleware(CallMiddleware, keys=keys, metrics=metrics, known_paths=paths)
    if not cors_origins:
        return app
    # Outermost: a browser asks first, without a key, and must read errors too.
    return CORSMiddleware(
        app,
        allow_origins=cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
    )
