import http.server
import threading

import pytest
from recorded import BEFORE, counters

from loadtest.bench.http import Failed
from loadtest.report.counters import Counters, grown, read


def test_only_what_grew_counts():
    """And what first came in between."""
    found = counters(150, (90, 30, 10)).since(counters(100))

    assert found.requests() == 50
    assert found.batches() == {"1": 30}
    assert Counters.of(BEFORE).requests() == 0
    assert counters(7).since(Counters.of(BEFORE)).requests() == 7


def test_who_watches_is_no_load():
    """`/metrics` counts itself."""
    assert counters(3).total("attention_requests_total") == 5
    assert counters(3).requests() == 3
    line = 'attention_requests_total{route="/v1/attention",method="POST",status="499",outcome="cancelled"} 4\n'
    assert Counters.of(f"attention_requests_received_total 4\n{line}").requests() == 0


def test_batches_are_named_by_their_sizes():
    """Up to the largest that there was."""
    assert counters(1, (60, 30, 10)).batches() == {"1": 60, "2": 30, "3-4": 10}
    assert counters(1, (60, 0, 0)).batches() == {"1": 60}
    assert counters(1, (0, 0, 0)).batches() == {}
    assert counters(1).mean_batch() == pytest.approx(1.6)


def test_stages_are_means_in_ms():
    """Sum over count."""
    found = counters(10).stage_means_ms()

    assert found == {f"{stage}_ms": pytest.approx(2.1) for stage in ("decode", "queue", "compute", "encode")}
    assert counters(10).since(counters(10)).stage_means_ms() == {}


def test_a_service_says_what_it_is():
    """For the report of a service that somebody else started."""
    found = Counters.of(BEFORE).about()

    assert found["version"] == "0.1.0"
    assert found["backend onnx"] == "cpu, float32, CPUExecutionProvider"
    assert found["workers"] == "2"


@pytest.mark.parametrize(
    ("page", "said"), [("<html>", "not in Prometheus' format|not of this"), ("up 1\n", "not of this")]
)
def test_other_pages_are_refused(page, said):
    """A proxy's, or another program's."""
    with pytest.raises(Failed, match=said):
        Counters.of(page)


def test_counters_may_lag_behind_a_little():
    """The last answer is sent before it is counted."""
    pages = iter(["attention_requests_received_total 2\n", *[_page(n) for n in (7, 9, 10)]])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = next(pages).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert grown(url, read(url), 10).requests() == 10
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(Failed, match="cannot be read"):
        read(url)


def _page(count):
    line = f'attention_requests_total{{route="/v1/attention",method="POST",status="200",outcome="ok"}} {count}\n'
    return f"attention_requests_received_total {count}\n{line}"
