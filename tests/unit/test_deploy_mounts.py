"""Model folders in containers: links stay whole, files are readable, cards and folders are placed."""

import os
from pathlib import Path

import pytest
from fake_engine import image
from made_hosts import igpu_in_front, xtx

from builder.cli.state import find_root
from builder.deploy.mounts import check_readable, model_mounts
from builder.deploy.spec import Placement, container_spec, owner, place
from builder.errors import UsageError
from builder.host.host import read_host
from builder.models.profile import load_profile

ROOT = find_root(None)
AT = "/models/model"


def seen_in_container(mounts, path):
    """Return whether a path of a container leads to a file when only these mounts are there."""
    for _ in range(20):
        below = [(host, at) for host, (at, _) in mounts.items() if Path(path).is_relative_to(at)]
        if not below:
            return False
        host, at = max(below, key=lambda pair: len(pair[1]))
        real = host / Path(path).relative_to(at)
        if not real.is_symlink():
            return real.exists()
        path = os.path.normpath(Path(path).parent / real.readlink())
    return False


def checkpoint(folder, **files):
    folder.mkdir(parents=True)
    for name, target in files.items():
        path = folder / name.replace("_", ".")
        path.write_text("x") if target is None else path.symlink_to(target)
    return folder


def test_a_plain_folder_is_one_read_only_mount(tmp_path):
    folder = checkpoint(tmp_path / "m", config_json=None)
    assert model_mounts(folder, AT) == {folder: (AT, True)}


@pytest.mark.parametrize("absolute", [True, False])
def test_a_folder_of_links_brings_the_folder_of_the_weights(tmp_path, absolute):
    weights = checkpoint(tmp_path / "orig", model_safetensors=None)
    target = weights / "model.safetensors" if absolute else "../orig/model.safetensors"
    fixed = checkpoint(tmp_path / "fixed", config_json=None, model_safetensors=target)
    mounts = model_mounts(fixed, AT)
    assert all(read_only for _, read_only in mounts.values())
    assert seen_in_container(mounts, f"{AT}/model.safetensors")


def test_a_snapshot_of_a_hub_cache_brings_its_blobs(tmp_path):
    checkpoint(tmp_path / "hub" / "blobs", abc=None)
    snapshot = checkpoint(tmp_path / "hub" / "snapshots" / "1", config_json="../../blobs/abc")
    mounts = model_mounts(snapshot, AT)
    assert seen_in_container(mounts, f"{AT}/config.json")
    assert mounts[tmp_path / "hub" / "blobs"] == ("/blobs", True)


def test_links_to_links_are_followed_to_the_end(tmp_path):
    checkpoint(tmp_path / "blobs", abc=None)
    snapshot = checkpoint(tmp_path / "snapshot", w="../blobs/abc")
    fixed = checkpoint(tmp_path / "fixed", w=snapshot / "w")
    assert seen_in_container(model_mounts(fixed, AT), f"{AT}/w")


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    folder = checkpoint(tmp_path / "m", w="../gone/w")
    with pytest.raises(UsageError, match="leads nowhere"):
        model_mounts(folder, AT)


def test_a_link_into_the_folder_above_cannot_be_mounted(tmp_path):
    (tmp_path / "w").touch()
    folder = checkpoint(tmp_path / "m", w="../w")
    with pytest.raises(UsageError, match="cannot be mounted") as caught:
        model_mounts(folder, AT)
    assert "--copy" in caught.value.hint


def test_a_file_that_the_images_user_cannot_read_is_named_with_the_cure(tmp_path):
    folder = checkpoint(tmp_path / "m", model_safetensors=None)
    (folder / "model.safetensors").chmod(0o600)
    check_readable(folder, image(1, user=""))
    with pytest.raises(UsageError, match=r"model\.safetensors has mode 600") as caught:
        check_readable(folder, image(1, user="10001:10001"))
    assert caught.value.hint == f"chmod -R a+rX {folder}"
    (folder / "model.safetensors").chmod(0o644)
    check_readable(folder, image(1, user="10001:10001"))


OCTAVE, DFLASH, SMOKE = (load_profile(ROOT, name) for name in ("vllm-octave-256k", "sglang-dflash2", "smoke"))


def placed(host, profile, tmp_path, **more):
    return place(host, profile, model=tmp_path, drafter=tmp_path, local=True, **more)


def test_the_chosen_cards_nodes_and_their_groups_as_numbers(tmp_path):
    spot = placed(read_host(xtx(tmp_path / "host")), OCTAVE, tmp_path)
    assert spot.devices == ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
    assert spot.groups == (992,)


def test_the_integrated_gpu_is_never_passed_in(tmp_path):
    host = read_host(igpu_in_front(tmp_path / "host"))
    spot = placed(host, OCTAVE, tmp_path)
    assert set(spot.devices) == {"/dev/kfd", *(gpu.render_node for gpu in host.chosen)}
    assert not any(gpu.render_node in spot.devices for gpu in host.gpus if gpu.integrated)


def test_cards_that_nobody_holds_come_first(tmp_path):
    one_card = OCTAVE.model_copy(update={"gpus": 1})
    host = read_host(xtx(tmp_path / "host"))
    assert placed(host, one_card, tmp_path, taken=["/dev/dri/renderD128"]).devices[1:] == ("/dev/dri/renderD129",)


def test_a_profile_without_cards_gets_no_device(tmp_path):
    assert placed(read_host(xtx(tmp_path / "host")), SMOKE, tmp_path).devices == ()


def test_a_folder_that_a_profile_needs_is_asked_for(tmp_path):
    with pytest.raises(UsageError, match="needs a folder at /models/model") as caught:
        place(None, OCTAVE, model=None, drafter=None, local=True)
    assert "--model" in caught.value.hint
    with pytest.raises(UsageError, match="needs a folder at /models/drafter"):
        place(None, DFLASH, model=tmp_path, drafter=None, local=True)


def test_a_drafter_is_mounted_beside_its_model(tmp_path):
    model, drafter = checkpoint(tmp_path / "m"), checkpoint(tmp_path / "d")
    spec = container_spec(DFLASH, image(1), "r", Placement(model=model, drafter=drafter))
    assert spec.mounts == {model: ("/models/model", True), drafter: ("/models/drafter", True)}


def test_a_folder_on_another_machine_is_mounted_unseen(tmp_path):
    spec = container_spec(OCTAVE, image(1), "r", Placement(model=tmp_path / "there", local=False))
    assert spec.mounts == {tmp_path / "there": ("/models/model", True)}


def test_without_a_size_the_hosts_shared_memory_is_used(tmp_path):
    spec = container_spec(OCTAVE.model_copy(update={"shm_bytes": None}), image(1), "r", Placement())
    assert (spec.host_ipc, spec.shm_bytes) == (True, None)


def test_a_profiles_own_variables_win_over_the_cache_folders():
    own = OCTAVE.model_copy(update={"environment": {"TRITON_CACHE_DIR": "/elsewhere"}})
    assert container_spec(own, image(1), "r", Placement()).environment["TRITON_CACHE_DIR"] == "/elsewhere"


@pytest.mark.parametrize(
    ("user", "numbers"), [("10001:10002", (10001, 10002)), ("10001", (10001, 10001)), ("", (0, 0)), ("engine", (0, 0))]
)
def test_the_owner_of_the_cache_is_the_images_user(user, numbers):
    assert owner(image(1, user=user)) == numbers
