"""Every rule finds its bad example, passes its good one, and its change cures what it found."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, image

from builder.deploy.export import export
from builder.engine.port import Output
from builder.errors import HostError, UsageError
from builder.lint.compose import of_compose, of_docker_run
from builder.lint.operators import operators_of
from builder.lint.run import RULES, fixed, lint, rules_page
from builder.lint.words import of_profile, of_words, version_numbers
from builder.models.profile import load_profile, profile_names

ROOT = Path(__file__).parents[2]
PROFILES = [name for name in profile_names(ROOT) if load_profile(ROOT, name).engine in {"vllm", "sglang"}]
REFERENCE = "registry.example/gfx1100/vllm@sha256:" + "ab" * 32
S1 = (
    "vllm serve MODEL --served-model-name qwen3.8-27b --tensor-parallel-size 2 --kv-cache-dtype octave_k3v4 "
    "--attention-backend ROCM_OCTAVE --max-model-len 262144 --max-num-seqs 8 --max-num-batched-tokens 8192 "
    "--enable-prefix-caching --prefix-cache-retention-interval 3296 --prefix-match-unit 16 --enable-chunked-prefill "
    "--gpu-memory-utilization 0.95 --spec-method qwen3_5_mtp --spec-tokens 3 --enable-mamba-shared-prefix-checkpoint "
    '--max-cudagraph-capture-size 16 --kv-transfer-config \'{"kv_connector":"SimpleCPUOffloadConnector",'
    '"kv_role":"kv_both","kv_connector_extra_config":{"backend":"cpu","cpu_capacity_bytes":32212254720}}\''
)
S2 = (
    "docker run -d --name vllm-prod --ipc=host --network=host --shm-size=32g --device=/dev/kfd --device=/dev/dri "
    "--group-add video -e HSA_OVERRIDE_GFX_VERSION=11.0.0 -e ROCR_VISIBLE_DEVICES=0,1 "
    "-e PYTHONPATH=/opt/rocm-7.2.4/share/amd_smi -v /srv/models:/models:ro jartx-vllm:latest "
    "vllm serve /models/Qwen3.8-27B-W4A16-AutoRound --host 0.0.0.0 --port 8080 --tensor-parallel-size 2 "
    "--kv-cache-dtype int8_per_token_head --max-model-len 131072 --max-num-seqs 8 --max-num-batched-tokens 8192 "
    "--attention-backend TRITON_ATTN --enable-prefix-caching --enable-chunked-prefill --gpu-memory-utilization 0.95 "
    "--trust-remote-code"
)


def example(text):
    """Return the command of a rule's example; ``#version=`` and ``#ops=`` in front say what is known beside it."""
    told = {}
    while found := re.match(r"#(version|ops)=(\S+) ", text):
        told[found[1]] = found[2]
        text = text[found.end() :]
    words = shlex.split(text)
    read = of_docker_run if words[0] == "docker" else of_words
    command = read(words, version=told.get("version"))
    return replace(command, ops=frozenset(told["ops"].split(",")) if "ops" in told else None)


def ids(command):
    return {finding.rule.id for finding in lint(command)}


def test_there_are_more_than_thirty_rules_with_names_of_their_own():
    assert len({rule.id for rule in RULES}) == len(RULES) > 30


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_its_words_and_its_two_examples(rule):
    assert rule.reason.endswith(".")
    assert rule.check.__doc__.strip().endswith(".")
    assert re.match(r"https://\S+$|field report S\d", rule.source)
    assert rule.bad != rule.good


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_finds_its_bad_example_and_passes_its_good_one(rule):
    assert rule.id in ids(example(rule.bad))
    assert rule.id not in ids(example(rule.good))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_change_cures_what_was_found_and_breaks_no_other_rule(rule):
    command = example(rule.bad)
    mine = [finding for finding in lint(command) if finding.rule.id == rule.id]
    better = fixed(command)
    assert all(finding.found.fix for finding in mine)
    if any(finding.found.change for finding in mine):
        assert rule.id not in ids(better)
    assert ids(better) <= ids(command)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_fix_prints_reads_back_to_the_same_command(rule):
    better = fixed(example(rule.bad))
    again = example(better.text())
    assert again.words() == better.words()
    assert dict(again.environment) == dict(better.environment)


@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_of_ours_has_an_error_or_a_warning(name):
    assert [f.rule.id for f in lint(of_profile(load_profile(ROOT, name))) if f.rule.severity != "info"] == []


