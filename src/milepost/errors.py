"""The errors that Milepost raises on purpose. Each carries what happened and, as a hint, what to do about it."""

from __future__ import annotations

import traceback


class MilepostError(Exception):
    """Something the user can act on. `message` is one line; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class ConfigError(MilepostError):
    """A flag or setting that cannot work, found at start."""


class ModelError(MilepostError):
    """A model that cannot be loaded: missing, damaged, unknown, unsupported, or too large for the memory."""


class TraceError(MilepostError):
    """A trace that cannot be read: which file and line, and what is wrong there."""


class RequestError(MilepostError):
    """One request that cannot be served. The engine and every other request go on.

    `status` is the HTTP status (4xx); `code` and `param` are those of OpenAI's error object.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.param = param


class RequestFailed(MilepostError):
    """A request that was accepted and then failed inside (its sampler, tokenizer or detokenizer raised): HTTP 500.

    `output` is the last `RequestOutput` of it, where there is one: what it found in the prefix cache is told there.
    """

    output: object = None


def frames_of(error: BaseException) -> str:
    """Its kind and where it came from, for the log: without its own text, which may quote a user's."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
