"""What a cluster would be told: valid by the schemas of its API, and true of this service. No cluster is needed."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kustomization import containers, read, render
from prometheus_client import Counter, Gauge, Histogram

from service.metrics import Metrics
from service.routes import health, v2
from service.settings import PREFIX, Settings
from service.workers.supervisor import KILL_AFTER_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KSERVE = DEPLOY / "kserve"
VERSIONS = ("1.30", "1.34", kubernetes_validate.latest_version())
"""1.30 is the first in which preStop can sleep without a program in the image."""
GIB = 1 << 30
UNITS = {"Mi": 1 << 20, "Gi": GIB}
PER_WORKER = GIB
"""Memory of a worker, rounded up from docs/performance.md."""

OVERLAYS = {folder.name: render(folder) for folder in sorted((KUBERNETES / "overlays").iterdir())}
RENDERED = [
    pytest.param(document, id=f"{name}-{document['kind']}") for name, found in OVERLAYS.items() for document in found
]
RUNTIMES = [*read(KSERVE / "cluster-serving-runtime.yml"), *read(KSERVE / "serving-runtime.yml")]
INFERENCE = [*read(KSERVE / "inference-service.yml"), *read(KSERVE / "inference-service-grpc.yml")]

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
SELECTOR = {"type": "object", "properties": {"matchLabels": TEXTS}, "additionalProperties": False}
DURATION = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d|w|y))+$"}


def exactly(required, **optional):
    """A schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def described(group, spec):
    """A schema of a custom resource: what all have, and the specification of its own."""
    metadata = exactly({"name": {"type": "string"}}, namespace={"type": "string"}, labels=TEXTS, annotations=TEXTS)
    return exactly({"apiVersion": {"const": group}, "kind": {"type": "string"}, "metadata": metadata, "spec": spec})