def test_the_published_command_of_s1_is_corrected_in_the_ways_that_are_known():
    command = of_words(shlex.split(S1))
    assert ids(command) == {
        "offload-keys-are-read",
        "offload-with-a-hash-seed",
        "capture-size-covers-the-batch",
        "mtp-by-its-name",
        "the-first-start-has-time",
        "utilization-leaves-room",
    }
    better = fixed(command)
    assert json.loads(better.get("--kv-transfer-config"))["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": 32212254720
    }
    assert better.get("--max-cudagraph-capture-size") == "32"
    assert better.environment["PYTHONHASHSEED"] == "0"


def test_the_published_container_of_s2_is_found_out():
    assert {
        "groups-by-number",
        "only-chosen-render-nodes",
        "one-way-to-shared-memory",
        "image-by-digest",
        "no-gfx-override",
        "cards-by-their-nodes",
        "no-amdsmi-path-of-one-release",
        "open-port-has-a-key",
        "compile-caches-are-kept",
        "no-needless-remote-code",
    } <= ids(of_docker_run(shlex.split(S2)))


def test_a_fix_keeps_flags_in_their_places_and_everything_else_as_it_was():
    command = of_words(
        shlex.split("vllm serve m --max-num-seqs 8 --max_cudagraph_capture_size=16 --spec-tokens 3 --seed 1")
    )
    better = command.with_flag("--max-cudagraph-capture-size", "32")
    assert better.words() == shlex.split(
        "vllm serve m --max-num-seqs 8 --max-cudagraph-capture-size 32 --spec-tokens 3 --seed 1"
    )


