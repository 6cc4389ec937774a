"""Servicer of `kvrelay.v1.Inference`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from kvrelay.v1 import inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceServicer
from router.choice_events import INLINE_POSITIONS, ChoiceDelta, ChoiceEnd, usage_of
from router.door_metrics import DoorMetrics
from router.errors import InvalidRequestError
from router.generation import GenerationError
from router.prepare import MAX_DETOKENIZED
from router.rpc.status import RpcStatus, rpc_status
from router.rpc.translate import ResponseWriter, client_request, prompt_of, prompt_top_of
from router.serving import Serving
from router.text.tokenizer import INLINE_CHARACTERS
from telemetry.logs import bind_request, fields

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class _Call:
    """What is known of a running call; `status` is what it ended with."""

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.status = "OK"


class InferenceDoor(InferenceServicer):
    """Translates calls. A call that the client cancels, or whose deadline passes, ends everywhere."""

    def __init__(self, serving: Serving, metrics: DoorMetrics) -> None:
        self._serving = serving
        self._metrics = metrics

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:  # noqa: N802
        """Writes one message for each piece of text. Statuses: see inference.proto."""
        async with self._call("Generate", context) as call:
            asked = client_request(request, context.time_remaining(), call.arrived_at)
            with bind_request(asked.request_id):
                prepared = await self._serving.prepare(asked)
                writer = ResponseWriter(
                    asked.request_id,
                    prepared.prompt_of(0),
                    self._serving.model.tokenizer.all_token_bytes,
                    num_top=asked.sampling.logprobs or 0,
                    prompt_top=prompt_top_of(asked.sampling),
                )
                ends: list[ChoiceEnd] = []
                async with aclosing(self._serving.run(prepared)) as events:
                    async for event in events:
                        if isinstance(event, ChoiceDelta):
                            await context.write(writer.delta(event))
                        else:
                            ends.append(event)
                            last = len(ends) == prepared.num_choices
                            usage = usage_of(prepared, ends) if last else None
                            if len(event.prompt_logprobs) <= INLINE_POSITIONS:
                                end = writer.end(event, usage)
                            else:
                                end = await asyncio.to_thread(writer.end, event, usage)
                            await context.write(end)

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """Token ids, of whatever number."""
        async with self._call("Tokenize", context):
            if request.model:
                self._serving.preparer.check_model(request.model)
            options = request.prompt_options
            truncate = options.truncate_prompt_tokens if options.HasField("truncate_prompt_tokens") else None
            token_ids = await self._serving.preparer.tokenize(prompt_of(request), truncate)
            model = self._serving.model

            def answer() -> inference_pb2.TokenizeResponse:
                strs = map(model.tokenizer.token, token_ids if request.return_token_strs else ())
                return inference_pb2.TokenizeResponse(
                    token_ids=token_ids, max_model_len=model.max_model_len, token_strs=strs
                )

            return answer() if len(token_ids) <= INLINE_CHARACTERS else await asyncio.to_thread(answer)

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        """Text of token ids."""
        async with self._call("Detokenize", context):
            if request.model:
                self._serving.preparer.check_model(request.model)
            if len(request.token_ids) > MAX_DETOKENIZED:
                raise InvalidRequestError(
                    f"token_ids has {len(request.token_ids)} entries; {MAX_DETOKENIZED} are allowed.",
                    "token_ids",
                    "invalid_value",
                )
            text = await self._serving.preparer.detokenize(
                request.token_ids, skip_special_tokens=request.skip_special_tokens, param="token_ids"
            )
            return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """The one model that is served."""
        async with self._call("ListModels", context):
            return inference_pb2.ListModelsResponse(models=[self._model()])

    async def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.Model:
        """The model of that name."""
        async with self._call("GetModel", context):
            self._serving.preparer.check_model(request.id)
            return self._model()

    def _model(self) -> inference_pb2.Model:
        model = self._serving.model
        return inference_pb2.Model(
            id=model.name, max_model_len=model.max_model_len, created_unix_s=model.created
        )

    @asynccontextmanager
    async def _call(self, name: str, context: Context) -> AsyncIterator[_Call]:
        """Counts and logs the call, and turns errors into its status."""
        call = _Call()
        self._metrics.began("grpc")
        try:
            yield call
        except (InvalidRequestError, GenerationError) as error:
            await self._abort(call, context, rpc_status(error))
        except asyncio.CancelledError:
            call.status = "CANCELLED"
            raise
        # The last net: whatever nobody foresaw becomes INTERNAL, and the log gets the trace.
        except Exception:
            logger.exception("call failed", extra=fields(call=name))
            status = RpcStatus(grpc.StatusCode.INTERNAL, "The server failed to handle this request.")
            await self._abort(call, context, status)
        finally:
            seconds = time.monotonic() - call.arrived_at
            self._metrics.ended("grpc", name, call.status, seconds)
            logger.info("call", extra=fields(call=name, status=call.status, seconds=round(seconds, 6)))

    @staticmethod
    async def _abort(call: _Call, context: Context, status: RpcStatus) -> None:
        call.status = status.code.name
        await context.abort(status.code, status.details, status.metadata)
