"""The documentation says what the code does: its tables are compared with the code, its links and examples tried."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from wire import JSON, call

from service.metrics import Metrics
from service.problems import known_problems, status_of, title_of
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
DOCS = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)


def setting_rows() -> list[str]:
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        if name in ("artifacts", "model_repository"):
            shown = f"`models/{default.name}` beside the code"
        elif default in (None, "", ()):
            shown = "unset"
        else:
            shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return rows


def metric_rows() -> list[str]:
    own = [family for family in Metrics().registry.collect() if family.name.startswith("attention_")]
    rows = []
    for family in own:
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return rows


def test_every_field_of_log_lines_and_every_attribute_of_spans_is_explained():
    """Somebody searches by them."""
    page = (ROOT / "docs/observability.md").read_text()
    source = (ROOT / "service/records.py").read_text()
    attributes = set(re.findall(r'"((?:attention|error|http|rpc|url)\.[\w.]+)"', source))
    fields = set(re.findall(r'"(\w+)": |fields\["(\w+)"\]', source.partition("def _fields")[2]))
    named = set(re.findall(r"`([\w.]+)`", page))

    assert len(attributes) > 15
    assert attributes - {"url.scheme"} <= named
    assert len(fields) > 12
    assert {one or other for one, other in fields} <= named


def problem_rows() -> list[str]:
    return [f"| `/problems/{cls.code}` | {status_of(cls)} | {title_of(cls)}. |" for cls in known_problems()]


@pytest.mark.parametrize(
    ("page", "rows"),
    [("docs/settings.md", setting_rows()), ("docs/metrics.md", metric_rows()), ("docs/api.md", problem_rows())],
)
def test_each_table_holds_exactly_what_the_code_has(page: str, rows: list[str]):
    """A setting, metric or error that nobody can look up is half built."""
    text = (ROOT / page).read_text()
    first = rows[0].split("`")[1]
    prefix = first[: len("/problems/")] if first.startswith("/problems/") else first[: len("attention_")]
    documented = [line for line in text.splitlines() if line.startswith(f"| `{prefix}")]

    assert documented == rows, "the table should read:\n" + "\n".join(rows)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path):
    """A dead link wastes a reader's time."""
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]

    missing = [link for link in links if not (page.parent / link).exists()]

    assert missing == []


def test_the_readme_names_the_two_commands_that_ci_runs():
    """What CI checks is what a reader is told to run."""
    readme, ci, makefile = ((ROOT / name).read_text() for name in ("README.md", ".ci/run", "Makefile"))

    for command in ("make serve", "make test"):
        assert command in readme
    assert "make test" in ci
    assert re.search(r"^test:.*setup-dev", makefile, re.MULTILINE)


@pytest.mark.server
@pytest.mark.parametrize("page", ["README.md", "docs/api.md", "docs/text.md"])
def test_json_examples_of_the_pages_answer_200(server, page: str):
    """An example that does not run teaches mistrust."""
    text = (ROOT / page).read_text()
    examples = re.findall(r"(/v1/(?:text/)?attention[^\s']*)[^\n]* -d '(\{.*?\})'", text, re.DOTALL)

    assert len(examples) == text.count("/attention -H") + text.count("/attention?") >= 2
    for path, body in examples:
        json.loads(body)
        answer = call(server.url, "POST", path, body.encode(), {"Content-Type": JSON})
        assert answer.status == 200, answer.body


@pytest.mark.server
def test_examples_of_the_tutor_answer_200(server):
    """As they stand on its page."""
    text = (ROOT / "docs/tutor.md").read_text()
    bodies = re.findall(r"/v1/explain -H[^\n]* -d '(\{.*?\})'", text, re.DOTALL)

    assert len(bodies) == text.count("/v1/explain -H") == 3
    for body in bodies:
        answer = call(server.url, "POST", "/v1/explain", body.encode(), {"Content-Type": JSON})
        assert answer.status == 200, answer.body


@pytest.mark.server
def test_the_first_look_at_a_text_prints_a_line_per_token(server):
    """What the walk-through pipes an answer into, as it stands there."""
    text = (ROOT / "docs/text.md").read_text()
    body, program = re.search(r"-d '(\{[^']*\})' \| python3 -c '([^']*)'", text, re.DOTALL).groups()
    answer = call(server.url, "POST", "/v1/text/attention", body.encode(), {"Content-Type": JSON})

    done = subprocess.run([sys.executable, "-c", program], input=answer.body, capture_output=True, timeout=60)

    tokens = [token["token"] for token in answer.json()["tokens"]]
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert [line[0] for line in lines] == tokens
    weights = [max(row) for row in answer.json()["layers"][0]["weights"][2]]
    assert [float(line[-1]) for line in lines] == pytest.approx(weights, abs=5.1e-5)
