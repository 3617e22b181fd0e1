"""A run that was not made: measurements of two services, from samples drawn here."""

import numpy as np

from loadtest.report import results, words
from loadtest.report.counters import Counters
from loadtest.report.plan import Plan, Slo, Subject
from loadtest.report.run import Run, Step
from loadtest.samples import STAGES, Samples

BEFORE = """attention_requests_received_total 0.0
attention_build_info{version="0.1.0",torch="2.13.0"} 1.0
attention_backend_info{backend="onnx",device="cpu",dtype="float32",provider="CPUExecutionProvider"} 1.0
attention_workers 2.0
"""


def samples(latency_ms, *, gap_ms=10.0, errors=(), names=("binary lesson",), cpu=0.2, staged=True) -> Samples:
    """One request each `gap_ms`, with these latencies; the first ones fail with these texts."""
    latency = np.asarray(latency_ms, np.float64) / 1e3
    due = np.arange(len(latency)) * gap_ms / 1e3
    texts = sorted(set(errors))
    error = np.full(len(latency), -1)
    error[: len(errors)] = [texts.index(text) for text in errors]
    columns = {
        "due_s": due,
        "sent_s": due + 1e-4,
        "done_s": due + latency,
        "name": np.arange(len(latency)) % len(names),
        "ok": error < 0,
        "status": np.where(error < 0, 200, 503),
        "bytes_in": np.full(len(latency), 1000),
        "bytes_out": np.full(len(latency), 500),
        "error": error,
    } | {stage: latency * 1e3 * 0.2 if staged else np.full(len(latency), np.nan) for stage in STAGES}
    elapsed = len(latency) * gap_ms / 1e3
    return Samples.of(
        columns, names=names, errors=texts, client_cpu_s=cpu * elapsed, elapsed_s=elapsed, started_at=1.8e9
    )


def counters(requests: int, batches=(60, 30, 10)) -> Counters:
    """What the service's counters say of so many requests."""
    page = f"attention_requests_received_total {requests + 2}\n"
    page += f'attention_requests_total{{route="/v1/attention",method="POST",status="200",outcome="ok"}} {requests}\n'
    page += 'attention_requests_total{route="/metrics",method="GET",status="200",outcome="ok"} 2\n'
    for stage in ("decode", "queue", "compute", "encode"):
        page += f'attention_stage_duration_seconds_sum{{stage="{stage}"}} {requests * 0.0021}\n'
        page += f'attention_stage_duration_seconds_count{{stage="{stage}"}} {requests}\n'
    below = 0
    for edge, count in zip(("1.0", "2.0", "4.0"), batches, strict=True):
        below += count
        page += f'attention_batch_sequences_bucket{{backend="onnx",le="{edge}"}} {below}\n'
    page += f'attention_batch_sequences_bucket{{backend="onnx",le="+Inf"}} {below}\n'
    page += f'attention_batch_sequences_count{{backend="onnx"}} {below}\n'
    page += f'attention_batch_sequences_sum{{backend="onnx"}} {sum(batches) * 1.6}\n'
    return Counters.of(page)


def plan(**changed) -> Plan:
    """Two services, two rounds."""
    asked = {
        "subjects": (Subject("eager", "eager", "cpu"), Subject("onnx", "onnx", "cpu")),
        "users": "binary",
        "models": "",
        "tokens": "mixed",
        "arrivals": "constant",
        "slo": Slo(99, 50),
        "ladder": (1, 4, 16),
        "seconds": 5,
        "rounds": 2,
        "precision": 0.05,
        "seed": 7,
        "pin": True,
    }
    return Plan(**asked | changed)


def recorded(asked: Plan | None = None, *, factor=1.0, counted=0) -> Run:
    """A run with measurements of every phase; onnx is 1.8 times as fast, and `counted` requests are not counted."""
    asked = asked or plan()
    run = Run(asked, None, {subject.name: "http://127.0.0.1:1" for subject in asked.subjects}, lambda step: None)
    random = np.random.default_rng(0)
    for name, speed in (("eager", 1.0), ("onnx", 1.8 * factor)):
        if name not in run.urls:
            continue
        run.about[name] = Counters.of(BEFORE).about()

        def add(phase, round_, connections, ms, gap_ms, rate=None, holds=None, errors=(), name=name):
            drawn = ms * random.lognormal(0, 0.35, 1500)
            made = samples(drawn, gap_ms=gap_ms, errors=errors, names=("binary lesson", "binary single-head-64"))
            grown = counters(len(made) - counted)
            run.steps.append(Step(name, phase, round_, connections, rate, holds, run._figures(made, rate), made, grown))

        add("warm-up", 0, 8, 9 / speed, 2)
        for round_ in (1, 2):
            for connections in asked.ladder:
                add("closed", round_, connections, connections * 2 / speed, 5 / speed / min(connections, 4))
        for round_ in (1, 2):
            knee = 229 * speed * (1 + round_ / 100)
            add("search", round_, 64, 90, 3 / speed, knee * 1.05, False, ["503 queue full, retry after 1 s"] * 3)
            add("confirm", round_, 64, 18, 4 / speed, knee, True)
            run.knees[name].append(knee)
        for round_ in (1, 2):
            add("open", round_, 64, 8 / speed, 6 / speed, run.rate(name) * 0.7, True)
    return run


def document(run: Run | None = None, thresholds=None, **facts):
    """The document of such a run, with what is said about it."""
    run = run or recorded()
    machine = {"cores": "2 of 2", "load average before": "0.3", "processor": "of this test"} | facts
    found = results.document(
        run, command="attention loadtest --seed 7", started_at="2026-11-30T05:00:00+00:00", machine=machine,
        cores="services on core 0, generator on core 1",
    )  # fmt: skip
    found |= {"took_s": 90.0, "thresholds": thresholds, "headline": words.headline(found)}
    return found | {"warnings": words.warnings(found)}
