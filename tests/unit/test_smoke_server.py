"""The smoke engine's server: what deployments, benchmarks and readiness checks rely on."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

SOURCE = Path(__file__).parents[2] / "examples" / "smoke-engine"


class InProcessClient:
    """Asks an application without a server; Starlette's own test client wants a library of its own by now."""

    def __init__(self, app):
        self.app = app

    def get(self, path):
        return asyncio.run(self._request("GET", path))

    def post(self, path, *, json):
        return asyncio.run(self._request("POST", path, json=json))

    async def _request(self, method, path, **content):
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.request(method, path, **content)


@pytest.fixture
def engine_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(SOURCE))
    from smoke_engine import api, engine, loading, moods

    return {"api": api, "engine": engine, "loading": loading, "moods": moods}


def make_engine(modules, *, max_model_len):
    moods = modules["moods"].Moods()
    return modules["engine"].Engine(model="/models/toy", served_name="toy", max_model_len=max_model_len, moods=moods)


@pytest.fixture
def client(engine_modules):
    return InProcessClient(engine_modules["api"].create_app(make_engine(engine_modules, max_model_len=64)))


def complete(client, prompt="one two three", **fields):
    return client.post("/v1/completions", json={"model": "toy", "prompt": prompt, **fields})


def chat(client, **fields):
    return client.post(
        "/v1/chat/completions", json={"model": "toy", "messages": [{"role": "user", "content": "Hello"}], **fields}
    )


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def metric(client, name):
    line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith(f"smoke:{name}{{"))
    return float(line.rpartition(" ")[2])


def test_health_answers_200(client):
    assert client.get("/health").status_code == 200


def test_models_name_the_served_model_and_its_context(client):
    (model,) = client.get("/v1/models").json()["data"]

    assert (model["id"], model["root"], model["max_model_len"]) == ("toy", "/models/toy", 64)


def test_a_completion_takes_the_default_number_of_tokens_and_counts_them(client):
    answer = complete(client).json()

    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}
    assert len(answer["choices"][0]["text"].split()) == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_same_prompt_gets_the_same_answer_and_another_prompt_another(client):
    texts = [complete(client, prompt).json()["choices"][0]["text"] for prompt in ("a b", "a b", "a c")]

    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("prompt", [[7, 8, 9], [[7, 8, 9]], ["7 8 9"]])
def test_a_prompt_may_be_token_ids_or_a_list_of_one(client, prompt):
    assert complete(client, prompt).json() | {"id": "", "created": 0} == complete(client, "7 8 9").json() | {
        "id": "",
        "created": 0,
    }


def test_a_streamed_completion_says_the_same_as_a_whole_one(client):
    whole = complete(client).json()
    parts = events(complete(client, stream=True, stream_options={"include_usage": True}))

    assert "".join(part["choices"][0]["text"] for part in parts[:-1]) == whole["choices"][0]["text"]
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]


def test_a_chat_answer_is_a_message_of_the_assistant(client):
    answer = chat(client, max_completion_tokens=4).json()

    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] == 4


def test_a_streamed_chat_starts_with_the_role_and_ends_with_the_reason(client):
    parts = events(chat(client, stream=True, max_tokens=3))

    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * 4 + ["length"]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert all("usage" not in part for part in parts)


def test_a_chat_message_may_come_in_parts(client):
    parts = [{"type": "text", "text": "Hello"}]

    usage = chat(client, messages=[{"role": "user", "content": parts}], max_tokens=1).json()["usage"]

    assert usage == chat(client, max_tokens=1).json()["usage"]


def test_an_answer_ends_by_itself_unless_told_to_ignore_the_end(engine_modules):
    app = InProcessClient(engine_modules["api"].create_app(make_engine(engine_modules, max_model_len=512)))

    ended = complete(app, max_tokens=200).json()
    ignored = complete(app, max_tokens=200, ignore_eos=True).json()

    assert 48 <= ended["usage"]["completion_tokens"] <= 80
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ignored["usage"]["completion_tokens"] == 200


