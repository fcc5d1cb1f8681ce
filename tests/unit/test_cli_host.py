"""The commands doctor, lint and plan: exit codes, documents, and that they change nothing."""

import json
import shlex
import sys
from pathlib import Path

import made_hosts
import pytest

from builder import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Return a function that runs the program in this process: exit code, stdout, stderr."""
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"GFX1100_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gfx1100", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_doctor_of_a_fit_host_ends_with_0_and_of_an_unfit_one_with_3(run, tmp_path):
    good, bad = made_hosts.xtx(tmp_path / "good"), made_hosts.no_kfd(tmp_path / "bad")
    code, out, _ = run("--json", "doctor", "--host-root", str(good))
    value = json.loads(out)
    assert (code, value["ok"], len(value["gpus"])) == (0, True, 2)
    code, out, _ = run("--json", "doctor", "--host-root", str(bad))
    assert (code, json.loads(out)["ok"]) == (3, False)


def test_doctor_asks_for_a_profile_and_prints_what_to_do(run, tmp_path):
    host = made_hosts.xtx(tmp_path / "host", 1)
    code, out, _ = run("doctor", "--host-root", str(host), "--profile", "vllm-octave-256k")
    assert code == 3
    assert "enough-cards: a profile for 1 cards" in out


def test_doctor_without_an_engine_reads_this_machine_all_the_same(run):
    code, out, err = run("--json", "doctor")
    assert code in {0, 3}
    assert [check["status"] for check in json.loads(out)["checks"] if check["id"] == "engine"] == ["skipped"]
    assert "no engine answers" in err


def test_doctor_of_a_host_elsewhere_wants_an_image_to_read_it_with(run, monkeypatch):
    from builder.cli.state import State

    class Elsewhere:
        name = "docker at ssh://gpubox"
        environment = {"DOCKER_HOST": "ssh://gpubox"}  # noqa: RUF012 - a fake

    monkeypatch.setattr(State, "engine", Elsewhere())
    code, _, err = run("doctor")
    assert code == 2
    assert "is on another machine" in err


def test_lint_ends_with_2_on_errors_and_0_on_warnings(run):
    code, out, _ = run("--json", "lint", "--", *shlex.split("vllm serve m --attention-backend ROCM_AITER_FA"))
    findings = json.loads(out)["findings"]
    assert code == 2
    assert {"id", "severity", "flag", "message", "fix", "source"} <= set(findings[0])
    code, out, _ = run("lint", "--", "vllm", "serve", "m")
    assert code == 0
    assert "the-first-start-has-time" in out
    code, out, _ = run("lint", "sglang-dflash2")
    assert (code, out) == (0, "nothing found\n")


def test_lint_fix_prints_a_command_that_passes(run):
    words = shlex.split(
        "vllm serve m --attention-backend ROCM_AITER_FA --max-num-seqs 8 --max-cudagraph-capture-size 4"
    )
    code, out, _ = run("--json", "lint", "--fix", "--", *words)
    value = json.loads(out)
    assert (code, value["left"]) == (0, [])
    assert value["fixed"]["command"][:5] == ["vllm", "serve", "m", "--attention-backend", "TRITON_ATTN"]
    code, out, _ = run("lint", "--fix", "--", *words)
    assert "VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve m" in out


def test_lint_reads_compose_files_and_profiles_of_ones_own(run, tmp_path):
    compose = tmp_path / "compose.yaml"
    compose.write_text("services:\n  a: {image: 'x/vllm:1', command: vllm serve m, privileged: true}\n")
    code, out, _ = run("--json", "lint", str(compose))
    assert code == 2
    assert "never-privileged" in {finding["id"] for finding in json.loads(out)["findings"]}
    own = tmp_path / "own.yaml"
    own.write_text("name: own\ntitle: Own\nextends: vllm-int8-128k\nflags: {--attention-backend: ROCM_AITER_FA}\n")
    assert run("lint", str(own))[0] == 2


def test_lint_of_nothing_or_of_a_file_that_is_not_there_is_a_usage_error(run, tmp_path):
    assert run("lint")[0] == 2
    code, out, _ = run("--json", "lint", str(tmp_path / "missing.yaml"))
    assert (code, json.loads(out)["error"]["class"]) == (2, "UsageError")


def test_lint_lists_its_rules(run):
    _, out, _ = run("--json", "lint", "--rules")
    assert len(json.loads(out)["rules"]) > 30


def test_plan_shows_tokens_terms_and_advice_and_ends_with_3_when_it_does_not_fit(run, tmp_path):
    host = made_hosts.xtx(tmp_path / "host")
    code, out, _ = run("--json", "plan", "vllm-int8-128k", "--host-root", str(host))
    value = json.loads(out)
    assert (code, value["fits"], value["kv_tokens"]) == (0, True, 638_075)
    assert set(value["terms"]) == set(value["how"])
    short = made_hosts.xtx(tmp_path / "short", ram=32, free=20)
    code, out, _ = run("--json", "plan", "vllm-octave-256k", "--host-root", str(short))
    assert (code, json.loads(out)["fits"]) == (3, False)


def test_plan_without_cards_says_that_it_takes_those_of_24_gb(run):
    code, out, err = run("plan", "vllm-int8-128k")
    assert code == 0
    assert "638,075 KV tokens" in out
    assert "planned for cards of 24 GB" in err


def test_nothing_is_written_below_a_host(run, tmp_path):
    host = made_hosts.xtx(tmp_path / "host")
    before = sorted((path, path.stat().st_mtime_ns) for path in host.rglob("*"))
    run("doctor", "--host-root", str(host), "--profile", "vllm-octave-256k")
    run("plan", "vllm-octave-256k", "--host-root", str(host))
    assert sorted((path, path.stat().st_mtime_ns) for path in host.rglob("*")) == before


def test_lint_takes_files_with_spaces_and_one_target_alone(run, tmp_path):
    path = tmp_path / "my compose.yaml"
    path.write_text("services:\n  llm: {image: vllm, command: vllm serve m --attention-backend ROCM_AITER_FA}\n")
    code, out, _ = run("--json", "lint", str(path))
    assert (code, json.loads(out)["engine"]) == (2, "vllm")
    assert "no-aiter-attention" in out
    code, out, err = run("lint", "vllm-octave-256k", "vllm-int8-128k")
    assert code == 2
    assert "one at a time" in out + err
    assert run("lint", "--", "vllm serve m --config x.yaml")[0] == 0
    code, out, _ = run("--json", "lint", "--", "vllm serve m -tp 0")
    assert code == 2
    assert "values-are-in-range" in out
