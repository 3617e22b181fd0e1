"""Prometheus' rules and Grafana's dashboard ask for what the service truly measures."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from service.metrics import LATENCY_BUCKETS, OUTCOMES, STAGES, Metrics
from service.parity import BETWEEN_BACKENDS, TO_REFERENCE
from service.routes.attention import AttentionRoute

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}
OF_EVERY_TARGET = {"job", "instance", "service", "le"}


def load(path):
    return yaml.safe_load(path.read_text())


RULES = [rule for group in load(PROMETHEUS / "rules.yml")["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}
DASHBOARD = json.loads((GRAFANA / "dashboards/attention.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PLAYED = sorted(PROMETHEUS.glob("*.test.yml"))
SERVICES = load(ROOT / "docker-compose.yml")["services"]


def dashboard_expressions():
    """What the dashboard asks Prometheus, with Grafana's variables filled in."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [a["expr"] for a in DASHBOARD["annotations"]["list"] if "expr" in a]
    found += [
        re.match(r"label_values\((.*), \w+\)", v["definition"])[1] for v in variables().values() if "definition" in v
    ]
    return [expr.replace("$__rate_interval", "1m").replace("$instance", ".*") for expr in found]


def variables():
    return {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


EXPRESSIONS = [rule["expr"] for rule in RULES] + dashboard_expressions()


def series():
    """Every series the service can send, and the labels it has."""
    metrics = Metrics()
    labels = {m._name: set(m._labelnames) for m in vars(metrics).values() if isinstance(m, Counter | Gauge | Histogram)}
    found = {}
    for family in metrics.registry.collect():
        own = labels.get(family.name, {name for sample in family.samples for name in sample.labels})
        found |= {family.name + suffix: own for suffix in SUFFIXES[family.type]}
    return found | {"up": set(), "ALERTS": {"alertstate", "alertname"}}


def names(expr):
    """Names of metrics in an expression."""
    bare = re.sub(r'"[^"]*"', "", expr)
    return set(re.findall(r"(?<![\w:])(?:(?:attention|process|python)_\w+|up|ALERTS)(?![\w:])", bare))


@pytest.fixture
def promtool():
    if (found := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; it comes with Prometheus (on Debian: apt-get install prometheus)")

    def run(*arguments):
        done = subprocess.run((found, *arguments), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_prometheus_accepts_its_configuration(promtool):
    """It would not start with a wrong one."""
    assert "SUCCESS" in promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_prometheus_accepts_the_rules(promtool):
    """As above; and none may have been lost on the way."""
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", str(PROMETHEUS / "rules.yml"))


@pytest.mark.parametrize("file", PLAYED, ids=lambda file: file.name)
def test_alerts_fire_when_they_should_and_only_then(promtool, file):
    """These files play each situation to the rules."""
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_prometheus_can_parse_what_the_dashboard_asks(promtool, tmp_path):
    """Grafana shows a panel with a wrong query as an empty one."""
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(dashboard_expressions())]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))

    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


def test_no_rule_is_without_a_test():
    """An alert that never fired anywhere is a hope."""
    tests = [test for file in PLAYED for test in load(file)["tests"]]
    fired = {a["alertname"] for t in tests for a in t.get("alert_rule_test", []) if a["exp_alerts"]}
    quiet = {a["alertname"] for t in tests for a in t.get("alert_rule_test", []) if not a["exp_alerts"]}
    asked = {re.sub(r"round\((.*), 1e-6\)", r"\1", p["expr"]) for t in tests for p in t.get("promql_expr_test", [])}

    assert fired == ALERTS.keys()
    assert quiet >= ALERTS.keys() - {"ParityDrift"}, "its tests name what fires of four, and so what does not"
    assert asked >= RECORDS.keys()


def test_the_alerts_are_those_an_operator_was_promised():
    """deploy/README.md lists them."""
    assert ALERTS.keys() == {
        "NotReady", "ReadinessFlaps", "QueueSaturated", "ParityDrift", "BackendsDrift", "WorkersEnd", "EngineEnds",
        "AvailabilityBurnsFast", "AvailabilityBurnsSlowly", "LatencyBurnsFast", "LatencyBurnsSlowly",
    }  # fmt: skip
    for name in ALERTS:
        assert f"`{name}`" in (DEPLOY / "README.md").read_text()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_and_what_to_do(name):
    """It is read at night."""
    assert ALERTS[name]["labels"]["severity"] in {"warning", "critical"}
    for annotation in ("summary", "description"):
        assert len(ALERTS[name]["annotations"][annotation]) > 20


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_metric_asked_for_exists_and_has_the_labels_asked_for(expr):
    """A renamed metric or label empties a panel or silences an alert without an error."""
    known = series()
    recorded = set(re.findall(r"\b\w+:\w+:\w+\b", re.sub(r'"[^"]*"', "", expr)))
    used = names(expr)
    bare = re.sub(r'"[^"]*"', "", expr)
    matched = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", bare.replace("==", "")))
    grouped = {label.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare) for label in group.split(",")}

    assert used or recorded
    assert used <= known.keys()
    assert recorded <= RECORDS.keys()
    if not recorded:
        assert matched | grouped <= OF_EVERY_TARGET.union(*(known[name] for name in used))


