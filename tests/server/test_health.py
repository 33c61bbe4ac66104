"""From loading to ready to failed."""

import httpx
from fake_engine import FakeEngine, serving, state_of

import milepost


def test_life():
    state, engine = state_of(None, api_keys=("key",)), FakeEngine()
    with serving(state) as url, httpx.Client(base_url=url, headers={"Authorization": "Bearer key"}) as http:
        state.loading(5, 20)
        answer = http.get("/health", headers={"Authorization": ""})
        assert answer.status_code == 503
        assert answer.json() == {"status": "loading", "loaded_bytes": 5, "total_bytes": 20}
        for path in ("/v1/models", "/metrics", "/version", "/ping", "/nowhere"):
            waiting = http.get(path)
            assert waiting.status_code == 503
            assert int(waiting.headers["retry-after"]) > 0
            assert waiting.json()["error"]["code"] == "model_loading"
        assert http.post("/v1/chat/completions", content=b"not json").status_code == 503

        state.ready(engine)
        assert http.get("/health").json() == {"status": "ok"}
        assert http.head("/health").status_code == 200
        assert http.get("/ping").status_code == 200
        assert http.get("/v1/models").status_code == 200

        engine.stalled = True
        assert (http.get("/health").status_code, http.get("/health").json()["status"]) == (503, "stalled")
        engine.stalled = False
        engine.errored = ZeroDivisionError("secret")
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert "secret" not in answer.text


def test_version_and_metrics(http: httpx.Client):
    assert http.get("/version").json() == {"version": milepost.__version__}
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert "vllm:num_requests_running" in metrics.text
