"""What clients send: the fields of OpenAI's API that are honoured, their bounds, and those that are accepted without effect.

A field that would change the answer and is not honoured is refused where it is set, so that nobody takes an answer for what
it is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from maclaurin.serving import Sampling
from maclaurin.serving.http.errors import NOT_SUPPORTED, ApiError
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.settings import Settings

Stop = Annotated[str, Field(min_length=1, max_length=256)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
# of OpenAI's API: the values with which each changes nothing
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
NOTED = ("metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="usage in every chunk, as far as it has come")
    include_obfuscation: bool | None = None


class Sampled(Body):
    """top_k is not in OpenAI's API; 0 is no limit."""

    model: str | None = Field(None, max_length=256)
    max_tokens: int | None = Field(None, ge=1, le=2**31)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0, le=2**31)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int | None = Field(None, ge=1, le=128)
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, values in WITHOUT_EFFECT.items():
            if name in given and given[name] not in values:
                raise PydanticCustomError(NOT_SUPPORTED, "{name} is not supported here", {"name": name})
        return {name: value for name, value in given.items() if name not in (*WITHOUT_EFFECT, *NOTED)}

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def options(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    def sampling(self, served: Served, settings: Settings, choice: int) -> Sampling:
        """Of one choice. With a seed, choices differ and are the same each time."""
        return Sampling(
            max_tokens=min(self.limit or settings.max_new, settings.max_new),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=None if self.seed is None else self.seed + choice,
            stop_tokens=served.stop_tokens,
        )


class CompletionBody(Sampled):
    prompt: str | list[str] | list[Token] | list[list[Token]] = ""

    @property
    def prompts(self) -> list[str | list[int]]:
        several = isinstance(self.prompt, list) and (not self.prompt or isinstance(self.prompt[0], str | list))
        return list(self.prompt) if several else [self.prompt]  # type: ignore[arg-type, list-item]


class Part(Body):
    type: Literal["text", "input_text", "output_text"]
    text: str


class Message(BaseModel):
    """Other fields, as answers that are sent back have them, are not looked at."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None

    def plain(self) -> dict[str, str]:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content or ())
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(Sampled):
    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31)

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def plain(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]


def check_prompt(tokens: list[int], served: Served, settings: Settings, *, param: str, before: int = 0) -> None:
    """before: tokens of a session that are there already."""
    vocabulary = served.model.config.vocab_size
    if not tokens:
        raise ApiError(400, f"{param} must hold at least one token", param=param)
    if before + len(tokens) > settings.max_prompt:
        raise ApiError(
            400,
            f"{param} has {before + len(tokens)} tokens, more than the {settings.max_prompt} that this server reads",
            param=param,
            code="context_length_exceeded",
        )
    if max(tokens) >= vocabulary:
        raise ApiError(400, f"{param} must hold tokens below {vocabulary}, got {max(tokens)}", param=param)
