"""The runbook is about the alerts that there are, and asks for what the service measures, logs and answers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from service.metrics import Metrics
from service.routes import health, models

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/operations.md").read_text()
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule["alert"] for rule in RULES if "alert" in rule]
CHAPTERS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SECTIONS = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", CHAPTERS["Alerts"], re.MULTILINE | re.DOTALL))
QUERIES = [line for block in re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SOURCES = "\n".join(file.read_text() for folder in ("service", "models") for file in (ROOT / folder).rglob("*.py"))


def test_each_alert_has_its_section_and_each_section_its_alert():
    """An alert at night without a page is a riddle; a page without its alert, a memory."""
    assert sorted(SECTIONS) == sorted(ALERTS)


@pytest.mark.parametrize("alert", SECTIONS)
def test_a_section_says_what_it_means_where_to_look_and_what_to_do(alert):
    """In this order, and with something to ask Prometheus."""
    places = [SECTIONS[alert].find(f"**{word}**:") for word in ("Means", "Look", "Do")]

    assert -1 not in places
    assert places == sorted(places)
    assert "```promql" in SECTIONS[alert]


def test_what_else_an_operator_does_has_its_chapter():
    """deploy/README.md and the alerts lead here."""
    assert CHAPTERS.keys() == {
        "First look", "Alerts", "Capacity", "Upgrade and rollback", "Draining", "Keys",
    }  # fmt: skip


def test_every_metric_named_is_one_that_there_is():
    """A renamed one would answer nothing, at the worst moment."""
    known = {rule["record"] for rule in RULES if "record" in rule}
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        known |= {family.name + suffix for suffix in suffixes}
    adapter = yaml.safe_load((ROOT / "deploy/kubernetes/components/autoscaling/adapter-rules.yml").read_text())
    known |= {rule["seriesQuery"].partition("{")[0] + "_1m" for rule in adapter["rules"]["custom"]}
    named = set(re.findall(r"(?<![\w:])(?:(?:\w+:)+)?(?:attention|process)_\w+(?::\w+)?", PAGE))

    assert len(named) > 15
    assert named <= known, named - known


def test_every_query_is_one_that_prometheus_reads(tmp_path):
    """They are pasted in a hurry."""
    assert len(QUERIES) > 15
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; it comes with Prometheus (on Debian: apt-get install prometheus)")
    rules = [{"record": f"page:{i}", "expr": query} for i, query in enumerate(QUERIES)]
    file = tmp_path / "page.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "page", "rules": rules}]}))

    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=60)

    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stderr


def test_log_lines_and_reasons_are_those_the_service_writes():
    """Somebody searches the log for them."""
    lines = re.findall(r"\blog\s`([^`]+)`", PAGE)
    table = re.search(r"\| reason \| do \|\n(.*?)\n\n", PAGE, re.DOTALL)[1].splitlines()[1:]
    reasons = [reason for row in table for reason in re.findall(r"`([^`]+)`", row.split("|")[1])]

    assert len(lines) >= 8
    assert len(reasons) >= 7
    for text in lines + reasons:
        assert text in SOURCES, text


def test_endpoints_and_commands_are_there():
    """What is typed has to answer."""
    paths = {route.path for route in (*health.router(None).routes, *models.router(None).routes)}
    asked = set(re.findall(r"curl -s http://127\.0\.0\.1:8000(/\S+)", PAGE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert asked
    assert asked <= paths
    assert set(re.findall(r"^make ([a-z-]+)", PAGE, re.MULTILINE)) <= targets


def test_links_within_the_page_lead_somewhere():
    """The general test looks at files only."""
    headings = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", PAGE))

    assert links
    assert links <= headings