@pytest.mark.parametrize(
    ("text", "engine", "cards", "drafted", "model"),
    [
        ("vllm serve m -tp 2 --spec-method mtp --spec-tokens 3", "vllm", 2, 3, "m"),
        ("m --tensor-parallel-size=4", "vllm", 4, 0, "m"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", 1, 0, "m"),
        ('FOO=1 vllm serve m --speculative-config \'{"method":"mtp","num_speculative_tokens":2}\'', "vllm", 1, 2, "m"),
        ("python3 -m sglang.launch_server --model-path m --tp 2", "sglang", 2, 0, "m"),
        (
            "--model m --mem-fraction-static 0.9 --speculative-algorithm EAGLE --speculative-num-draft-tokens 4",
            "sglang",
            1,
            3,
            "m",
        ),
        ("bash -lc 'exec vllm serve m --max-model-len 8k'", "vllm", 1, 0, "m"),
    ],
)
def test_every_spelling_of_a_command_is_read_alike(text, engine, cards, drafted, model):
    command = of_words(shlex.split(text))
    assert (command.engine, command.cards, command.drafted, command.model) == (engine, cards, drafted, model)


def test_what_starts_no_engine_is_refused():
    with pytest.raises(UsageError, match="neither vLLM nor SGLang"):
        of_words(["nginx", "-g", "daemon off;"])
    with pytest.raises(UsageError, match="names no image"):
        of_docker_run(["docker", "run", "--rm"])
    with pytest.raises(UsageError, match="has no value"):
        of_docker_run(["docker", "run", "--name"])
    with pytest.raises(UsageError, match="no engine version"):
        version_numbers("newest")


def test_grouped_and_attached_short_options_of_docker_are_read():
    command = of_docker_run(
        shlex.split("podman run -itd -v/srv:/models:ro -p 127.0.0.1:8080:8080 vllm-image --host 0.0.0.0")
    )
    assert command.box.image == "vllm-image"
    assert command.box.all("--volume") == ["/srv:/models:ro"]
    assert (command.engine, command.get("--host")) == ("vllm", "0.0.0.0")


COMPOSE = """
services:
  web: {image: nginx}
  llm:
    image: vllm:latest
    command: >-
      vllm serve /models/m --tensor-parallel-size 2 --attention-backend ROCM_AITER_FA
    environment: [VLLM_ROCM_USE_AITER=1, EMPTY]
    devices: ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]
    group_add: [video, 992]
    volumes: [{type: bind, source: /srv/models, target: /models}]
    restart: unless-stopped
    shm_size: 64m
"""


def test_a_compose_file_is_read_as_the_container_that_it_makes(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    assert {
        "no-aiter-attention",
        "no-aiter-switch",
        "groups-by-number",
        "only-chosen-render-nodes",
        "model-folder-is-read-only",
        "no-restart-before-ready",
        "shared-memory-for-several-cards",
        "image-by-digest",
    } <= ids(of_compose(path))


def test_of_several_engines_in_a_compose_file_one_must_be_named(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE + "  two: {image: vllm, command: vllm serve m}\n")
    with pytest.raises(UsageError, match="several do: llm, two"):
        of_compose(path)
    assert of_compose(path, service="two").model == "m"
    with pytest.raises(UsageError, match="has no service 'three'"):
        of_compose(path, service="three")


def test_flags_are_held_against_the_version_that_is_known():
    words = shlex.split("vllm serve m --enable-mamba-shared-prefix-checkpoint")
    assert "renamed-flags" in ids(of_words(words, version="0.30.2"))
    assert "renamed-flags" not in ids(of_words(words, version="0.31"))
    assert "renamed-flags" not in ids(of_words(words, version="0.0.dev0+g317415c5a1fd"))


def test_operators_are_read_in_the_image():
    engine = FakeEngine([image(1)])
    engine.answer = Output(returncode=0, stdout='["octave_decode"]', stderr="")
    assert operators_of(engine, image(1).id) == {"octave_decode"}
    with pytest.raises(HostError, match="has no image"):
        operators_of(engine, "other")
    engine.answer = Output(returncode=1, stdout="", stderr="broken")
    with pytest.raises(HostError, match="broken"):
        operators_of(engine, image(1).id)


def test_the_page_of_rules_is_fresh():
    assert (ROOT / "docs" / "lint.md").read_text() == rules_page(), "run `gfx1100 lint --rules > docs/lint.md`"


@pytest.mark.parametrize(
    ("text", "rule", "cure"),
    [
        ("vllm serve m --spec-tokens 3", "speculation-is-whole", None),
        ("vllm serve m --spec-method mtp", "speculation-is-whole", ("--spec-tokens", "3")),
        (
            'vllm serve m --speculative-config \'{"method":"qwen3_5_mtp","num_speculative_tokens":3}\'',
            "mtp-by-its-name",
            ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'),
        ),
        (
            "vllm serve m --spec-method mtp --spec-tokens 3 --prefix-cache-retention-interval 0",
            "retention-fits-the-block",
            None,
        ),
        (
            "python -m sglang.launch_server --model-path m --attention-backend aiter",
            "sglang-without-aiter",
            ("--attention-backend", "triton"),
        ),
        (
            (
                "SGLANG_RDNA_VLLM_VERIFY=1 python -m sglang.launch_server --model-path m "
                "--speculative-algorithm DFLASH "
                "--speculative-num-draft-tokens 8 --max-running-requests 100"
            ),
            "verify-kernel-within-its-limits",
            ("--max-running-requests", "64"),
        ),
        ("vllm serve m --gpu-memory-utilization most", None, None),
    ],
)
def test_the_other_sides_of_rules_with_several(text, rule, cure):
    command = of_words(shlex.split(text))
    assert rule is None or rule in ids(command)
    if cure:
        assert fixed(command).get(cure[0]) == cure[1]


@pytest.mark.parametrize("name", PROFILES)
def test_the_compose_file_that_export_writes_passes_with_its_env_file_and_without(name, tmp_path):
    files = export(ROOT, load_profile(ROOT, name), "compose", reference=REFERENCE).files
    path = tmp_path / "compose.yaml"
    path.write_text(files["compose.yaml"])
    for env in (None, files[".env"], files[".env"].replace("RENDER_GID_1=", "RENDER_GID_1=992")):
        if env is not None:
            (tmp_path / ".env").write_text(env)
        assert [f.rule.id for f in lint(of_compose(path)) if f.rule.severity != "info"] == []


def test_a_variable_of_a_compose_file_has_the_value_of_the_env_file_beside_it(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  llm:\n    image: vllm\n    command: vllm serve m --seed ${SEED:-7} --key a$$B --port $PORT\n"
        "    group_add: ['${GID:?in .env}']\n    devices: ['${NODE:?in .env}:${NODE}']\n"
    )
    command = of_compose(path)
    assert (command.get("--seed"), command.get("--key"), command.get("--port")) == ("7", "a$B", "${PORT}")
    assert "groups-by-number" not in ids(command)
    (tmp_path / ".env").write_text("# host\nGID='video'\nexport PORT=80\nSEED=\nNODE=/dev/dri/renderD128\n")
    command = of_compose(path)
    assert (command.get("--seed"), command.get("--port")) == ("7", "80")
    assert command.box.all("--device") == ["/dev/dri/renderD128:/dev/dri/renderD128"]
    assert "groups-by-number" in ids(command)


def test_merge_keys_of_a_compose_file_are_merged(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text(
        "x-gpu: &gpu {shm_size: 16g, image: base}\n"
        "services:\n  llm:\n    <<: *gpu\n    image: vllm\n    command: vllm serve m\n"
    )
    command = of_compose(path)
    assert (command.box.all("--shm-size"), command.box.image) == (["16g"], "vllm")


def test_a_quote_that_is_not_closed_is_told_with_its_place(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text('services:\n  llm: {image: vllm, command: "vllm serve \'m"}\n')
    with pytest.raises(UsageError, match=r"compose\.yaml.*llm.*quot"):
        of_compose(path)
    with pytest.raises(UsageError, match="quot"):
        of_words(["bash", "-c", "vllm serve 'm"])


def test_env_before_a_command_gives_variables():
    command = of_words(shlex.split("X=1 env A=B C=D vllm serve m"))
    assert (dict(command.environment), command.model) == ({"X": "1", "A": "B", "C": "D"}, "m")
    assert command.head == ("vllm", "serve", "m")


@pytest.mark.parametrize(
    "flags",
    [
        "-tp 0",
        "-tp -1",
        "-tp two",
        "--gpu-memory-utilization nan",
        "--gpu-memory-utilization 0",
        "--gpu-memory-utilization 1.01",
        "--gpu-memory-utilization most",
        "--max-model-len lots",
        "--max-model-len 0",
        "--max-num-seqs",
    ],
)
def test_a_number_that_is_none_or_out_of_range_is_an_error(flags):
    command = of_words(shlex.split(f"vllm serve m {flags}"))
    assert "values-are-in-range" in ids(command)


@pytest.mark.parametrize(
    "flags",
    ["-tp 2", "--gpu-memory-utilization 1", "--max-model-len 8k", "--max-model-len auto", "--max-model-len -1"],
)
def test_a_number_in_range_passes_and_so_does_a_variable(flags):
    assert "values-are-in-range" not in ids(of_words(shlex.split(f"vllm serve m {flags}")))
    assert "values-are-in-range" not in ids(of_words(["vllm", "serve", "m", "-tp", "${CARDS}"]))


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ("--device /dev/kfd", True),
        ("--device /dev/kfd --device /dev/dri/renderD128", True),
        ("--device /dev/kfd --device /dev/dri/renderD128 --device /dev/dri/renderD129:/dev/dri/renderD129", False),
        ("--device /dev/kfd --device /dev/dri", False),
        ("--device amd.com/gpu=all", False),
        ("--privileged", False),
    ],
)
def test_every_card_needs_its_render_node(devices, found):
    command = of_docker_run(shlex.split(f"docker run {devices} vllm vllm serve m -tp 2"))
    assert ("a-render-node-for-each-card" in ids(command)) is found


@pytest.mark.parametrize("wrong", ["command: 5", "entrypoint: true", "command: {a: b}", "environment: 1.5"])
def test_a_compose_key_of_a_wrong_form_is_told_with_its_service(tmp_path, wrong):
    path = tmp_path / "compose.yaml"
    path.write_text(f"services:\n  llm:\n    image: i\n    {wrong}\n")
    with pytest.raises(UsageError, match=rf"compose\.yaml: {wrong.split(':')[0]} of llm"):
        of_compose(path)


def test_a_huge_compose_file_is_not_read(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text("services: {llm: {command: vllm serve m}}\n" + "#" * (1 << 20))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        of_compose(path)


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--kv-transfer-config", "[]", True),
        ("--speculative-config", "5", True),
        ("--override-generation-config", "auto", True),
        ("--compilation-config", "[3]", True),
        ("--compilation-config", "3", False),
        ("--kv-transfer-config", "${KV}", False),
    ],
)
def test_a_json_flag_without_an_object_is_told_where_vllm_takes_nothing_else(flag, value, told):
    found = lint(of_words(["vllm", "serve", "m", flag, value]))
    assert ("json-flags-are-json" in {one.rule.id for one in found}) == told