RULE = exactly(
    {"expr": {"type": "string"}},
    record={"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
    alert={"type": "string"},
    labels=TEXTS,
    annotations=TEXTS,
    **{"for": DURATION},
)
PORTS = {
    "type": "array",
    "maxItems": 1,
    "items": exactly(
        {
            "name": {"enum": ["http1", "h2c"]},
            "containerPort": {"type": "integer"},
            "protocol": {"const": "TCP"},
        }
    ),
}
SERVING = described(
    "serving.kserve.io/v1alpha1",
    exactly(
        {
            "supportedModelFormats": {
                "type": "array",
                "items": exactly(
                    {"name": {"type": "string"}},
                    version={"type": "string"},
                    autoSelect={"type": "boolean"},
                    priority={"type": "integer", "minimum": 1},
                ),
            },
            "containers": {"type": "array", "minItems": 1},
        },
        annotations=TEXTS,
        protocolVersions={"type": "array", "items": {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}},
        volumes={"type": "array"},
    ),
)
CUSTOM = {
    "ServiceMonitor": described(
        "monitoring.coreos.com/v1",
        exactly(
            {
                "selector": SELECTOR,
                "endpoints": {
                    "type": "array",
                    "items": exactly(
                        {"port": {"type": "string"}},
                        path={"type": "string"},
                        interval=DURATION,
                        scrapeTimeout=DURATION,
                    ),
                },
            },
            jobLabel={"type": "string"},
        ),
    ),
    "PrometheusRule": described(
        "monitoring.coreos.com/v1",
        exactly(
            {
                "groups": {
                    "type": "array",
                    "items": exactly(
                        {"name": {"type": "string"}, "rules": {"type": "array", "items": RULE}}, interval=DURATION
                    ),
                }
            }
        ),
    ),
    "ServingRuntime": SERVING,
    "ClusterServingRuntime": SERVING,
    "InferenceService": described(
        "serving.kserve.io/v1beta1",
        exactly(
            {
                "predictor": exactly(
                    {
                        "model": exactly(
                            {"modelFormat": exactly({"name": {"type": "string"}}, version={"type": "string"})},
                            runtime={"type": "string"},
                            protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
                            storageUri={"type": "string", "pattern": r"^(pvc|s3|gs|https|hf)://."},
                            ports=PORTS,
                        )
                    },
                    enableServiceLinks={"type": "boolean"},
                    automountServiceAccountToken={"type": "boolean"},
                    terminationGracePeriodSeconds={"type": "integer"},
                    minReplicas={"type": "integer", "minimum": 0},
                    maxReplicas={"type": "integer", "minimum": 1},
                )
            }
        ),
    ),
}
"""Of kinds that are not Kubernetes' own: the fields that are used here, as their projects' schemas have them."""


def validate(document):
    if document["kind"] in CUSTOM:
        jsonschema.validate(document, CUSTOM[document["kind"]])
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def one(found, kind):
    (document,) = (d for d in found if d["kind"] == kind)
    return document


def pod(found):
    return one(found, "Deployment")["spec"]["template"]


def settings(found):
    return one(found, "ConfigMap")["data"]


def number(name, data):
    """A setting of a rendered configuration, or its default."""
    default = Settings.model_fields[name].default
    return float(data.get(PREFIX + name.upper(), default))


def size(text):
    return int(text[:-2]) * UNITS[text[-2:]]


def has(labels, selector):
    return selector["matchLabels"].items() <= labels.items()


def gauges():
    """Names of the service's gauges, as they are scraped."""
    return {metric._name for metric in vars(Metrics()).values() if isinstance(metric, Gauge)} | {
        family.name for family in Metrics().registry.collect() if family.type == "gauge"
    }


def kubectl(*arguments):
    if (found := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed; `Tests` of deploy/README.md says where it is to be had")
    version = subprocess.run((found, "version", "--client", "-o", "json"), capture_output=True, text=True, timeout=60)
    if not json.loads(version.stdout).get("kustomizeVersion", "").startswith("v5"):
        pytest.skip("this kubectl has no kustomize 5")
    done = subprocess.run((found, *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def in_order(found):
    """Documents and lists of named things in one order, and no hash in a name."""
    text = re.sub(r"(attention-settings)-[a-z0-9]{10}\b", r"\1", json.dumps(found))

    def sort(value):
        if isinstance(value, dict):
            return {key: sort(item) for key, item in value.items()}
        if isinstance(value, list):
            return sorted(map(sort, value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    return sort(json.loads(text))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_renders_what_is_tested_here(overlay):
    """All other tests read our own rendering, which does only what these manifests need."""
    assert in_order(kubectl("kustomize", str(KUBERNETES / "overlays" / overlay))) == in_order(OVERLAYS[overlay])


@pytest.mark.parametrize("document", RENDERED)
def test_a_cluster_would_accept_it(document):
    """Strictly: a misspelt field is dropped by a cluster, or refused, and means nothing either way."""
    validate(document)


@pytest.mark.parametrize("document", RUNTIMES + INFERENCE, ids=lambda document: document["kind"])
def test_kserve_would_accept_it(document):
    """Its containers and volumes are those of pods, so Kubernetes' own schema judges them."""
    validate(document)
    if "containers" in document["spec"]:
        spec = {key: document["spec"][key] for key in ("containers", "volumes")}
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Deployment", lambda d: d["spec"].update(replicas="2")),
        ("Deployment", lambda d: d["spec"]["template"]["spec"].update(enableServiceLink=False)),
        ("ServiceMonitor", lambda d: d["spec"].update(podTargetLabel=[])),
        ("PrometheusRule", lambda d: d["spec"]["groups"][0]["rules"][0].update({"for": "5 minutes"})),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_here(kind, change):
    """A validator that accepts everything would pass every test above."""
    document = json.loads(json.dumps(one(OVERLAYS["example"], kind)))
    change(document)

    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(document)


def test_the_example_has_all_there_is():
    """What no overlay holds, no test sees."""
    used = set()
    for file in KUBERNETES.rglob("kustomization.yml"):
        (kustomization,) = read(file)
        names = [*kustomization.get("resources", []), *kustomization.get("components", [])]
        names += [patch["path"] for patch in kustomization.get("patches", [])]
        used |= {(file.parent / name).resolve() for name in names}
    files = {f for f in KUBERNETES.rglob("*.yml") if f.name not in {"kustomization.yml", "adapter-rules.yml"}}
    components = set((KUBERNETES / "components").iterdir())

    assert files | components <= used
    names = {
        document["metadata"].get("namespace") for document in OVERLAYS["example"] if document["kind"] != "Namespace"
    }
    assert names == {one(OVERLAYS["example"], "Namespace")["metadata"]["name"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_read_by_the_service_as_they_stand(overlay, monkeypatch):
    """Unknown names, and values that cannot be, keep every pod from starting."""
    data = settings(OVERLAYS[overlay])
    for name, value in data.items():
        assert name.removeprefix(PREFIX).lower() in Settings.model_fields, name
        monkeypatch.setenv(name, value)

    made = Settings()

    assert made.device == ("cuda" if overlay == "gpu" else "cpu")
    assert made.grpc_port == 8001


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime["kind"])
def test_settings_of_kserve_are_read_by_the_service_as_they_stand(runtime, monkeypatch):
    """As above."""
    (container,) = runtime["spec"]["containers"]
    for setting in container["env"]:
        assert setting["name"].removeprefix(PREFIX).lower() in Settings.model_fields
        monkeypatch.setenv(setting["name"], setting["value"])

    assert str(Settings().model_repository) == "/mnt/models"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_read_the_settings_and_keys_that_there_are(overlay):
    """The keys are in a Secret that is not here; without it no pod starts."""
    (container,) = pod(OVERLAYS[overlay])["spec"]["containers"]
    config, secret = container["envFrom"]

    assert config == {"configMapRef": {"name": one(OVERLAYS[overlay], "ConfigMap")["metadata"]["name"]}}
    assert secret == {"secretRef": {"name": "attention-keys"}}
    assert "attention-keys" in (DEPLOY / "README.md").read_text()
    assert not {name for name in settings(OVERLAYS[overlay]) if name.endswith(("_KEYS", "_KEY"))}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_links_to_services_do_not_become_settings(overlay):
    """A Service called attention would set ATTENTION_PORT to tcp://…; it is our prefix."""
    assert one(OVERLAYS[overlay], "Service")["metadata"]["name"] == "attention"
    assert pod(OVERLAYS[overlay])["spec"]["enableServiceLinks"] is False


def test_links_to_kserves_services_do_not_either():
    """KServe makes Services whose names begin with that of the InferenceService."""
    for document in INFERENCE:
        assert not document["metadata"]["name"].startswith("attention")
        assert document["spec"]["predictor"]["enableServiceLinks"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_is_given_the_time_to_drain(overlay):
    """After the grace period, which begins with preStop, it is killed with requests in flight."""
    spec, data = pod(OVERLAYS[overlay])["spec"], settings(OVERLAYS[overlay])
    before = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = before + number("drain_grace_s", data) + number("shutdown_timeout_s", data) + KILL_AFTER_S + 1

    assert before >= 5
    assert spec["terminationGracePeriodSeconds"] >= needed + 5


def test_a_pod_of_kserve_is_given_the_time_to_drain():
    """As above, without preStop."""
    needed = number("drain_grace_s", {}) + number("shutdown_timeout_s", {}) + KILL_AFTER_S + 1
    for document in INFERENCE:
        assert document["spec"]["predictor"]["terminationGracePeriodSeconds"] >= needed + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_paths_and_ports_that_there_are(overlay):
    """A probe of a path that is not there restarts a healthy pod for ever."""
    (container,) = pod(OVERLAYS[overlay])["spec"]["containers"]
    paths = {route.path for route in health.router(None).routes}
    ports = {port["name"] for port in container["ports"]}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}

    assert {probe["path"] for probe in asked.values()} <= paths
    assert {probe["port"] for probe in asked.values()} == {"http"} <= ports
    assert asked["readiness"]["path"] == "/healthz/ready"
    # A service that is not ready is not helped by a restart.
    assert asked["liveness"]["path"] == asked["startup"]["path"] == "/healthz/live"


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime["kind"])
def test_probes_of_kserve_ask_paths_and_ports_that_there_are(runtime):
    """As above, in the protocol's own words."""
    (container,) = runtime["spec"]["containers"]
    paths = {route.path for route in v2.router(None).routes}
    port = int(container["args"][container["args"].index("--port") + 1])

    for name in ("readiness", "liveness"):
        assert container[f"{name}Probe"]["httpGet"]["path"] in paths
        assert container[f"{name}Probe"]["httpGet"]["port"] == port
    assert runtime["spec"]["annotations"] == {
        "prometheus.kserve.io/port": str(port),
        "prometheus.kserve.io/path": "/metrics",
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_are_those_that_the_image_listens_on(overlay):
    """From the image's command through the pod to the Service, by name."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    command = json.loads(re.search(r'^CMD (\["serve".*\])$', dockerfile, re.MULTILINE)[1])
    ports = {port["name"]: port["containerPort"] for port in pod(OVERLAYS[overlay])["spec"]["containers"][0]["ports"]}

    assert ports["http"] == int(command[command.index("--port") + 1]) == Settings.model_fields["port"].default
    assert ports["grpc"] == number("grpc_port", settings(OVERLAYS[overlay]))
    assert set(map(int, re.findall(r"^EXPOSE (800\d)$", dockerfile, re.MULTILINE))) == set(ports.values())
    for port in one(OVERLAYS[overlay], "Service")["spec"]["ports"]:
        assert port["name"] == port["targetPort"] in ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_select_the_pods(overlay):
    """One that selects nothing is accepted by every cluster."""
    found = OVERLAYS[overlay]
    labels = pod(found)["metadata"]["labels"]
    service = one(found, "Service")

    assert has(labels, one(found, "Deployment")["spec"]["selector"])
    assert has(labels, {"matchLabels": service["spec"]["selector"]})
    assert has(labels, one(found, "PodDisruptionBudget")["spec"]["selector"])
    assert has(labels, one(found, "NetworkPolicy")["spec"]["podSelector"])
    for constraint in pod(found)["spec"]["topologySpreadConstraints"]:
        assert has(labels, constraint["labelSelector"])


def test_prometheus_finds_the_service_under_the_name_that_the_rules_ask_for():
    """The rules say job="attention"; NotReady would fire for ever under another name."""
    found = OVERLAYS["example"]
    monitor, service = one(found, "ServiceMonitor")["spec"], one(found, "Service")
    (endpoint,) = monitor["endpoints"]

    assert has(service["metadata"]["labels"], monitor["selector"])
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "attention"
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in health.router(None).routes}


def test_the_operators_rules_are_prometheus_rules():
    """There is one set of rules, and it is tested where it is."""
    (rules,) = read(DEPLOY / "prometheus/rules.yml")

    assert one(OVERLAYS["example"], "PrometheusRule")["spec"] == rules


def test_replicas_follow_gauges_that_the_service_has_and_the_adapter_makes():
    """An autoscaler without its metric does nothing, and says so only to those who ask."""
    autoscaler = one(OVERLAYS["example"], "HorizontalPodAutoscaler")["spec"]
    (adapter,) = read(KUBERNETES / "components/autoscaling/adapter-rules.yml")
    made = {}
    for rule in adapter["rules"]["custom"]:
        name, matchers = re.fullmatch(r"(\w+)\{(.*)\}", rule["seriesQuery"]).groups()
        assert matchers == 'namespace!="",pod!=""'
        assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}
        assert rule["name"]["matches"] == "^(.*)$"
        made[rule["name"]["as"].replace("${1}", name)] = name

    assert set(made.values()) <= gauges()
    assert {metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"]} == made.keys()
    assert autoscaler["scaleTargetRef"]["name"] == one(OVERLAYS["example"], "Deployment")["metadata"]["name"]
    assert "replicas" not in one(OVERLAYS["example"], "Deployment")["spec"]


def test_gauges_are_found_and_nothing_else_passes_for_one():
    """The test above compares names; this one makes sure that there are some."""
    assert {"attention_queue_requests", "attention_requests_in_progress"} <= gauges()
    assert not {m._name for m in vars(Metrics()).values() if isinstance(m, Counter | Histogram)} & gauges()


def test_what_adapters_compute_is_promql(tmp_path):
    """With the adapter's own placeholders filled in."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; it comes with Prometheus (on Debian: apt-get install prometheus)")
    (adapter,) = read(KUBERNETES / "components/autoscaling/adapter-rules.yml")
    rules = []
    for i, rule in enumerate(adapter["rules"]["custom"]):
        expr = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        expr = expr.replace("<<.LabelMatchers>>", 'namespace="n",pod=~"p"').replace("<<.GroupBy>>", "pod")
        rules.append({"record": f"x:{i}", "expr": expr})
    file = tmp_path / "adapter.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}))

    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=60)

    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_callers_and_prometheus_come_in_and_nothing_but_questions_to_a_resolver_goes_out(overlay):
    """A policy that forgets Prometheus leaves nothing to alert on."""
    policy = one(OVERLAYS[overlay], "NetworkPolicy")["spec"]
    ports = {port["name"] for port in pod(OVERLAYS[overlay])["spec"]["containers"][0]["ports"]}
    callers, prometheus = policy["ingress"]
    (dns,) = policy["egress"]

    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert {port["port"] for port in callers["ports"]} == ports
    # Probes and scrapes are on one port, and it is open to those who scrape.
    assert {port["port"] for port in prometheus["ports"]} == {"http"}
    assert all(peer["namespaceSelector"]["matchLabels"] for rule in policy["ingress"] for peer in rule["from"])
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_may_do_nothing_but_compute(overlay):
    """What the standard `restricted` of Kubernetes asks, a root that cannot be written to, and the image's own user."""
    spec = pod(OVERLAYS[overlay])["spec"]
    (container,) = spec["containers"]
    user, group = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).groups()

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == int(user)
    assert spec["securityContext"]["runAsGroup"] == spec["securityContext"]["fsGroup"] == int(group)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime["kind"])
def test_a_container_of_kserve_may_not_either(runtime):
    """As above; the pod around it is KServe's."""
    (container,) = runtime["spec"]["containers"]
    context = container["securityContext"]

    assert context["readOnlyRootFilesystem"] is context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is context["privileged"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert f"USER {context['runAsUser']}:" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_must_be_written_to_can_be(overlay):
    """The root cannot; and what is mounted is there."""
    spec = pod(OVERLAYS[overlay])["spec"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    data = settings(OVERLAYS[overlay])

    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
    if (folder := data.get("ATTENTION_ARTIFACTS")) is not None:
        assert "emptyDir" in volumes[mounts[folder]["name"]]
    if (folder := data.get("ATTENTION_MODEL_REPOSITORY")) is not None:
        assert mounts[folder]["readOnly"] is True
        claim = volumes[mounts[folder]["name"]]["persistentVolumeClaim"]["claimName"]
        assert claim == one(OVERLAYS[overlay], "PersistentVolumeClaim")["metadata"]["name"]
    # Where graphs are in the image, no volume may hide them.
    assert "/opt/attention/artifacts" not in mounts


@pytest.mark.parametrize("overlay", ["cpu", "example"])
def test_there_is_memory_for_the_workers_and_for_what_is_in_flight(overlay):
    """Else the kernel ends workers under load, where the limits should have refused requests."""
    limits = pod(OVERLAYS[overlay])["spec"]["containers"][0]["resources"]["limits"]
    inflight = number("max_inflight_mib", settings(OVERLAYS[overlay])) * (1 << 20)

    # The default is a worker per core, 8 at most, and cores are counted by the container's limit.
    assert size(limits["memory"]) >= min(int(limits["cpu"]), 8) * PER_WORKER + inflight
    assert size(limits["memory"]) < 64 * GIB


def test_a_gpu_is_asked_for_and_insisted_on():
    """With `auto` a pod would quietly serve from the CPU."""
    spec = pod(OVERLAYS["gpu"])["spec"]
    (container,) = spec["containers"]

    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "self-attention-service:cuda"
    assert settings(OVERLAYS["gpu"])["ATTENTION_DEVICE"] == "cuda"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    memory = size(container["resources"]["limits"]["memory"])
    assert memory >= PER_WORKER + number("max_inflight_mib", settings(OVERLAYS["gpu"])) * (1 << 20)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_update_takes_nothing_away_before_it_has_brought_something(overlay):
    """And the images are named with a version."""
    strategy = one(OVERLAYS[overlay], "Deployment")["spec"]["strategy"]["rollingUpdate"]

    assert strategy == {"maxUnavailable": 0, "maxSurge": 1}
    for document in OVERLAYS[overlay]:
        for container in containers(document):
            assert re.fullmatch(r"[a-z0-9./-]+:(?!latest)\w[\w.-]*", container["image"])


def test_the_two_runtimes_of_kserve_are_one():
    """They differ in how far they reach."""
    cluster, namespace = RUNTIMES

    assert (cluster["kind"], namespace["kind"]) == ("ClusterServingRuntime", "ServingRuntime")
    assert cluster["spec"] == namespace["spec"]


@pytest.mark.parametrize("service", INFERENCE, ids=lambda service: service["metadata"]["name"])
def test_an_inference_service_fits_its_runtime(service):
    """By name, format and protocol, and the port is one that the container listens on."""
    (runtime,) = {r["metadata"]["name"] for r in RUNTIMES}
    spec, model = RUNTIMES[0]["spec"], service["spec"]["predictor"]["model"]
    (container,) = spec["containers"]
    environment = {setting["name"]: setting["value"] for setting in container["env"]}
    listens = {
        "http1": int(container["args"][container["args"].index("--port") + 1]),
        "h2c": int(environment["ATTENTION_GRPC_PORT"]),
    }
    (port,) = model["ports"]

    assert container["name"] == "kserve-container"
    assert model["runtime"] == runtime
    assert model["modelFormat"]["name"] == spec["supportedModelFormats"][0]["name"]
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert port["name"] == {"v2": "http1", "grpc-v2": "h2c"}[model["protocolVersion"]]
    assert port["containerPort"] == listens[port["name"]]
