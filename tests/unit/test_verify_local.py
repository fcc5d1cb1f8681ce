"""Verifying what is no image: wheels, folders of packages, single libraries, and their broken twins."""

import json
import os
import sys
import zipfile

import pytest
from made_libraries import shared
from made_objects import GFX942, ID, bundle, code_object, fat_library, kernel
from typer.testing import CliRunner

from builder.cli import app, main
from builder.errors import UsageError, VerifyError
from builder.models.stack import load_stack
from builder.verify import local
from builder.verify.local import verify_path

ROOT = local.Path(__file__).parents[2]
OURS = fat_library(bundle((ID, code_object(kernel("copy")))))
THEIRS = fat_library(bundle(("hipv4-amdgcn-amd-amdhsa--gfx942", code_object(kernel("copy"), mach=GFX942))))
METADATA = "Metadata-Version: 2.1\nName: smoke-engine\nVersion: {}\n"


def pin():
    from builder.models.lock import load_lock

    return load_lock(ROOT, "smoke").version


def files(library=OURS, version=None, **more):
    return {
        "smoke_engine/__init__.py": b"",
        "smoke_engine/_C.gfx1100.so": library,
        "smoke_engine-1.dist-info/METADATA": METADATA.format(version or pin()).encode(),
        **more,
    }


def wheel(folder, content):
    path = folder / "smoke_engine-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def site(folder, content):
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def statuses(path, **options):
    found = verify_path(path, root=ROOT, **options)
    return {check.id: check.status for check in found.verification.checks}


@pytest.mark.parametrize("make", [wheel, site])
@pytest.mark.parametrize("stack", [None, "smoke"])
def test_a_good_wheel_or_folder_passes(tmp_path, make, stack):
    found = verify_path(make(tmp_path, files()), root=ROOT, stack=stack, skip=["wheel-files"])
    assert found.verification.verdict == "ok", found.verification.checks
    assert [(row["path"], row["archs"], row["bundles"]) for row in found.objects] == [
        ("smoke_engine/_C.gfx1100.so", ["gfx1100"], 1)
    ]


BROKEN = [
    ("code-objects", None, files(THEIRS)),
    ("code-objects", "smoke", files(shared())),
    ("code-objects", "smoke", {name: data for name, data in files().items() if not name.endswith(".so")}),
    ("foreign-archs", None, files(**{"smoke_engine/k_gfx90a.hsaco": code_object(kernel())})),
    ("run-paths", "smoke", files(**{"smoke_engine/_D.so": shared(rpath="/home/builder/torch/lib")})),
    ("symbols", "smoke", files(**{"smoke_engine/_D.so": shared(undefined=["nobody_brings_this"])})),
    ("version", "smoke", files(version="0.1.dev1")),
    ("cuda-packages", None, files(**{"nvidia_x-1.dist-info/METADATA": b"Name: nvidia-x\nVersion: 1\n"})),
    ("version-leak", "smoke", files(**{"o-1.dist-info/METADATA": f"Name: o\nVersion: {pin()}\n".encode()})),
    (
        "libamd-smi",
        None,
        files(**{"amdsmi/libamd_smi.so": shared(), "torch/lib/libamd_smi.so": shared()}),
    ),
    (
        "wheel-files",
        "smoke",
        files(**{"smoke_engine-1.dist-info/RECORD": b"smoke_engine/__init__.py,sha256=AAAA,0\n"}),
    ),
]