def test_label_values_of_the_rules_and_panels_are_those_of_the_service():
    """A value that is never sent matches nothing."""
    for expr in EXPRESSIONS:
        assert set(re.findall(r'outcome="(\w+)"', expr)) <= set(OUTCOMES)
        assert set(re.findall(r'route="([^"]+)"', expr)) <= {AttentionRoute.path}
    colours = {p["title"]: {o["matcher"]["options"] for o in p["fieldConfig"]["overrides"]} for p in PANELS}
    assert colours["Requests by outcome"] == set(OUTCOMES)
    for title in ("Where the time goes", "p50 by stage", "p95 by stage", "p99 by stage"):
        assert colours[title] == set(STAGES)


def test_the_bound_of_the_latency_objective_is_one_that_is_counted():
    """A histogram knows how many were below its own bounds only; of any other there is no series, and no alert."""
    bounds = {bound for expr in EXPRESSIONS for bound in re.findall(r'le="([^"]+)"', expr)}

    assert bounds == {"0.5"}
    assert {float(bound) for bound in bounds} < set(LATENCY_BUCKETS)


def test_an_alert_burns_the_budget_that_its_objective_leaves():
    """Each factor is compared with the same budget in a long and in a short window."""
    for name, budget in (("Availability", 0.001), ("Latency", 0.01)):
        fast, slow = (re.findall(r"rate(\w+) > ([\d.]+) \* ([\d.]+)", ALERTS[f"{name}Burns{how}"]["expr"])
                      for how in ("Fast", "Slowly"))  # fmt: skip
        assert {float(share) for _, _, share in fast + slow} == {budget}
        assert [(window, factor) for window, factor, _ in fast + slow] == [
            ("1h", "14.4"), ("5m", "14.4"), ("6h", "6"), ("30m", "6"),
            ("1d", "3"), ("2h", "3"), ("3d", "1"), ("6h", "1"),
        ]  # fmt: skip


def test_reasons_for_a_full_queue_are_those_the_service_gives():
    """The reasons are words in the code; these four are the limits of what may be in flight."""
    reasons = re.search(r'reason=~"([^"]+)"', ALERTS["QueueSaturated"]["expr"])[1].split("|")
    batcher = (ROOT / "service/batcher.py").read_text()

    assert len(reasons) == 4
    for reason in reasons:
        assert f'("{reason}", ' in batcher


def test_parity_alerts_before_readiness_fails():
    """Above the bound the service does not start, and there is nothing left to warn of."""
    between, to_reference = (float(n) for n in re.findall(r"> (\S+)", ALERTS["ParityDrift"]["expr"]))

    assert BETWEEN_BACKENDS / 2 <= between < BETWEEN_BACKENDS
    assert TO_REFERENCE / 2 <= to_reference < TO_REFERENCE


def test_production_alerts_where_no_bound_of_a_check_at_load_would_excuse_it():
    """Callers' scores may be larger than those of the check, and float32 is coarser there."""
    (bound,) = (float(n) for n in re.findall(r"> (\S+)", ALERTS["BackendsDrift"]["expr"]))

    assert bound == max(BETWEEN_BACKENDS, TO_REFERENCE)


def test_the_registry_check_sees_a_metric_that_is_not_there():
    """The checks above compare names; this one makes sure that they find names at all."""
    assert names('sum(rate(attention_no_such_total{job="attention_x"}[5m]))') == {"attention_no_such_total"}
    assert "attention_no_such_total" not in series()
    assert series()["attention_stage_duration_seconds_bucket"] == {"stage"}
    assert {"attention_rejected_total", "attention_build_info", "process_resident_memory_bytes"} <= series().keys()
    assert Info("x", "", registry=CollectorRegistry()).collect()[0].type == "info"


def test_the_dashboard_shows_what_an_operator_asks():
    """Each question of a bad night has a panel."""
    shown = set().union(*(names(t["expr"]) for p in PANELS for t in p["targets"]))

    assert shown >= {
        "attention_requests_total",
        "attention_stage_duration_seconds_bucket",
        "attention_batch_sequences_bucket",
        "attention_queue_requests",
        "attention_inflight_bytes",
        "attention_rejected_total",
        "attention_busy_slots",
        "attention_backend_info",
        "attention_parity_difference",
        "attention_shadow_difference",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "attention_gpu_memory_used_bytes",
        "attention_gpu_utilisation_ratio",
    }
    for quantile in ("0.5", "0.95", "0.99"):
        asked = [t["expr"] for p in PANELS for t in p["targets"] if f"quantile({quantile}," in t["expr"]]
        assert any("by (stage, le)" in expr for expr in asked), quantile