def test_a_stopping_engine_ends_its_answers_as_aborted(engine_modules):
    engine = make_engine(engine_modules, max_model_len=64)
    engine.stop()

    parts = events(complete(InProcessClient(engine_modules["api"].create_app(engine)), stream=True))

    assert [part["choices"][0]["finish_reason"] for part in parts] == ["abort"]


def test_metrics_count_tokens_and_finished_requests(client):
    complete(client, max_tokens=5)
    complete(client, max_tokens=2, stream=True)

    assert metric(client, "generation_tokens_total") == 7
    assert metric(client, "prompt_tokens_total") == 6
    assert 'smoke:request_success_total{finished_reason="length",model_name="toy"} 2.0' in client.get("/metrics").text
    assert metric(client, "num_requests_running") == 0
    assert metric(client, "kv_cache_usage_perc") == 0


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"model": "other"}, 404, "model", "`other` does not exist"),
        ({"prompt": "word " * 64}, 400, "prompt", "maximum context length is 64 tokens"),
        ({"max_tokens": 62}, 400, "max_tokens", "the answer may take 62"),
        ({"prompt": ""}, 400, "prompt", "empty"),
        ({"prompt": ["a", "b"]}, 400, "prompt", "2 prompts"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"n": 2}, 400, "n", "less than or equal to 1"),
    ],
)
def test_a_wrong_request_gets_an_error_as_openai_writes_it(client, fields, status, param, words):
    response = complete(client, **fields)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, status, param)
    assert words in error["message"]


def test_a_context_longer_than_the_checkpoint_allows_is_refused(engine_modules, tmp_path):
    loading = engine_modules["loading"]
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')

    assert loading.context_length(str(tmp_path), None) == 128
    with pytest.raises(loading.LoadingError, match="more than the 128 tokens"):
        loading.context_length(str(tmp_path), 129)


def test_a_missing_model_folder_is_an_error_about_the_volume(engine_modules, tmp_path):
    loading = engine_modules["loading"]

    with pytest.raises(loading.LoadingError, match="is the model's volume mounted"):
        loading.context_length(str(tmp_path / "absent"), None)


def test_a_mood_that_is_no_switch_is_an_error(engine_modules):
    with pytest.raises(ValueError, match="SMOKE_NEVER_READY is 'yes'"):
        engine_modules["moods"].moods_from({"SMOKE_NEVER_READY": "yes"})


def test_the_failing_mood_fails_after_the_shards(engine_modules, caplog):
    caplog.set_level("INFO")
    mood = engine_modules["moods"].Moods(start_fails=True)

    with pytest.raises(engine_modules["loading"].LoadingError, match="initialization failed"):
        engine_modules["loading"].load("toy", 64, mood)

    assert "Loading shards 8/8" in caplog.text
    assert "Capturing graphs" not in caplog.text


def start_server(port=0, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "smoke_engine.server", "--host", "127.0.0.1", "--port", str(port)],
        cwd=SOURCE,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process, words):
    for line in process.stdout:
        if words in line:
            return line
    pytest.fail(f"the server ended with {process.wait()} and never said {words!r}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_dying_engine_is_healthy_until_its_first_prompt():
    port = free_port()
    with start_server(port, SMOKE_DIES_AT_PROMPT="1") as process:
        try:
            read_until(process, "Ready: smoke")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                assert client.get("/health").status_code == 200
                with pytest.raises(httpx.RemoteProtocolError):
                    client.post("/v1/completions", json={"prompt": "hello"})
            assert process.wait(timeout=5) == 134
        finally:
            process.kill()


def test_an_engine_that_is_loading_stops_at_sigterm():
    with start_server(SMOKE_NEVER_READY="1") as process:
        try:
            read_until(process, "Waiting for the engine core")
            process.terminate()
            assert process.wait(timeout=5) == 0
        finally:
            process.kill()


def test_a_failed_start_says_why_and_exits_with_1():
    with start_server(SMOKE_OUT_OF_MEMORY="1") as process:
        output, _ = process.communicate(timeout=10)

    assert process.returncode == 1
    assert "HIP out of memory" in output