@pytest.mark.parametrize("make", [wheel, site])
@pytest.mark.parametrize(("identity", "stack", "content"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_twin_of_a_wheel_or_folder_fails_its_check(tmp_path, make, identity, stack, content):
    assert statuses(make(tmp_path, content), stack=stack)[identity] == "failed"


def test_what_a_wheel_needs_from_an_image_is_not_called_missing(tmp_path):
    library = shared(needed=["libtorch.so"], undefined=["_ZN2at5emptyEv", "PyErr_Occurred"])
    found = statuses(wheel(tmp_path, files(**{"smoke_engine/_D.so": library})), stack="smoke")
    assert (found["needed"], found["symbols"]) == ("skipped", "skipped")


def test_what_a_folder_of_packages_needs_must_be_there(tmp_path):
    library = shared(needed=["libtorch.so"])
    assert statuses(site(tmp_path, files(**{"smoke_engine/_D.so": library})), stack="smoke")["needed"] == "failed"


def test_python_brings_its_own_symbols(tmp_path):
    content = files(**{"smoke_engine/_D.so": shared(undefined=["PyErr_Occurred", "_Py_Dealloc"])})
    assert statuses(site(tmp_path, content), stack="smoke")["symbols"] == "ok"


def test_a_folder_in_which_two_own_triton_fails(tmp_path):
    twice = {
        f"{name}-1.dist-info/{file}": data
        for name in ("triton", "triton_rocm")
        for file, data in (("METADATA", f"Name: {name}\nVersion: 1\n".encode()), ("RECORD", b"triton/__init__.py,,\n"))
    }
    assert statuses(site(tmp_path, twice))["owners"] == "failed"


@pytest.mark.parametrize(("data", "status"), [(OURS, "ok"), (THEIRS, "failed"), (shared(), "skipped")])
def test_one_library_is_judged_by_its_code_objects(tmp_path, data, status):
    (tmp_path / "a.so").write_bytes(data)
    assert statuses(tmp_path / "a.so")["code-objects"] == status


def test_a_bare_code_object_is_no_host_library(tmp_path):
    (tmp_path / "k.hsaco").write_bytes(code_object(kernel()))
    found = statuses(tmp_path / "k.hsaco")
    assert (found["code-objects"], found["needed"]) == ("ok", "skipped")


def test_any_other_file_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("# hello\n")
    with pytest.raises(UsageError, match="no wheel, no shared object"):
        verify_path(tmp_path / "README.md", root=ROOT)


@pytest.mark.parametrize("make", [wheel, site])
@pytest.mark.parametrize("content", [{}, {"readme.txt": b"hello\n", "a/b.py": b""}], ids=["empty", "no library"])
def test_where_nothing_is_there_to_check_the_verdict_is_not_ok(tmp_path, make, content):
    with pytest.raises((VerifyError, UsageError), match=r"nothing is there to check|is no wheel"):
        verify_path(make(tmp_path, content), root=ROOT)


def test_a_folder_with_a_host_library_alone_has_something_to_check(tmp_path):
    assert statuses(site(tmp_path, {"a/b.so": shared()}))["foreign-archs"] == "ok"


def test_checks_that_were_all_skipped_are_no_verdict(tmp_path):
    (tmp_path / "k.hsaco").write_bytes(code_object(kernel()))
    with pytest.raises(VerifyError, match="nothing was checked"):
        verify_path(tmp_path / "k.hsaco", root=ROOT, only=["needed"])


@pytest.mark.parametrize("name", ["/nowhere/site", "./nowhere", "../nowhere/x", "x-1-py3-none-any.whl", "lib/_C.so"])
def test_a_path_to_nothing_is_told_before_any_engine_is_asked(monkeypatch, name):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = CliRunner().invoke(app, ["--root", str(ROOT), "verify", name])
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == f"{name} is not there"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.whl")
    with pytest.raises(UsageError, match="no regular file and no folder"):
        verify_path(tmp_path / "p.whl", root=ROOT)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a/_C.so", b"\x7fELF" + bytes(300 << 20))
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(VerifyError, match="unpacks to 314572804 bytes"):
        verify_path(path, root=ROOT)


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py"])
def test_a_wheel_that_would_write_outside_is_refused(tmp_path, name):
    with pytest.raises(VerifyError, match="does not stay inside"):
        verify_path(wheel(tmp_path, files(**{name: b"x"})), root=ROOT)
    assert not (tmp_path.parent / "out.py").exists()


def test_a_wheel_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "UNPACKED_LIMIT", 1000)
    with pytest.raises(VerifyError, match="unpacks to more than 1000 bytes"):
        verify_path(wheel(tmp_path, files(**{"a.txt": bytes(2000)})), root=ROOT)


def test_a_wheel_with_one_name_twice_is_refused(tmp_path):
    path = wheel(tmp_path, files())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("smoke_engine/__init__.py", b"evil")
    with pytest.raises(VerifyError, match="the wheel is damaged"):
        verify_path(path, root=ROOT)


def test_a_truncated_wheel_is_told(tmp_path):
    path = wheel(tmp_path, files())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(VerifyError, match="the wheel is damaged"):
        verify_path(path, root=ROOT)


def test_the_command_tells_scripts_the_verdict_and_the_objects(tmp_path, monkeypatch, capsys):
    words = ["gfx1100", "--json", "--root", str(ROOT), "verify", str(wheel(tmp_path, files()))]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    told = json.loads(capsys.readouterr().out)
    assert (end.value.code, told["verdict"]) == (0, "ok")
    assert told["objects"][0]["archs"] == ["gfx1100"]


def test_the_command_says_what_a_failure_means_and_what_to_do(tmp_path):
    path = wheel(tmp_path, files(THEIRS))
    result = CliRunner().invoke(app, ["--root", str(ROOT), "verify", str(path), "--only", "code-objects"])
    assert isinstance(result.exception, VerifyError)
    assert "holds code for gfx942" in result.stdout
    assert "means: the card refuses it" in result.stdout
    assert "do: PYTORCH_ROCM_ARCH" in result.stdout


def test_the_stack_must_be_known(tmp_path):
    with pytest.raises(UsageError, match="there is no stack"):
        verify_path(tmp_path, root=ROOT, stack="smoky")


def test_the_smoke_stack_says_what_is_expected():
    stack = load_stack(ROOT, "smoke")
    assert stack.budget is not None
    assert stack.expect.installed