def test_no_metric_of_the_service_is_missing_from_the_dashboard():
    """What is not shown is not looked at."""
    shown = set().union(*(names(t["expr"]) for p in PANELS for t in p["targets"]))
    own = [m for m in Metrics().registry.collect() if m.name.startswith("attention_")]
    missing = {m.name for m in own if not shown & {m.name + suffix for suffix in SUFFIXES[m.type]}}

    # Requests received are requests ended plus those in progress, and both are shown.
    assert missing == {"attention_requests_received"}


def test_a_picture_comes_first():
    """The shape of the last half hour says more than any number."""
    first = [panel["type"] for panel in DASHBOARD["panels"] if panel["gridPos"]["y"] == 0]

    assert first == ["timeseries", "timeseries"]


def test_the_dashboard_is_for_the_grafana_that_compose_starts():
    """Grafana migrates older schemas and guesses at newer ones: 39 to 41 are those of Grafana 11."""
    assert SERVICES["grafana"]["image"].startswith("grafana/grafana:11.")
    assert 39 <= DASHBOARD["schemaVersion"] <= 41


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit_and_from_where(panel):
    """`${datasource}` lets the file be imported into any Grafana."""
    assert panel["title"]
    assert len(panel["description"]) > 10
    assert panel["fieldConfig"]["defaults"]["unit"]
    for place in (panel, *panel["targets"]):
        assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_nothing_of_the_dashboard_is_bound_to_one_data_source():
    """Variables and annotations have one too; the built-in one of Grafana is not Prometheus."""
    sources = re.findall(r'\{"type": "prometheus", "uid": "([^"]*)"\}', json.dumps(DASHBOARD))

    assert len(sources) > 2 * len(PANELS)
    assert set(sources) == {"${datasource}"}


def test_a_duration_is_shown_in_seconds_and_bytes_as_bytes():
    """The metrics are in base units; Grafana picks the prefix only if it is told the unit."""
    for panel in PANELS:
        asked = " ".join(target["expr"] for target in panel["targets"])
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert ("duration_seconds" in asked) is (unit == "s"), panel["title"]
        assert bool(re.search(r"_bytes\b", asked)) is (unit == "bytes"), panel["title"]


def test_panels_neither_overlap_nor_leave_holes():
    """Grafana moves overlapping panels about, so the file would not be what one sees."""
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells

    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert taken == {(x, y) for x in range(24) for y in range(max(y for _, y in taken) + 1)}


def test_grafana_knows_the_panels_and_tells_their_queries_apart():
    """A kind of panel that it has not is a red box, and of two queries with one name it asks one."""
    core = {"row", "timeseries", "stat", "heatmap", "table", "bargauge", "state-timeline"}  # of Grafana 11

    assert {panel["type"] for panel in DASHBOARD["panels"]} <= core
    for panel in PANELS:
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]
        assert panel["options"], panel["title"]
    for row in (panel for panel in DASHBOARD["panels"] if panel["type"] == "row"):
        assert (row["gridPos"]["w"], row["gridPos"]["h"], row["panels"]) == (24, 1, []), row["title"]


def test_the_objectives_are_drawn_with_the_lines_that_alerts_begin_at():
    """A burn rate means nothing without them."""
    for kind in ("Availability", "Latency"):
        (panel,) = (panel for panel in PANELS if panel["title"].startswith(f"{kind} budget"))
        factors = {float(factor) for how in ("Fast", "Slowly")
                   for factor in re.findall(r"> ([\d.]+) \*", ALERTS[f"{kind}Burns{how}"]["expr"])}  # fmt: skip
        lines = {step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]}
        assert lines - {None} == factors
        for target in panel["targets"]:
            budget = re.search(r"/ ([\d.]+)$", target["expr"])[1]
            assert f"* {budget}" in ALERTS[f"{kind}BurnsFast"]["expr"]


def test_every_variable_used_is_defined():
    """An undefined one is sent to Prometheus as it stands, and matches nothing."""
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"}

    assert used == variables().keys() == {"datasource", "instance"}
    assert variables()["datasource"]["type"] == "datasource"


def test_prometheus_finds_the_services_of_the_compose_file():
    """By their names and the port inside the network, not the published one."""
    config = load(PROMETHEUS / "prometheus.yml")
    (found,) = next(c for c in config["scrape_configs"] if c["job_name"] == "attention")["dns_sd_configs"]

    assert set(found["names"]) == {name for name in SERVICES if name.startswith("attention")}
    for name in found["names"]:
        assert SERVICES[name]["ports"][0].endswith(f":{found['port']}")
    assert "./deploy/prometheus:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]


def test_grafana_finds_prometheus_and_the_dashboard():
    """Provisioning that points elsewhere leaves an empty Grafana, without an error anyone sees."""
    (source,) = load(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = load(GRAFANA / "provisioning/dashboards/attention.yml")["providers"]
    grafana = SERVICES["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == variables()["datasource"]["query"], "the first of this type is what the dashboard takes"
    assert source["isDefault"]
    assert SERVICES["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    assert source["jsonData"]["timeInterval"] == load(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"] == str(home.parent)
    assert (GRAFANA / "dashboards" / home.name).is_file()
