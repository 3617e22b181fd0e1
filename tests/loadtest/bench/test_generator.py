import pytest

from loadtest.bench.formats import Message
from loadtest.bench.generator import Result, drive
from loadtest.bench.http import Failed, Request, ask, read_head, wire
from tests.loadtest.bench.answering import answering

BODY = b"x" * 1000
REQUEST = Request(wire("127.0.0.1", Message("/", {}, b"hello")), length=len(BODY))


def test_every_answer_is_counted_once():
    """Throughput is a count: what the server has answered is what the generator has seen."""
    seen = []

    with answering(lambda i, sent: (200, seen.append(i) or BODY, 0.0)) as port:
        result = drive(port, [REQUEST], connections=4, seconds=0.2)

    assert result.errors == []
    assert len(result.latencies) == len(seen) > 4
    assert 0 < result.in_time <= len(seen)
    assert result.rate == pytest.approx(result.in_time / 0.2)


def test_requests_are_sent_in_turn():
    """A case of mixed lengths is mixed."""
    requests = [Request(wire("127.0.0.1", Message("/", {}, body))) for body in (b"a", b"bb", b"ccc")]
    seen = []

    with answering(lambda i, sent: (200, seen.append(sent) or BODY, 0.0)) as port:
        drive(port, requests, connections=1, seconds=0.1, rate=60)

    assert seen == [b"a", b"bb", b"ccc"] * 2


def test_a_status_and_a_length_that_are_wrong_are_errors():
    """A server that fails fast must not look fast."""
    answers = [(500, BODY, 0.0), (200, BODY[:900], 0.0), (200, BODY[:990], 0.0), (200, BODY, 0.0)]

    with answering(lambda i, sent: answers[min(i, 3)]) as port:
        result = drive(port, [REQUEST], connections=1, seconds=0.1)

    assert result.errors == ["status 500", "900 bytes, expected about 1000"]
    assert result.in_time <= len(result.latencies) - 2


def test_numbers_of_some_answers_are_checked():
    """Wrong quickly is still wrong."""

    def wrong(answer: Message) -> None:
        assert answer.body == BODY
        raise ValueError("off by one")

    with answering(lambda i, sent: (200, BODY, 0.0)) as port:
        result = drive(port, [Request(REQUEST.wire, wrong)], connections=2, seconds=0.2)

    assert 1 <= len(result.errors) <= 7
    assert set(result.errors) == {"ValueError: off by one"}


def test_an_open_loop_sees_a_stall_that_a_closed_one_does_not():
    """Half of the requests are due while the server stalls: each waits as long as it is late, sent or not."""

    def stalls(i: int, sent: bytes) -> tuple[int, bytes, float]:
        return 200, BODY, 0.4 if i == 20 else 0.0

    with answering(stalls) as port:
        closed = drive(port, [REQUEST], connections=1, seconds=0.8)
    with answering(stalls) as port:
        opened = drive(port, [REQUEST], connections=1, seconds=0.8, rate=200)

    assert len(opened.latencies) == 160
    assert opened.errors == []
    late = sum(latency > 0.1 for latency in opened.latencies)
    assert late >= 50, "of about 80 requests that were due in 0.4 s, those due in the first 0.3 s were 0.1 s late"
    assert sum(latency > 0.1 for latency in closed.latencies) < late / 5, "one, and what else the machine delayed"


def test_an_open_loop_sends_as_many_as_were_due():
    """The rate asked for, not the rate that the server can."""
    with answering(lambda i, sent: (200, BODY, 0.0)) as port:
        result = drive(port, [REQUEST], connections=8, seconds=0.25, rate=100)

    assert len(result.latencies) == 25


def test_heads_are_kept_if_asked_for():
    """`Server-Timing` is in them."""
    with answering(lambda i, sent: (200, BODY, 0.0)) as port:
        result = drive(port, [REQUEST], connections=1, seconds=0.05, keep_heads=True)

    assert len(result.heads) == len(result.latencies)
    assert read_head(result.heads[0])[1]["x-seen"] == "1"


def test_a_large_body_is_sent_and_received_in_pieces():
    """More than a socket takes at a time."""
    large = Request(wire("127.0.0.1", Message("/", {}, b"y" * 8_000_000)), lambda answer: None, 6_000_000)

    with answering(lambda i, sent: (200, b"x" * 6_000_000, 0.0)) as port:
        assert len(ask(port, large).body) == 6_000_000
        result = drive(port, [large], connections=2, seconds=0.1)

    assert result.errors == []
    assert result.rate > 0


def test_asking_says_what_came_instead_of_an_answer():
    """The server's own words are the best explanation."""
    with (
        answering(lambda i, sent: (503, b"still loading", 0.0)) as port,
        pytest.raises(Failed, match="503: still loading"),
    ):
        ask(port, REQUEST)


def test_a_connection_that_rests_may_be_closed_by_the_server():
    """Servers close what has been idle; that is no failure, and a later request may open another."""
    with answering(lambda i, sent: (200, BODY, 0.0), rest_s=0.02) as port:
        result = drive(port, [REQUEST], connections=3, seconds=1.0, rate=4)  # the server needs time to close

    assert len(result.latencies) == 4
    assert result.errors == []


def test_percentiles_are_of_all_latencies():
    """In milliseconds."""
    result = Result(1.0, 100, [i / 1000 for i in range(1, 101)])

    assert result.latency_ms(50) == pytest.approx(50.5)
    assert result.latency_ms(99) == pytest.approx(99.01)


def test_what_is_not_http_is_refused():
    """The port of something else."""
    with pytest.raises(Failed, match="not an HTTP answer"):
        read_head(b"SSH-2.0-OpenSSH_9.6")


def test_the_head_of_an_answer_is_taken_apart():
    """Header names have no case."""
    status, headers = read_head(b"HTTP/1.1 200 OK\r\nServer-Timing: a;dur=1\r\ncontent-length: 2")

    assert status == 200
    assert headers == {"server-timing": "a;dur=1", "content-length": "2"}
