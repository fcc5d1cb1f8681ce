"""Code objects are found and described, whatever they are wrapped in."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import made_objects as made
import pytest

from builder.errors import UsageError, VerifyError
from builder.objects import read_library, survey


def spilling():
    return made.code_object(made.kernel("decode", vgpr_count=192, vgpr_spill_count=48, sgpr_spill_count=3))


def test_every_bundle_of_a_section_is_read_with_the_figures_of_its_kernels():
    host = made.fat_library(
        made.bundle((made.ID, made.code_object(made.kernel("copy"), made.kernel("fill", wavefront_size=64)))),
        made.bundle((made.ID, spilling())),
    )

    library = read_library(host, name="libops.so")

    assert (library.path, library.bundles, library.archs) == ("libops.so", 2, ("gfx1100",))
    assert [kernel.name for kernel in library.kernels] == ["copy", "fill", "decode"]
    decode = library.kernels[2]
    assert (decode.vgpr, decode.sgpr, decode.lds_bytes, decode.scratch_bytes) == (192, 20, 1024, 0)
    assert (decode.vgpr_spills, decode.sgpr_spills, decode.wavefront) == (48, 3, 32)
    assert host[library.objects[1].at :][:4] == b"\x7fELF"
    assert library.row() == {
        "path": "libops.so",
        "bundles": 2,
        "archs": ["gfx1100"],
        "kernels": 3,
        "spilling": 1,
        "elsewhere": False,
    }


@pytest.mark.parametrize("align", [1, 8, 256, 4096])
def test_bundles_are_found_at_any_alignment(align):
    item = made.bundle((made.ID, made.code_object(made.kernel())), align=align)

    library = read_library(made.library({".hip_fatbin": made.section(item, item, item, align=align)}))

    assert library.bundles == 3


@pytest.mark.parametrize("method", ["zlib", "zstd"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_compressed_bundle_reads_like_a_plain_one(version, method):
    plain = made.bundle((made.ID, spilling()))
    squeezed = made.compressed(plain, version=version, method=method)

    library = read_library(made.fat_library(squeezed, plain, squeezed))

    assert (library.bundles, len(library.objects)) == (3, 3)
    assert {kernel.vgpr_spills for kernel in library.kernels} == {48}


def test_all_processors_of_a_bundle_are_named_and_the_host_is_not():
    item = made.bundle(
        (made.ID, made.code_object(made.kernel())),
        ("hipv4-amdgcn-amd-amdhsa--gfx942", made.code_object(made.kernel(), mach=made.GFX942)),
    )

    assert read_library(made.fat_library(item)).archs == ("gfx1100", "gfx942")


@pytest.mark.parametrize(("abi", "flags"), [(2, 0x500), (3, 0xE00), (4, 0x0100_0B00), (1, 0x300)])
def test_the_processor_is_told_from_the_features_beside_it(abi, flags):
    code = made.code_object(mach=made.GFX90A, flags=flags, abi=abi)

    assert read_library(code).archs == ("gfx90a",)


@pytest.mark.parametrize(
    ("mach", "arch"),
    [
        (0x20, "gfx600"),
        (0x2F, "gfx906"),
        (0x41, "gfx1100"),
        (0x46, "gfx1101"),
        (0x4A, "gfx1151"),
        (0x4E, "gfx1201"),
        (0x54, "gfx11-generic"),
        (0x5F, "gfx9-4-generic"),
        (0x63, "gfx13-generic"),
        (0x27, "amdgpu-0x27"),
        (0xFE, "amdgpu-0xfe"),
    ],
)
def test_the_processor_comes_from_the_flags_and_an_unknown_one_keeps_its_number(mach, arch):
    assert read_library(made.code_object(mach=mach)).archs == (arch,)


def test_a_processor_newer_than_the_table_is_known_by_its_bundle_entry():
    item = made.bundle(("hipv4-amdgcn-amd-amdhsa--gfx1399:xnack+", made.code_object(mach=0xEE)))

    assert read_library(item).archs == ("gfx1399",)


def test_an_entry_that_names_another_processor_than_its_code_is_refused():
    item = made.bundle((made.ID, made.code_object(mach=made.GFX942)))

    with pytest.raises(VerifyError, match=r"lib\.so, bundle 0.*gfx1100' holds code for gfx942"):
        read_library(item, name="lib.so")


@pytest.mark.parametrize("code", [b"BC\xc0\xde" + bytes(20), b"\x03\x02\x23\x07" + bytes(20)])
def test_bitcode_counts_for_its_entry_and_has_no_kernels(code):
    library = read_library(made.bundle(("hip-spirv64-amd-amdhsa--amdgcnspirv", code)))

    assert (library.archs, library.kernels) == (("amdgcnspirv",), ())


def test_a_bare_code_object_and_a_bundle_file_need_no_host_library():
    code = made.code_object(made.kernel("copy"))

    assert (read_library(code).bundles, read_library(code).archs) == (0, ("gfx1100",))
    assert read_library(made.bundle((made.ID, code))).bundles == 1


def test_a_host_library_without_device_code_is_named_with_none(tmp_path):
    path = tmp_path / "libc10.so"
    path.write_bytes(made.library({".text": b"\xc3"}))

    (library,) = survey(path)

    assert (library.bundles, library.archs, library.objects) == (0, (), ())


def test_a_split_library_says_that_its_code_is_elsewhere():
    library = read_library(made.library({".hip_fatbin": bytes(8192), ".rocm_kpack_ref": b"\x81"}))

    assert (library.elsewhere, library.bundles) == (True, 0)


def test_a_section_that_was_wiped_is_a_fault():
    with pytest.raises(VerifyError, match="holds no bundle"):
        read_library(made.library({".hip_fatbin": bytes(8192)}))


def test_a_folder_lists_the_files_with_device_code_in_order_and_follows_no_link(tmp_path):
    site = tmp_path / "site-packages"
    (site / "engine").mkdir(parents=True)
    (site / "engine" / "_C.so").write_bytes(made.fat_library(made.bundle((made.ID, spilling()))))
    (site / "engine" / "host.so").write_bytes(made.library({".text": b"\xc3"}))
    (site / "engine" / "notes.txt").write_text("\x7f no object")
    (site / "a.hsaco").write_bytes(made.code_object())
    (site / "link.so").symlink_to(tmp_path / "outside.so")
    (site / "away").symlink_to(tmp_path)
    (tmp_path / "outside.so").write_bytes(made.code_object(mach=made.GFX942))
    os.mkfifo(site / "pipe.so")

    assert [(library.path, library.archs) for library in survey(site)] == [
        ("a.hsaco", ("gfx1100",)),
        ("engine/_C.so", ("gfx1100",)),
    ]


def test_a_wheel_lists_its_members(tmp_path):
    wheel = tmp_path / "kernels-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ops/__init__.py", "import os")
        archive.writestr("ops/_C.so", made.fat_library(made.bundle((made.ID, made.code_object()))))
        archive.writestr("ops/host.so", made.library({".text": b"\xc3"}))

    assert [library.row() for library in survey(wheel)] == [
        {"path": "ops/_C.so", "bundles": 1, "archs": ["gfx1100"], "kernels": 0, "spilling": 0, "elsewhere": False}
    ]


def test_a_path_that_is_not_there_is_a_wrong_argument(tmp_path):
    for read in (survey, read_library):
        with pytest.raises(UsageError, match=r"nothing\.so cannot be read: No such file"):
            read(tmp_path / "nothing.so")


def test_a_damaged_file_in_a_folder_is_named_with_its_place(tmp_path):
    good = made.fat_library(made.bundle((made.ID, made.code_object())))
    (tmp_path / "broken.so").write_bytes(good[:-100])

    with pytest.raises(VerifyError, match=r"broken\.so, byte 0x"):
        survey(tmp_path)


def test_the_section_may_have_a_longer_name_and_stand_twice():
    item = made.bundle((made.ID, made.code_object()))
    library = read_library(
        made.library({".hip_fatbin": item, ".hip_fatbin.rest": item, ".hipFatBinSegment": b"x" * 24})
    )

    assert (library.bundles, len(library.objects)) == (2, 2)


def test_a_library_is_read_from_disk_as_from_memory(tmp_path: Path):
    content = made.fat_library(made.compressed(made.bundle((made.ID, spilling()))))
    path = tmp_path / "lib.so"
    path.write_bytes(content)

    assert read_library(path, name="lib.so") == read_library(content, name="lib.so")
