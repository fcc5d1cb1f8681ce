"""The warm-up by itself, as exported probes run it, and what /metrics says."""

import http.server
import json
import threading

import pytest

from builder.deploy import warm_up
from builder.deploy.status import parse_metrics, read_load

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
vllm:num_requests_running{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:generation_tokens_total{engine="0",model_name="tiny"} 24.0
vllm:generation_tokens_created{engine="0",model_name="tiny"} 1.79596185012485e+09
vllm:prompt_tokens_total{engine="0",model_name="a \\"b\\""} NaN
"""
SGLANG = """\
sglang:num_running_reqs{model_name="q"} 0.0
sglang:num_queue_reqs{model_name="q"} 1.0
sglang:token_usage{model_name="q"} 0.5
sglang:generation_tokens_total{model_name="q"} 7.0
"""


class Server(http.server.BaseHTTPRequestHandler):
    """Answers like an engine once ``server.open`` is set; ``server.text`` are its metrics."""

    def do_GET(self):
        if self.path == "/metrics":
            self.reply(200, self.server.text)
            return
        self.reply(200 if self.server.open else 503, json.dumps({"data": [{"id": "m", "max_model_len": 600}]}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.reply(200, json.dumps({"choices": [{"text": "yes"}]}))

    def reply(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.asked, running.open, running.text = [], True, VLLM
        running.base = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_it_asks_the_prompt_and_the_contexts_that_fit_and_says_so(server, capsys):
    assert warm_up.main([server.base, "--prompt", "hello"]) == 0
    assert [
        asked["prompt"] if isinstance(asked["prompt"], str) else len(asked["prompt"]) for asked in server.asked
    ] == [
        "hello",
        512,
    ]
    assert "m answered 'yes'" in capsys.readouterr().out


def test_every_prompt_is_sampled(server):
    warm_up.main([server.base])
    assert all(asked["temperature"] > 0 for asked in server.asked)


def test_its_mark_lets_it_ask_only_for_health_afterwards(server, tmp_path):
    words = [server.base, "--contexts", "", "--mark", str(tmp_path / "warm")]
    assert warm_up.main(words) == 0
    assert warm_up.main(words) == 0
    assert len(server.asked) == 1
    server.open = False
    assert warm_up.main(words) == 1


def test_a_server_that_is_not_there_is_not_warm(capsys):
    assert warm_up.main(["http://127.0.0.1:1"]) == 1
    assert "is not warm" in capsys.readouterr().err


def test_it_goes_on_trying_until_the_server_answers(server, monkeypatch):
    monkeypatch.setattr(warm_up, "PAUSE_SECONDS", 0.01)
    server.open = False
    tries = []
    real = warm_up.served

    def served(base):
        tries.append(base)
        server.open = len(tries) > 2
        return real(base)

    monkeypatch.setattr(warm_up, "served", served)
    assert warm_up.main([server.base, "--within", "30"]) == 0
    assert len(tries) == 3


def test_it_stops_trying_when_the_process_is_gone(server, monkeypatch):
    def waited(_):
        raise AssertionError

    monkeypatch.setattr(warm_up.time, "sleep", waited)
    server.open = False
    gone = 2**22 + 1  # above the largest process id there can be
    assert warm_up.main([server.base, "--within", "60", "--process", str(gone)]) == 1


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_of_ours(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert warm_up.healthy(f"{server.base}/health")


@pytest.mark.parametrize(
    ("longest", "contexts"),
    [(None, ()), (256, ()), (600, (512,)), (8192, (512, 2048, 8184)), (262144, (512, 2048, 8192, 32768))],
)
def test_contexts_leave_room_for_the_answer(longest, contexts):
    assert warm_up.contexts_within(longest) == contexts


def test_prompts_are_ids_of_small_vocabularies_and_share_no_beginning():
    prompts = [warm_up.prompt_of(tokens) for tokens in warm_up.CONTEXTS]
    assert [len(prompt) for prompt in prompts] == list(warm_up.CONTEXTS)
    assert all(300 <= number < 512 for prompt in prompts for number in prompt)
    assert len({prompt[0] for prompt in prompts}) == len(prompts)


def test_metrics_are_summed_over_labels_and_without_the_engines_prefix():
    found = parse_metrics(VLLM)
    assert found["num_requests_running"] == 0.0
    assert found["generation_tokens_total"] == 24.0
    assert "prompt_tokens_total" not in found


def test_a_load_is_read_from_both_engines(server):
    found = read_load(server.base)
    assert (found.running, found.waiting, found.kv_use, found.generated) == (0, 3, 0.25, 24)
    assert found.tokens_per_second == 0.0
    server.text = SGLANG
    found = read_load(server.base)
    assert (found.running, found.waiting, found.kv_use, found.generated) == (0, 1, 0.5, 7)
    assert "KV cache 50.0% used" in found.text()


def test_a_server_without_metrics_has_no_load(monkeypatch):
    monkeypatch.setattr("builder.deploy.status.REQUEST_SECONDS", 0.2)
    assert read_load("http://127.0.0.1:1") is None
