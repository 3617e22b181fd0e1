"""A real Prometheus, with the files of deploy/, stores what a client of the service has counted."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_prometheus import INFER, Client, Prometheus, settings, watching
from test_monitoring import ALERTS, RECORDS, dashboard_expressions
from wire import until

from service.metrics import STAGES
from tests.serving import start_server

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no prometheus; on Debian: apt-get install prometheus"
    ),
]

OURS = 'job="attention", route!~"/metrics|/healthz/.*"'
NOTHING = {
    "attention_batch_failures_total": "no backend raises",
    "attention_gpu_memory_used_bytes": "the service is told to use the CPU",
    "attention_gpu_utilisation_ratio": "the same",
}
"""Metrics that have no series here, and why."""


@dataclass
class Watched:
    """A service that was used, what its client knows, and the Prometheus that looked on.

    Attributes:
        calm: sums of what batches held, when only such requests had been sent as are answered.
        expected: what they should be.
        at: when the last request had ended and been scraped, by the clock of the wall, s.
    """

    prometheus: Prometheus
    client: Client
    calm: dict[str, float]
    expected: dict[str, float]
    at: float


@pytest.fixture(scope="module")
def watched(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    server = start_server(artifacts, **settings())
    try:
        with watching(server, tmp_path_factory.mktemp("prometheus")) as prometheus:
            client = Client(server)
            # A series that begins with an event hides it from rate(): everything happens on both sides of a scrape.
            client.burst()
            prometheus.scraped()
            client.burst()
            prometheus.scraped()
            held = {unit: f"sum(attention_batch_{unit}_sum)" for unit in ("sequences", "tokens")}
            calm = {unit: sum(value for _, value in prometheus.ask(expr)) for unit, expr in held.items()}
            expected = {"sequences": float(client.sequences), "tokens": float(client.tokens)}
            for _ in range(2):
                client.crowd()
                prometheus.scraped()
            until(lambda: not prometheus.counts('sum by (job) (attention_requests_in_progress{job="attention"}) - 1'))
            prometheus.scraped()
            yield Watched(prometheus, client, calm, expected, time.time())
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


def test_the_service_is_found_by_the_configuration_of_deploy(watched: Watched):
    """The relabelling tells a service on a GPU from the other one."""
    targets = {target["labels"]["job"]: target for target in watched.prometheus.api("targets")["activeTargets"]}

    assert targets.keys() == {"attention", "prometheus"}
    assert {target["health"] for target in targets.values()} == {"up"}
    assert targets["attention"]["labels"]["service"] == "attention"


def test_every_request_is_stored_once_under_what_became_of_it(watched: Watched):
    """Route, method, status and outcome, of all workers together."""
    stored = watched.prometheus.counts(f"sum by (route, method, status, outcome) (attention_requests_total{{{OURS}}})")

    assert stored == watched.client.ended
    assert {outcome for *_, outcome in stored} == {"ok", "invalid", "rejected", "expired", "cancelled"}
    assert (INFER, "GRPC", "OK", "ok") in stored


def test_every_request_is_timed_once(watched: Watched):
    """By its route; the last bucket holds all, and none took no time."""
    by_route = Counter[tuple[str, ...]]()
    for (route, *_), number in watched.client.ended.items():
        by_route[(route,)] += number

    name = "attention_request_duration_seconds"
    counted = watched.prometheus.counts(f"sum by (route) ({name}_count{{{OURS}}})")
    within = watched.prometheus.counts(f'sum by (route) ({name}_bucket{{{OURS}, le="+Inf"}})')
    seconds = watched.prometheus.counts(f"sum by (route) ({name}_sum{{{OURS}}})")

    assert counted == within == by_route
    assert seconds.keys() == by_route.keys()


def test_every_stage_of_every_answered_inference_is_timed(watched: Watched):
    """Of those that are refused or leave there is none."""
    stored = watched.prometheus.counts("sum by (stage) (attention_stage_duration_seconds_count)")

    assert stored == {(stage,): watched.client.inferences for stage in STAGES}


def test_batches_held_what_was_sent(watched: Watched):
    """Sequences and tokens, whichever way they came, and however they were put together."""
    assert watched.calm == watched.expected


def test_refused_expired_and_left_are_counted_by_reason(watched: Watched):
    """Beside the outcome, which lumps the reasons together."""
    ended = Counter[str]()
    for (_, _, status, _), number in watched.client.ended.items():
        ended[status] += number

    assert watched.prometheus.counts("sum by (reason) (attention_rejected_total)") == {
        ("requests",): ended["503"], ("body",): ended["413"],
    }  # fmt: skip
    assert watched.prometheus.counts("sum(attention_expired_total)") == {(): ended["504"]}
    assert watched.prometheus.counts("sum(attention_cancelled_total)") == {(): ended["499"]}


def test_every_rule_is_evaluated_without_an_error(watched: Watched):
    """promtool checks what a rule says; only data shows that both sides of an operator match."""
    rules = [rule for group in watched.prometheus.api("rules")["groups"] for rule in group["rules"]]

    assert {rule["name"] for rule in rules} == RECORDS.keys() | ALERTS.keys()
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}


@pytest.mark.parametrize("record", RECORDS)
def test_every_recording_rule_gives_a_number(watched: Watched, record: str):
    """One without would leave an alert, or a panel, empty for ever."""
    assert watched.prometheus.ask(record, time=watched.at)


def test_the_recorded_shares_are_what_the_client_lost(watched: Watched):
    """About: rates are extrapolated, and begin with the second event of a kind."""
    ((_, share),) = watched.prometheus.ask("job:attention_requests_lost:ratio_rate5m", time=watched.at)
    ((_, rate),) = watched.prometheus.ask('outcome:attention_requests:rate5m{outcome="ok"}', time=watched.at)

    assert 0.01 < share < 0.7
    assert rate > 0


def test_the_alert_for_a_burning_budget_fires_and_no_other_page_does(watched: Watched):
    """One request in a few was refused here: that is more than one in a thousand."""
    alerts = {alert["labels"]["alertname"]: alert for alert in watched.prometheus.api("alerts")["alerts"]}
    firing = {name for name, alert in alerts.items() if alert["state"] == "firing"}

    assert {"AvailabilityBurnsFast", "AvailabilityBurnsSlowly"} <= firing
    assert not firing & {"NotReady", "ReadinessFlaps", "EngineEnds", "WorkersEnd", "ParityDrift", "BackendsDrift"}


@pytest.mark.parametrize("expr", dict.fromkeys(dashboard_expressions()))
def test_every_query_of_the_dashboard_returns_data(watched: Watched, expr: str):
    """An empty panel looks like a quiet service."""
    found = watched.prometheus.ask(expr, time=watched.at)

    empty = [metric for metric in NOTHING if metric in expr]
    assert bool(found) is not bool(empty), empty
