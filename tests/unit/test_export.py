"""Exported files: what stands in them. Their own worlds judge them in tests/engine/test_export_judged.py."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_hosts import xtx

from builder.cli.state import find_root
from builder.deploy.export import _env, _exec, export
from builder.errors import UsageError
from builder.host.host import read_host
from builder.models.profile import load_profile, profile_names

ROOT = find_root(None)
DIGEST = "sha256:" + "ab" * 32
REFERENCE = f"registry.example/gfx1100/vllm@{DIGEST}"
PROFILES = profile_names(ROOT)


def exported(name, form, **more):
    return export(ROOT, load_profile(ROOT, name), form, reference=REFERENCE, **more)


def documents(name, **more):
    return list(yaml.safe_load_all(exported(name, "kubernetes", **more).files["kubernetes.yaml"]))


def pod(name, **more):
    deployment = next(one for one in documents(name, **more) if one["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("form", ["compose", "kubernetes", "systemd"])
def test_every_form_names_the_image_by_its_digest_and_gives_the_whole_command(form):
    for name in PROFILES:
        done = exported(name, form)
        text = done.files[done.main].partition("kind: Deployment")
        text = text[2] or text[0]
        assert REFERENCE in text
        assert "None" not in text
        for word in load_profile(ROOT, name).command:
            assert word in text.replace('\\"', '"'), (name, word)


def test_a_tag_is_refused_as_it_can_move():
    with pytest.raises(UsageError, match="no repository@digest"):
        export(ROOT, load_profile(ROOT, "smoke"), "compose", reference="registry.example/smoke:latest")


def test_a_compose_service_gets_its_devices_and_groups_from_the_env_file():
    done = exported("vllm-octave-256k", "compose")
    service = yaml.safe_load(done.files["compose.yaml"])["services"]["engine"]
    assert service["devices"][0] == "/dev/kfd:/dev/kfd"
    assert len(service["devices"]) == 3
    assert service["shm_size"] == 17179869184
    assert "privileged" not in service
    named = set(re.findall(r"\$\{(\w+)", done.files["compose.yaml"]))
    assert named == {line.partition("=")[0] for line in done.files[".env"].splitlines() if "=" in line}


def test_a_compose_file_keeps_a_dollar_sign_for_the_engine():
    profile = load_profile(ROOT, "smoke")
    spicy = profile.model_copy(update={"command": (*profile.command, "--key", "a$B")})
    text = export(ROOT, spicy, "compose", reference=REFERENCE).files["compose.yaml"]
    assert '"a$$B"' in text


def test_the_values_of_a_known_host_are_filled_in(tmp_path):
    xtx(tmp_path)
    host = read_host(tmp_path)
    env = exported("vllm-octave-256k", "compose", host=host, model=tmp_path / "m").files[".env"]
    assert env.splitlines()[1:] == [
        f"MODEL_DIR={tmp_path}/m",
        "RENDER_NODE_1=/dev/dri/renderD128",
        "RENDER_NODE_2=/dev/dri/renderD129",
        "RENDER_GID_1=992",
    ]
    assert pod("vllm-octave-256k", host=host)["securityContext"]["supplementalGroups"] == [992]


def test_a_kubernetes_pod_asks_the_device_plugin_for_cards_and_has_no_privileges():
    spec = pod("vllm-octave-256k")
    container = spec["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": 2}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["enableServiceLinks"] is False
    shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "17179869184"}


def test_a_kubernetes_pod_is_started_when_it_has_answered_prompts():
    container = pod("sglang-dflash2")["containers"][0]
    probe = container["startupProbe"]
    assert probe["exec"]["command"][:3] == ["python3", "/gfx1100/warm-up.py", "http://127.0.0.1:8080"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 1800
    assert container["livenessProbe"]["httpGet"]["path"] == "/health_generate"


def test_replicas_never_share_a_card_while_they_change():
    deployment = next(one for one in documents("vllm-int8-128k", replicas=3) if one["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_replicas_of_a_host_are_refused():
    with pytest.raises(UsageError, match="--replicas is for Kubernetes"):
        exported("smoke", "compose", replicas=2)


def test_another_image_gets_another_cache():
    other = export(
        ROOT, load_profile(ROOT, "vllm-int8-128k"), "compose", reference="registry.example/x@sha256:" + "cd" * 32
    )
    names = {
        yaml.safe_load(done.files["compose.yaml"])["volumes"]["cache"]["name"]
        for done in (other, exported("vllm-int8-128k", "compose"))
    }
    assert len(names) == 2


def test_an_image_that_is_not_ours_is_asked_for_its_health_alone():
    done = exported("strata-replicas", "kubernetes")
    assert "warm-up.py" not in done.files["kubernetes.yaml"]
    assert "runAsUser" not in done.files["kubernetes.yaml"]
    assert "warm-up.py" not in exported("strata-replicas", "compose").files


def test_systemd_files_come_with_the_watchdogs_timer():
    done = exported("smoke", "systemd", timers=lambda: {"watchdog.timer": "[Timer]\n"})
    assert sorted(done.files) == ["gfx1100-smoke.env", "gfx1100-smoke.service", "gfx1100-watchdog.timer", "warm-up.py"]


def test_a_unit_gives_up_on_a_server_that_dies_again_and_again():
    text = exported("smoke", "systemd").files["gfx1100-smoke.service"]
    assert "StartLimitBurst=3" in text
    assert "--process $MAINPID" in text


def test_a_checkpoint_of_links_brings_the_folders_that_they_lead_to(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").touch()
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed" / "model.safetensors").symlink_to("../weights/model.safetensors")
    spec = pod("vllm-octave-256k", model=tmp_path / "fixed")
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (mounts["model"], mounts["links-1"]) == ("/models/model", "/models/weights")


def test_the_exported_warm_up_runs_by_itself(tmp_path):
    (tmp_path / "warm-up.py").write_text(exported("smoke", "compose").files["warm-up.py"])
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "warm-up.py"), "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("http://127.0.0.1:1 is not warm: URLError")


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])))
def test_a_word_of_a_unit_reads_back_to_itself(text):
    word = _exec(text)
    inner = word[1:-1] if word.startswith('"') and word.endswith('"') and len(word) > 1 else word
    read = re.sub(r"\\(.)", r"\1", inner.replace("$$", "$").replace("%%", "%"))
    assert read == text


@pytest.mark.parametrize("value", ["/srv/my models", "/srv/a#b", "/srv/$HOME"])
def test_a_path_that_an_env_file_would_read_otherwise_is_quoted(value):
    assert _env(value) == f"'{value}'"


def test_a_line_break_is_refused():
    with pytest.raises(UsageError, match="line break"):
        _exec("a\nb")


def test_the_json_form_holds_every_file():
    value = json.loads(json.dumps(exported("smoke", "compose").as_json()))
    assert value["main"] == "compose.yaml"
    assert set(value["files"]) == {"compose.yaml", ".env", "warm-up.py"}


@pytest.mark.parametrize("reference", ["x@sha256:", "a b@sha256:aa", f"a b@{DIGEST}", f"x@{DIGEST}\n"])
def test_a_reference_that_is_none_is_refused(reference):
    with pytest.raises(UsageError, match="the image"):
        export(ROOT, load_profile(ROOT, "smoke"), "compose", reference=reference)


@pytest.mark.parametrize("form", ["compose", "systemd"])
@pytest.mark.parametrize("folder", ["/srv/a:b", "/srv/a\nb"])
@pytest.mark.parametrize("option", ["model", "drafter"])
def test_a_folder_that_a_mount_cannot_name_is_refused(form, folder, option):
    with pytest.raises(UsageError, match=f"--{option}"):
        exported("sglang-dflash2", form, **{option: Path(folder)})


def test_compose_gives_up_after_three_failed_starts():
    text = exported("vllm-octave-256k", "compose").files["compose.yaml"]
    assert yaml.safe_load(text)["services"]["engine"]["restart"] == "on-failure:3"
