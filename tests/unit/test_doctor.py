"""What doctor makes of hosts of every kind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import made_hosts
import pytest
from fake_engine import FakeEngine

from builder.engine.port import Output
from builder.errors import HostError, UsageError
from builder.host import reader
from builder.host.doctor import diagnose
from builder.host.fitness import Around, profile_checks
from builder.host.host import host_of, read_engine_host, read_host
from builder.models.profile import load_profile

ROOT = Path(__file__).parents[2]

GIB = 1 << 30


def of(root):
    host = read_host(root)
    return diagnose(host, engine=host.facts["engine"])


def found(diagnosis, name):
    return [check for check in diagnosis.checks if check.id == name]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_host_in_order_is_fit_and_all_its_cards_are_chosen(tmp_path, count):
    diagnosis = of(made_hosts.xtx(tmp_path, count))
    assert diagnosis.ok
    assert [(gpu.gfx, gpu.vram_bytes, gpu.gid, gpu.chosen) for gpu in diagnosis.host.gpus] == [
        ("gfx1100", made_hosts.XTX, 992, True)
    ] * count
    assert not [check for check in diagnosis.checks if check.status == "warning"]


def test_pci_addresses_and_nodes_are_those_of_the_kernel(tmp_path):
    first, second = of(made_hosts.xtx(tmp_path)).host.gpus
    assert (first.pci, first.render_node) == ("0000:03:00.0", "/dev/dri/renderD128")
    assert (second.pci, second.render_node) == ("0000:23:00.0", "/dev/dri/renderD129")


def test_only_the_gfx1100_of_a_mixed_box_is_chosen_and_passed_on(tmp_path):
    host = of(made_hosts.mixed(tmp_path)).host
    assert [(gpu.gfx, gpu.chosen) for gpu in host.gpus] == [("gfx1030", False), ("gfx1100", True), ("gfx1201", False)]
    assert host.devices == ("/dev/kfd", "/dev/dri/renderD129")


@pytest.mark.parametrize("version", [100306, 110000])
def test_an_integrated_gpu_in_front_is_left_out_even_when_it_poses_as_a_gfx1100(tmp_path, version):
    diagnosis = of(made_hosts.igpu_in_front(tmp_path, version))
    assert [gpu.chosen for gpu in diagnosis.host.gpus] == [False, True, True]
    assert diagnosis.host.devices == ("/dev/kfd", "/dev/dri/renderD129", "/dev/dri/renderD130")
    assert "integrated" in found(diagnosis, "left-out")[0].message
    assert diagnosis.ok


def test_a_group_without_a_name_is_passed_on_by_its_number(tmp_path):
    diagnosis = of(made_hosts.no_render_group(tmp_path))
    assert diagnosis.host.gids == (992,)
    assert "992, which has no name here" in found(diagnosis, "render-group")[0].message
    assert found(diagnosis, "user-groups")[0].status == "warning"


def test_nodes_of_root_alone_make_a_host_unfit_and_the_udev_rule_is_told(tmp_path):
    diagnosis = of(made_hosts.wrong_gids(tmp_path))
    assert {check.id for check in diagnosis.failed} == {"render-group"}
    assert "/etc/udev/rules.d" in diagnosis.failed[0].fix


def test_without_kfd_the_driver_is_named(tmp_path):
    diagnosis = of(made_hosts.no_kfd(tmp_path))
    assert {check.id for check in diagnosis.failed} == {"kfd", "cards"}
    assert "modprobe amdgpu" in found(diagnosis, "kfd")[0].fix


def test_a_management_chip_is_told_and_left_out(tmp_path):
    diagnosis = of(made_hosts.headless_with_bmc(tmp_path))
    assert diagnosis.ok
    assert "management chip (ast)" in found(diagnosis, "left-out")[0].message


def test_a_virtual_machine_without_a_card_is_told_to_pass_it_through(tmp_path):
    diagnosis = of(made_hosts.vm_without_card(tmp_path))
    assert not diagnosis.ok
    assert all("pass the card through" in check.fix for check in diagnosis.failed)


def test_rootless_podman_needs_the_users_own_groups(tmp_path):
    diagnosis = of(made_hosts.rootless_podman(tmp_path))
    assert [check.id for check in diagnosis.failed] == ["user-groups"]
    assert "keep-groups" in found(diagnosis, "engine")[0].fix


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"width": 4}, "link"),
        ({"speed": "5.0 GT/s PCIe"}, "link"),
        ({"visible": 256 << 20}, "large-bar"),
        ({"used": 9 << 30}, "in-use"),
        ({"screen": True}, "screen"),
    ],
)
def test_a_cards_weakness_is_a_warning_with_a_cure(tmp_path, change, check):
    made_hosts.add_processor(tmp_path)
    made_hosts.add_gpu(tmp_path, 1, bus=3, minor=128, **change)
    diagnosis = of(made_hosts.say(tmp_path, minors=(128,)))
    assert diagnosis.ok
    warnings = [one for one in diagnosis.checks if one.status == "warning"]
    assert [one.id for one in warnings] == [check]
    assert warnings[0].fix


def test_the_process_that_holds_a_card_is_named(tmp_path):
    made_hosts.add_processor(tmp_path)
    made_hosts.add_gpu(tmp_path, 1, bus=3, minor=128, used=9 << 30)
    made_hosts.put(tmp_path, "sys/class/kfd/kfd/proc/4711/vram_40001", 8 << 30)
    made_hosts.put(tmp_path, "proc/4711/comm", "python3")
    diagnosis = of(made_hosts.say(tmp_path, minors=(128,)))
    assert "python3 (4711, 8.00 GiB)" in found(diagnosis, "in-use")[0].message


def test_the_link_is_that_of_the_slot_and_not_that_inside_the_card(tmp_path):
    made_hosts.add_processor(tmp_path)
    made_hosts.add_gpu(tmp_path, 1, bus=3, minor=128, width=16, above=(4, 16))
    diagnosis = of(made_hosts.say(tmp_path, minors=(128,)))
    assert diagnosis.host.gpus[0].link["current_link_width"] == 4
    assert found(diagnosis, "link")[0].status == "warning"


@pytest.mark.parametrize(("kind", "status"), [("identity", "ok"), ("DMA-FQ", "warning")])
def test_the_kernel_says_whether_the_iommu_translates_a_card(tmp_path, kind, status):
    made_hosts.add_processor(tmp_path)
    for i in range(2):
        made_hosts.add_gpu(tmp_path, i + 1, bus=3 + i, minor=128 + i, iommu=kind)
    assert found(of(made_hosts.say(tmp_path, minors=(128, 129))), "iommu")[0].status == status


def test_a_translating_iommu_under_two_cards_is_a_warning(tmp_path):
    made_hosts.xtx(tmp_path)
    made_hosts.put(tmp_path, "proc/cmdline", "root=/dev/sda1 amd_iommu=on")
    made_hosts.put(tmp_path, "sys/kernel/iommu_groups/0/type", "DMA")
    assert "iommu=pt" in found(of(tmp_path), "iommu")[0].fix


def test_an_old_kernel_and_few_open_files_are_told(tmp_path):
    made_hosts.xtx(tmp_path, kernel="5.4.0-1-generic")
    made_hosts.put(tmp_path, "proc/self/limits", made_hosts.LIMITS.replace("1048576", "256    "))
    diagnosis = of(tmp_path)
    assert [check.id for check in diagnosis.failed] == ["kernel"]
    assert found(diagnosis, "limits")[0].status == "warning"


def test_a_card_whose_node_is_missing_is_told(tmp_path):
    made_hosts.xtx(tmp_path)
    made_hosts.say(tmp_path, minors=(128,))
    diagnosis = of(tmp_path)
    assert [check.id for check in diagnosis.failed] == ["render-node"]
    assert "0000:23:00.0" in diagnosis.failed[0].message


def test_what_is_no_copy_of_a_host_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no sys folder"):
        read_host(tmp_path)
    made_hosts.xtx(tmp_path)
    (tmp_path / "host.json").write_text("{")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        read_host(tmp_path)


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ({"nodes": {"kfd": 5}}, "nodes"),
        ({"nodes": {"kfd": {"gid": 992, "mode": None}}}, "nodes"),
        ({"nodes": []}, "nodes"),
        ({"user": 5}, "user"),
        ({"user": {"groups": 5}}, "user"),
        ({"user": {"uid": "me"}}, "user"),
        ({"shm_bytes": "all"}, "shm_bytes"),
        ({"disk_free": [1]}, "disk_free"),
        ({"engine": 5}, "engine"),
        ([], "no JSON object"),
    ],
)
def test_a_host_json_of_a_wrong_form_is_refused_by_its_key(tmp_path, told, key):
    made_hosts.xtx(tmp_path)
    (tmp_path / "host.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match=rf"host\.json.*{key}"):
        read_host(tmp_path)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count", "nodes/1/properties: simd_count is ''"),
        ("proc/meminfo", "MemTotal: x", "proc/meminfo: MemTotal is 'x'"),
    ],
)
def test_a_number_of_the_kernel_that_is_none_is_refused_by_its_file_and_key(tmp_path, path, text, message):
    made_hosts.xtx(tmp_path)
    made_hosts.put(tmp_path, path, text)
    with pytest.raises(UsageError, match=message):
        read_host(tmp_path)


def test_limits_that_nobody_can_read_are_left_out(tmp_path):
    made_hosts.xtx(tmp_path)
    made_hosts.put(tmp_path, "proc/self/limits", "")
    assert found(of(tmp_path), "limits") == []


def test_the_reader_runs_by_itself_and_says_the_same(tmp_path):
    made_hosts.xtx(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", reader.__file__, str(tmp_path)], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(reader.read(tmp_path)))


def test_the_engines_own_host_is_read_in_a_container_there(tmp_path):
    engine = FakeEngine()
    engine.answer = Output(returncode=0, stdout=json.dumps(reader.read(made_hosts.xtx(tmp_path))), stderr="")
    host = read_engine_host(engine, "some-image")
    assert [gpu.pci for gpu in host.chosen] == ["0000:03:00.0", "0000:23:00.0"]
    assert b"def read(root" in engine.calls[0][1]["/gfx1100-reader.py"]


def test_a_reader_that_did_not_run_names_the_image(tmp_path):
    engine = FakeEngine()
    engine.answer = Output(returncode=127, stdout="", stderr="python3: not found")
    with pytest.raises(HostError, match="could not be read with some-image"):
        read_engine_host(engine, "some-image")


def test_this_machine_can_be_read():
    host = read_host()
    assert host.facts["memory"]["total"] > 0
    assert diagnose(host).checks


def profile_diagnosis(root, name, **around):
    host = read_host(root)
    checks = profile_checks(host, load_profile(ROOT, name), Around(root=ROOT, **around))
    return {check.id: check for check in checks}


def test_two_cards_and_enough_memory_fit_the_octave_profile(tmp_path):
    checks = profile_diagnosis(made_hosts.xtx(tmp_path), "vllm-octave-256k", disk_free=100 * GIB)
    assert {name: check.status for name, check in checks.items()} == {
        "enough-cards": "ok",
        "plan": "ok",
        "port": "ok",
        "disk": "ok",
        "model": "skipped",
    }


def test_one_card_is_not_enough_for_two(tmp_path):
    checks = profile_diagnosis(made_hosts.xtx(tmp_path, 1), "vllm-octave-256k")
    assert checks["enough-cards"].status == "failed"
    assert "needs 2 gfx1100 cards, 1 are there" in checks["enough-cards"].message


def test_short_ram_fails_the_session_cache_and_says_how_large_it_may_be(tmp_path):
    checks = profile_diagnosis(made_hosts.xtx(tmp_path, ram=32, free=26), "vllm-octave-256k")
    assert checks["plan"].status == "failed"
    assert 'set "cpu_bytes_to_use" to 17179869184' in checks["plan"].fix


def test_a_taken_port_fails_unless_our_own_deployment_holds_it(tmp_path):
    made_hosts.xtx(tmp_path)
    made_hosts.put(tmp_path, "proc/net/tcp", "head\n 0: 00000000:1F90 00000000:0000 0A 0")
    assert profile_diagnosis(tmp_path, "vllm-int8-128k")["port"].status == "failed"
    assert profile_diagnosis(tmp_path, "vllm-int8-128k", own_ports=frozenset({8080}))["port"].status == "ok"


def test_a_connection_that_does_not_listen_takes_no_port(tmp_path):
    made_hosts.xtx(tmp_path)
    made_hosts.put(tmp_path, "proc/net/tcp", "head\n 0: 00000000:1F90 00000000:0000 01 0")
    assert profile_diagnosis(tmp_path, "vllm-int8-128k")["port"].status == "ok"


def test_a_full_disk_fails(tmp_path):
    checks = profile_diagnosis(made_hosts.xtx(tmp_path), "vllm-int8-128k", disk_free=10 * GIB)
    assert checks["disk"].status == "failed"


def test_the_arena_of_strata_must_fit_shared_memory(tmp_path):
    made_hosts.xtx(tmp_path)
    assert profile_diagnosis(tmp_path, "strata-replicas")["profile-shm"].status == "ok"
    made_hosts.say(tmp_path, minors=(128, 129), shm_bytes=16 * GIB)
    checks = profile_diagnosis(tmp_path, "strata-replicas")
    assert checks["profile-shm"].status == "failed"
    assert "size=48G /dev/shm" in checks["profile-shm"].fix


def test_a_checkpoint_with_wrong_mtp_rules_fails_with_the_command_that_fixes_it(tmp_path):
    from checkpoint_twin import twin

    model = twin(tmp_path / "model")
    host = made_hosts.xtx(tmp_path / "host")
    checks = profile_diagnosis(host, "vllm-octave-256k", model=model)
    assert checks["model"].status == "failed"
    assert f"gfx1100 checkpoint fix {model}" in checks["model"].fix


def test_a_folder_that_is_no_checkpoint_fails(tmp_path):
    host = made_hosts.xtx(tmp_path / "host")
    assert profile_diagnosis(host, "vllm-octave-256k", model=tmp_path)["model"].status == "failed"


def test_the_document_and_the_text_name_every_card_and_check(tmp_path):
    diagnosis = of(made_hosts.igpu_in_front(tmp_path))
    value = diagnosis.as_json()
    assert {"gfx", "pci", "vram_bytes", "render_node", "gid", "chosen"} <= set(value["gpus"][0])
    assert set(value["checks"][0]) == {"id", "status", "message", "fix"}
    assert (value["ok"], value["gids"]) == (True, [992])
    assert "0000:03:00.0" in diagnosis.text()


def test_facts_without_a_user_or_a_link_do_not_stop_it(tmp_path):
    facts = reader.read(made_hosts.xtx(tmp_path, 1))
    facts["gpus"][0]["link"] = dict.fromkeys(facts["gpus"][0]["link"])
    assert diagnose(host_of(facts, where="x", local=False)).ok


def test_nodes_that_their_group_may_not_use_make_a_host_unfit(tmp_path):
    made_hosts.xtx(tmp_path)
    diagnosis = of(made_hosts.say(tmp_path, minors=(128, 129), mode=0o600))
    assert {check.id for check in diagnosis.failed} == {"render-group"}
    assert "chmod g+rw /dev/kfd" in diagnosis.failed[0].fix


def test_nodes_that_are_open_to_all_need_no_group(tmp_path):
    made_hosts.xtx(tmp_path)
    assert of(made_hosts.say(tmp_path, minors=(128, 129), gid=0, kfd_gid=0, mode=0o666, uid=0)).ok


@pytest.mark.parametrize(
    ("profile", "dynamic", "mtp", "status"),
    [
        ("vllm-octave-256k", {"-:.*mtp.*": {}}, None, "ok"),
        ("vllm-octave-256k", {}, {}, "failed"),
        ("vllm-int8-128k", {}, {}, "ok"),
        ("vllm-int8-128k", {"+:.*mtp.*": {"bits": 4}}, None, "warning"),
    ],
)
def test_a_checkpoint_is_judged_by_whether_the_profile_drafts_with_its_mtp_head(
    tmp_path, profile, dynamic, mtp, status
):
    from checkpoint_twin import TINY_MTP, tiny

    model = tiny(tmp_path / "model", dynamic, mtp=TINY_MTP if mtp is None else mtp)
    host = made_hosts.xtx(tmp_path / "host")
    assert profile_diagnosis(host, profile, model=model)["model"].status == status
