"""The HTTP application: routes, error handlers and the OpenAPI page."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import Route

from router.auth import ApiKeys
from router.door_metrics import DoorMetrics
from router.errors import InvalidRequestError, from_validation
from router.generation import GenerationError
from router.http.answers import EventStream, WholeAnswer
from router.http.body import deadline_of, parse_object, read_body
from router.http.errors import ErrorBody, HttpError, http_error
from router.http.formats import AnswerFormat, ChatFormat, CompletionFormat, Envelope
from router.http.middleware import CallMiddleware
from router.http.responses import ChatCompletion, Completion, Model, ModelList, Status, Version
from router.http.schema import ChatCompletionRequest, CompletionRequest
from router.prepare import ClientRequest
from router.serving import Serving

_BODIES = (ChatCompletionRequest, CompletionRequest)
_SCHEMAS = "#/components/schemas/{model}"
_DESCRIPTION = """
OpenAI-compatible. Unknown parameters are refused by name; known ones that this server does not have yet are
accepted only at the value that changes nothing.

Header `x-request-id` names the request in logs, `x-request-timeout` ends it after so many seconds. With API
keys configured every call but `/health`, `/ready` and `/metrics` needs `Authorization: Bearer KEY`.
"""
_ERRORS: Mapping[int, str] = {
    400: "The request is wrong; `param` names the part.",
    401: "No valid API key.",
    404: "No such model.",
    413: "The body is too large.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The server failed.",
    503: "No worker, or shutting down.",
    504: "The request's time limit passed.",
}


def package_version() -> str:
    """Version of the installed package; "0+unknown" where it runs from a checkout that is not installed."""
    try:
        return version("kvrelay-cluster")
    except PackageNotFoundError:
        return "0+unknown"


class HttpDoor:
    """Handlers of the generating endpoints.

    Args:
        serving: the shared request path.
        max_body_bytes: largest body.
        fingerprint_of: gives a text that changes when the same seed may give another answer.
    """

    def __init__(self, serving: Serving, max_body_bytes: int, fingerprint_of: Callable[[], str]) -> None:
        self._serving = serving
        self._max_body_bytes = max_body_bytes
        self._fingerprint_of = fingerprint_of

    async def chat_completions(self, request: Request) -> Response:
        """Answers a chat, through the model's own chat template."""
        body = ChatCompletionRequest.from_json(await self._body(request))
        return await self._generate(request, body, ChatFormat(self._envelope(request)))

    async def completions(self, request: Request) -> Response:
        """Continues one prompt or several."""
        body = CompletionRequest.from_json(await self._body(request))
        return await self._generate(request, body, CompletionFormat(self._envelope(request)))

    async def _body(self, request: Request) -> dict[str, object]:
        return parse_object(await read_body(request, self._max_body_bytes))

    def _envelope(self, request: Request) -> Envelope:
        fingerprint = "fp_" + hashlib.sha256(self._fingerprint_of().encode()).hexdigest()[:12]
        return Envelope(request.state.request_id, int(time.time()), self._serving.model.name, fingerprint)

    async def _generate(
        self, request: Request, body: ChatCompletionRequest | CompletionRequest, form: AnswerFormat
    ) -> Response:
        prepared = await self._serving.prepare(
            ClientRequest(
                model=body.model,
                prompts=body.prompts(),
                sampling=body.sampling(),
                request_id=request.state.request_id,
                arrived_at=request.state.arrived_at,
                cache_salt=body.cache_salt or "",
                deadline=deadline_of(request, body.timeout),
            )
        )
        if body.stream:
            return EventStream(self._serving, prepared, form, body.stream_options)
        return WholeAnswer(self._serving, prepared, form)


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
    @app.get("/v1/models", tags=["models"], summary="The served model")
    async def models() -> ModelList:
        return {"object": "list", "data": [_model_body(serving)]}

    # A path, not a segment: model names often have a slash.
    @app.get("/v1/models/{name:path}", tags=["models"], summary="One model", responses=_error_docs(404))
    async def model(name: str) -> Model:
        serving.preparer.check_model(name)
        return _model_body(serving)


def _error_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": _ERRORS[status]} for status in statuses}


def _add_generation_routes(app: FastAPI, door: HttpDoor) -> None:
    for path, endpoint, body, answer, summary in (
        (
            "/v1/chat/completions",
            door.chat_completions,
            ChatCompletionRequest,
            ChatCompletion,
            "Answer a chat",
        ),
        ("/v1/completions", door.completions, CompletionRequest, Completion, "Continue a prompt"),
    ):
        schema = {"schema": {"$ref": _SCHEMAS.format(model=body.__name__)}}
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            tags=["generation"],
            summary=summary,
            # The handler makes the response itself; the model only documents it.
            response_model=None,
            responses={200: {"model": answer}, **_error_docs(*_ERRORS)},
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": schema}}},
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
        message = f"{request.method} {request.url.path}: {error.detail}."
        headers = dict(error.headers or {})
        code = "not_found" if error.status_code == 404 else "invalid_method"
        return HttpError(error.status_code, message, "invalid_request_error", None, code, headers).response()

    app.add_exception_handler(InvalidRequestError, known_error)
    app.add_exception_handler(GenerationError, known_error)
    app.add_exception_handler(ValidationError, invalid_body)
    app.add_exception_handler(HTTPException, no_such_route)


class RouterApi(FastAPI):
    """FastAPI whose page also describes the bodies that the handlers parse themselves."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_SCHEMAS)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(
    serving: Serving,
    metrics: DoorMetrics,
    keys: ApiKeys,
    max_body_bytes: int,
    fingerprint_of: Callable[[], str],
) -> FastAPI:
    """The application, for an ASGI server.

    Args:
        serving: the shared request path.
        metrics: its registry is what `/metrics` shows.
        keys: API keys.
        max_body_bytes: largest body.
        fingerprint_of: gives the text behind `system_fingerprint`.
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
    _add_generation_routes(app, HttpDoor(serving, max_body_bytes, fingerprint_of))
    _add_error_handlers(app)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    app.add_middleware(CallMiddleware, keys=keys, metrics=metrics, known_paths=paths)
    return app
