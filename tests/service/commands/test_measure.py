import pytest
from typer.testing import CliRunner

from service.cli import app
from service.commands import measure as module


def test_it_prints_a_table_of_both_backends(monkeypatch, artifacts):
    """Each with its time, and how many times that of the first it is."""
    monkeypatch.setenv("ATTENTION_ARTIFACTS", str(artifacts))
    monkeypatch.setattr(module, "CASES", module.CASES[:1])

    done = CliRunner().invoke(app, ["measure", "--device", "cpu", "--rounds", "2", "--seconds", "0.001"])

    assert done.exit_code == 0
    first, _, title, _, head, line, row = done.stdout.splitlines()[:7]
    assert "torch" in first
    assert first.endswith("medians of 2 rounds of 0.001 s or more")
    assert title == "Computing: ms"
    assert head == "| sequences | onnx | eager |"
    assert line == "| --- | --- | --- |"
    assert row.startswith("| 16 × 64 | ")
    assert row.count("(1.00)") >= 1


def test_sequences_are_batched_as_the_queue_would():
    """By bucket, and as many as pay."""
    from fakes import PaddingRunner

    runner = PaddingRunner(batch_tokens=16)
    case = module.Case("mixed", (5, 3, 7, 8, 2), 2, 1, ("outputs",))
    inputs = [module.np.full((n, 2), n, module.np.float32) for n in case.lengths]

    module._computes(runner, inputs, case)()

    assert runner.batches == [[2, 3], [5, 7], [8]]


@pytest.mark.parametrize("mixed", [module._mixed(32)])
def test_mixed_lengths_are_the_same_at_every_start(mixed):
    """Else two runs could not be compared."""
    assert mixed == module._mixed(32)
    assert all(8 <= n <= 256 for n in mixed)
    assert len(set(mixed)) > 10
