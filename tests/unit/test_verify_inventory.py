"""The inventory of an image's files: foreign GPUs, copies of a library, private files, certificates, hashes."""

import base64
import hashlib
import json

import pytest
from made_libraries import shared

from builder.verify import inventory

PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


def put(root, *names, content=b"x"):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@pytest.mark.parametrize(
    "name",
    [
        "rocblas/library/TensileLibrary_Type_HH_gfx90a.dat",
        "hipblaslt/library/extop_gfx942.co",
        "miopen/db/gfx90878.db",
        "aiter/hsa/gfx942/fmha.co",
        "lib/gfx9-4-generic.hsaco",
        "gfx1101.kdb",
        "aotriton.images/amd-gfx90x/flash.aks2",
    ],
)
def test_a_file_that_is_named_after_another_card_is_foreign(name):
    assert inventory.is_foreign(name, "gfx1100")


@pytest.mark.parametrize(
    "name",
    [
        "rocblas/library/TensileLibrary_Type_HH_gfx1100.dat",
        "miopen/db/gfx1100_96.fdb.txt",
        "lib/gfx11-generic.hsaco",
        "aotriton.images/amd-gfx11xx/flash.aks2",
        "aotriton.images/amd-gfx110x/flash.aks2",
        "aiter/ops/gfx942/tune.py",
        "rocblas/library/TensileManifest.txt",
        "configs/gfx950.json",
        "libgfxutil.so",
    ],
)
def test_a_file_of_this_card_of_its_family_or_a_source_is_not(name):
    assert not inventory.is_foreign(name, "gfx1100")


def test_foreign_files_are_counted_each_once_and_the_first_are_shown(tmp_path):
    put(tmp_path, *[f"lib/{number}_gfx90a.co" for number in range(60)])
    (tmp_path / "lib/link_gfx942.co").symlink_to("0_gfx90a.co")
    found, _ = inventory.walk((str(tmp_path), str(tmp_path / "lib"), "/nowhere"), "gfx1100")
    assert (found["count"], found["bytes"], len(found["files"])) == (60, 60, 50)


def test_what_a_base_brings_is_counted_apart(tmp_path):
    put(tmp_path, "rocm/a_gfx90a.co", "venv/a_gfx90a.co")
    found, _ = inventory.walk((str(tmp_path),), "gfx1100", (f"{tmp_path}/rocm",))
    assert (found["count"], found["spared"], found["files"]) == (1, 1, [f"{tmp_path}/venv/a_gfx90a.co"])


def test_a_host_library_that_is_named_after_a_card_is_not_its_code(tmp_path):
    put(tmp_path, "libtune_gfx90a.so", content=shared())
    assert inventory.walk((str(tmp_path),), "gfx1100")[0]["count"] == 0


def test_the_name_of_the_folder_above_does_not_count(tmp_path):
    put(tmp_path / "gfx942-build", "a.so")
    assert inventory.walk((str(tmp_path / "gfx942-build"),), "gfx1100")[0]["count"] == 0


def test_two_copies_of_libamd_smi_are_found_and_links_are_none(tmp_path):
    put(tmp_path, "rocm/libamd_smi.so.26", "torch/lib/libamd_smi.so")
    (tmp_path / "rocm/libamd_smi.so").symlink_to("libamd_smi.so.26")
    (tmp_path / "rocm/libamd_smi.so.1").hardlink_to(tmp_path / "rocm/libamd_smi.so.26")
    assert len(inventory.walk((str(tmp_path),), "gfx1100")[1]) == 2


def test_files_of_the_builder_are_found_and_empty_ones_are_not(tmp_path, monkeypatch):
    put(tmp_path, "netrc", content=b"machine x")
    put(tmp_path, "pip.conf", content=b"")
    monkeypatch.setattr(inventory, "PRIVATE", {f"{tmp_path}/netrc {tmp_path}/pip.conf": "logins"})
    assert inventory.private_files() == [{"path": f"{tmp_path}/netrc", "what": "logins"}]


@pytest.fixture
def certificates(tmp_path, monkeypatch):
    """Return a function that writes the system's bundle, beside a package that brought one certificate."""
    monkeypatch.setattr(inventory, "BUNDLE", str(tmp_path / "bundle.crt"))
    monkeypatch.setattr(inventory, "ISSUED", str(tmp_path / "issued"))
    put(tmp_path, "issued/mozilla/a.crt", content=PEM.format("QUFB\nQkJC").encode())

    def write(*bodies):
        (tmp_path / "bundle.crt").write_text("".join(map(PEM.format, bodies)))
        return inventory.foreign_certificates()

    return write


def test_a_certificate_that_no_package_brought_is_found(certificates):
    assert certificates("QUFBQkJC") == []
    (fault,) = certificates("QUFBQkJC", "Q09NUEFOWQ==")
    assert fault["what"] == "1 certificates of the builder's network"


def test_an_image_without_certificates_has_no_foreign_one(certificates):
    assert inventory.foreign_certificates() == []


def record_of(site, name, *rows):
    folder = site / f"{name}-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("".join(f"{row}\n" for row in rows))


def hashed(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def test_installed_files_are_compared_with_the_record_of_their_wheel(tmp_path):
    put(tmp_path, "engine/a.py", "engine/b.py", content=b"as built")
    rows = [f"engine/{name}.py,{hashed(b'as built')},8" for name in "abc"]
    record_of(tmp_path, "smoke_engine", *rows, '"engine/x,y.pyc",,', "smoke_engine-1.dist-info/RECORD,,")
    put(tmp_path, "engine/b.py", content=b"edited")
    found = inventory.record(str(tmp_path), "Smoke-Engine")
    assert found == {"files": 3, "wrong": ["engine/b.py", "engine/c.py"], "wrong_count": 2}


def test_a_distribution_without_a_record_names_no_file(tmp_path):
    record_of(tmp_path, "other")
    assert inventory.record(str(tmp_path), "smoke-engine")["files"] == 0


def test_the_whole_inventory_is_one_json_document(tmp_path, monkeypatch, capsys):
    put(tmp_path, "engine/__init__.py", content=b"")
    put(tmp_path, "engine/_C.so", content=shared(needed=["libfar.so"]))
    monkeypatch.setattr(inventory, "ROOTS", ())
    monkeypatch.syspath_prepend(tmp_path)
    ask = {
        "package": "engine",
        "distribution": "engine",
        "extensions": ["engine/*.so"],
        "arch": "gfx1100",
        "spared": [],
        "installed": {"src/engine/__init__.py": "engine/__init__.py", "gone.py": "engine/gone.py"},
    }
    (tmp_path / "ask.json").write_text(json.dumps(ask))
    monkeypatch.setattr(inventory.sys, "path", ["", str(tmp_path)])
    inventory.main(str(tmp_path / "ask.json"))
    told = json.loads(capsys.readouterr().out)
    assert told["installed"] == {"src/engine/__init__.py": hashlib.sha256(b"").hexdigest(), "gone.py": None}
    assert told["links"][f"{tmp_path}/engine/_C.so"]["missing"] == [f"libfar.so, needed by {tmp_path}/engine/_C.so"]
    assert told["record"]["files"] == 0
