"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from milepost.errors import RequestError
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.images import note_images
from milepost.server.prompts import Prompt, needs_tokenizer, read_conversation, read_texts
from milepost.server.schemas import DetokenizeRequest, TokenizeRequest
from milepost.server.state import Engine, server_state
from milepost.server.stream import until_hangup

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, TokenizeRequest)
    state.served_name(body.model)
    engine = state.engine
    note_images(request, body.messages or ())
    prompt = await until_hangup(request, _read(engine, body))
    tokenizer = needs_tokenizer(engine, "prompt")
    texts = [tokenizer.token_text(token) for token in prompt.ids] if body.return_token_strs else None
    return ApiResponse(
        {
            "count": len(prompt.ids),
            "max_model_len": engine.max_model_len,
            "tokens": prompt.ids,
            "token_strs": texts,
        }
    )


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, DetokenizeRequest)
    state.served_name(body.model)
    tokenizer = needs_tokenizer(state.engine, "tokens")
    for token in body.tokens:
        if not 0 <= token < state.engine.vocab_size:
            raise RequestError(
                f"token id {token} is not in the vocabulary (0 to {state.engine.vocab_size - 1})", param="tokens"
            )
    return ApiResponse({"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Special tokens, named as in a model's files, and the chat template: so lm-eval needs no tokenizer of its own."""
    engine = server_state(request).engine
    tokenizer, template = needs_tokenizer(engine, None), engine.chat_template
    named = {"bos_token": None, "eos_token": None, **tokenizer.special_tokens}
    text = None if template is None else template.text
    return ApiResponse({"tokenizer_class": type(tokenizer).__name__, **named, "chat_template": text})


async def _read(engine: Engine, body: TokenizeRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        return await read_conversation(engine, body.messages, body)
    special = body.add_special_tokens is not False
    (prompt,) = await read_texts(engine, [body.prompt or ""], add_special_tokens=special)
    return prompt
