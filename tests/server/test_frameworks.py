"""Frameworks that call tools through this server. They are installed by whoever wants to run this: docs/clients.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from sdk_script import ASK_WEATHER, scripted, weather

TOOL = {"type": "function", "function": {"name": "weather", "parameters": weather.model_json_schema()}}


@pytest.fixture(scope="module")
def script() -> Iterator[tuple[str, FakeEngine]]:
    with scripted() as served:
        yield served


def assert_told(engine: FakeEngine) -> None:
    """The model was shown its call and the tool's result."""
    prompt = engine.asked[-1][0]["prompt"]
    assert prompt.startswith("[weather]<user>Weather?<assistant>")
    assert prompt.endswith("</tool_call><tool>rain<assistant>")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("responses", [False, True])
def test_langchain(script: tuple[str, FakeEngine], responses: bool, streamed: bool) -> None:
    langchain = pytest.importorskip("langchain_openai")
    messages = pytest.importorskip("langchain_core.messages")
    url, engine = script
    model = langchain.ChatOpenAI(model="fake", base_url=f"{url}/v1", api_key="x", use_responses_api=responses)
    called: Any = model.bind_tools([TOOL])
    asked: list[Any] = [messages.HumanMessage("Weather?")]
    if streamed:
        first, *rest = called.stream(asked)
        answer = sum(rest, first)
    else:
        answer = called.invoke(asked)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    final = called.invoke([*asked, answer, messages.ToolMessage("rain", tool_call_id=call["id"])])
    assert final.text == "It rains."
    assert_told(engine)
    assert model.with_structured_output(weather).invoke("As JSON!") == weather(city="Rome")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_litellm(script: tuple[str, FakeEngine], api: str, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches a list of prices
    litellm = pytest.importorskip("litellm")
    url, engine = script
    base = f"{url}/v1" if api == "openai" else url
    ask: dict[str, Any] = {"model": f"{api}/fake", "api_base": base, "api_key": "x", "tools": [TOOL], "max_tokens": 200}
    answer = litellm.completion(**ask, messages=ASK_WEATHER, stream=streamed)
    if streamed:
        answer = litellm.stream_chunk_builder([*answer], messages=ASK_WEATHER)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, weather.model_validate_json(call.function.arguments)) == (
        "weather",
        weather(city="Paris"),
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    final = litellm.completion(**ask, messages=[*ASK_WEATHER, message.model_dump(), result])
    assert final.choices[0].message.content == "It rains."
    assert_told(engine)


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_pydantic_ai(script: tuple[str, FakeEngine], api: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    url, engine = script
    if api == "anthropic":
        models = pytest.importorskip("pydantic_ai.models.anthropic")
        provider = pytest.importorskip("pydantic_ai.providers.anthropic").AnthropicProvider(base_url=url, api_key="x")
        model = models.AnthropicModel("fake", provider=provider)
    else:
        models = pytest.importorskip("pydantic_ai.models.openai")
        provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{url}/v1", api_key="x")
        kind = models.OpenAIChatModel if api == "chat" else models.OpenAIResponsesModel
        model = kind("fake", provider=provider)
    agent = pydantic_ai.Agent(model)
    cities = []

    @agent.tool_plain(name="weather")
    def look_outside(city: str) -> str:
        cities.append(city)
        return "rain"

    assert agent.run_sync("Weather?").output == "It rains."
    assert cities == ["Paris"]
    assert_told(engine)
