"""The static linker: what it reads equals what pyelftools reads, and what it finds is what ld.so would find."""

import _ctypes
import os
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_libraries import shared

from builder.verify.dynamic import Elf, readable
from builder.verify.linking import Linker, configured

MANGLED = "_ZN3c103hip19getCurrentHIPStreamEa"
OLDER = "_ZN3c103hip19getCurrentHIPStreamEs"


def written(folder, **libraries):
    """Write libraries as ``<name>.so`` and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in libraries.items():
        (folder / f"{name}.so").write_bytes(data)
    return folder


def row(site, name="engine", **given):
    linker = Linker(str(site), **{"library_path": "", "interpreter": None, "in_place": True, **given})
    return linker.report([str(site / f"{name}.so")])[str(site / f"{name}.so")]


def real_libraries():
    """Return the running Python, one of its extensions, and what both are linked with."""
    linker = Linker("/nowhere", library_path="", interpreter=None, in_place=True)
    files = [os.path.realpath(sys.executable), _ctypes.__file__]
    return sorted({found.path for path in files for found in linker._closure(Elf(path))[0]})


@pytest.mark.parametrize("path", real_libraries(), ids=lambda path: Path(path).name)
def test_a_real_library_is_read_as_pyelftools_reads_it(path):
    ours = Elf(path)
    with Path(path).open("rb") as file:
        theirs = ELFFile(file)
        tags = theirs.get_section_by_name(".dynamic").iter_tags()
        assert ours.needed == [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
        symbols = [one for one in theirs.get_section_by_name(".dynsym").iter_symbols() if one.name]
        free = {
            one.name for one in symbols if one["st_shndx"] == "SHN_UNDEF" and one["st_info"]["bind"] == "STB_GLOBAL"
        }
        assert ours.undefined() == free
        brought = {
            one.name for one in symbols if one["st_shndx"] != "SHN_UNDEF" and one["st_info"]["bind"] != "STB_LOCAL"
        }
        assert ours.exported(brought | {"nobody_exports_this"}) == brought
        made = theirs.get_section_by_name(".gnu.version_d")
        assert ours.versions == ({next(names).name for _, names in made.iter_versions()} if made else set())
        asked = theirs.get_section_by_name(".gnu.version_r")
        rows = asked.iter_versions() if asked else ()
        assert ours.wanted_versions == {one.name: [name.name for name in names] for one, names in rows}


def test_the_running_python_and_its_extensions_resolve():
    report = Linker("/nowhere", library_path="", interpreter=os.path.realpath(sys.executable), in_place=True).report(
        [_ctypes.__file__]
    )
    found = report[_ctypes.__file__]
    assert (found["missing"], found["versions"], found["unresolved"], found["run_paths"]) == ([], [], [], [])


def test_a_library_that_is_nowhere_is_named_with_who_needs_it(tmp_path):
    site = written(tmp_path, engine=shared(needed=["libfar.so"]))
    assert row(site)["missing"] == [f"libfar.so, needed by {site}/engine.so"]


def test_what_a_needed_library_needs_is_looked_for_too(tmp_path):
    near = written(tmp_path / "lib", libnear=shared(needed=["libfar.so"]))
    site = written(tmp_path, engine=shared(needed=["libnear.so"], runpath="$ORIGIN/lib"))
    assert row(site)["missing"] == [f"libfar.so, needed by {near}/libnear.so"]


def test_an_unresolved_symbol_is_named_readably_with_its_kindred(tmp_path):
    written(tmp_path / "torch/lib", libtorch=shared(exported=[OLDER]))
    site = written(tmp_path, engine=shared(needed=["libtorch.so"], undefined=[MANGLED]))
    (fault,) = row(site)["unresolved"]
    assert fault["name"] == "c10::hip::getCurrentHIPStream"
    assert fault["kindred"] == [f"{OLDER} of libtorch.so"]


def test_a_symbol_that_a_needed_library_brings_is_resolved_and_a_weak_one_may_stay(tmp_path):
    written(tmp_path / "torch/lib", libtorch=shared(exported=[MANGLED]))
    site = written(tmp_path, engine=shared(needed=["libtorch.so"], undefined=[MANGLED], weak=["maybe"]))
    assert row(site)["unresolved"] == []


def test_a_symbol_of_a_library_that_is_not_needed_does_not_count(tmp_path):
    site = written(tmp_path, engine=shared(undefined=["helper"]), other=shared(exported=["helper"]))
    assert [fault["symbol"] for fault in row(site)["unresolved"]] == ["helper"]


def test_many_unresolved_symbols_are_counted(tmp_path):
    site = written(tmp_path, engine=shared(undefined=[f"f{number}" for number in range(30)]))
    faults = row(site)["unresolved"]
    assert (len(faults), faults[-1]["symbol"]) == (21, "10 more")


def test_a_version_that_the_library_does_not_have_is_named(tmp_path):
    written(tmp_path / "torch/lib", libc=shared(soname="libc.so", versions=["libc.so", "GLIBC_2.36"]))
    site = written(
        tmp_path, engine=shared(needed=["libc.so"], wanted_versions={"libc.so": ["GLIBC_2.36", "GLIBC_2.39"]})
    )
    (fault,) = row(site)["versions"]
    assert fault.startswith("GLIBC_2.39 of libc.so")


@pytest.mark.parametrize(
    ("place", "entry"),
    [("own", {"rpath": "$ORIGIN/own"}), ("own", {"runpath": "${ORIGIN}/own"}), ("env", {}), ("torch/lib", {})],
    ids=["rpath", "runpath", "LD_LIBRARY_PATH", "loaded by torch"],
)
def test_a_library_is_found_where_the_dynamic_linker_looks(tmp_path, place, entry):
    written(tmp_path / place, libnear=shared(exported=["f"]))
    site = written(tmp_path, engine=shared(needed=["libnear.so"], undefined=["f"], **entry))
    assert row(site, library_path=f"{tmp_path}/env")["unresolved"] == []


def test_the_run_path_of_the_one_that_needs_it_comes_before_that_of_torch(tmp_path):
    written(tmp_path / "own", libnear=shared(exported=["f"]))
    written(tmp_path / "torch/lib", libnear=shared())
    site = written(tmp_path, engine=shared(needed=["libnear.so"], undefined=["f"], runpath="$ORIGIN/own"))
    assert row(site)["unresolved"] == []


def test_a_library_for_another_machine_is_passed_over(tmp_path):
    written(tmp_path / "own", libnear=shared(machine=183))
    written(tmp_path / "torch/lib", libnear=shared(exported=["f"]))
    site = written(tmp_path, engine=shared(needed=["libnear.so"], undefined=["f"], runpath="$ORIGIN/own"))
    assert row(site)["unresolved"] == []


def test_libraries_that_need_each_other_end(tmp_path):
    written(tmp_path / "torch/lib", one=shared(needed=["two.so"]), two=shared(needed=["one.so"]))
    site = written(tmp_path, engine=shared(needed=["one.so"]))
    assert row(site)["missing"] == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("/build/torch/lib", "is no folder of the image"),
        ("lib", "where the program is started"),
        ("$ORIGIN/../lib:", "'(empty)' is looked for"),
        ("/tmp", "everybody may write to"),
    ],
)
def test_a_run_path_that_leaves_the_image_is_told(tmp_path, entry, words):
    faults = row(written(tmp_path, engine=shared(runpath=entry)))["run_paths"]
    assert [words in fault for fault in faults] == [True]


@pytest.mark.parametrize(
    ("entry", "faults"),
    [
        ("$ORIGIN/../torch/lib:/opt/rocm/lib", 0),
        ("$ORIGIN/../../torch/lib", 0),
        ("/home/builder/torch/lib", 1),
        ("/opt/rocm-evil", 1),
    ],
)
def test_a_run_path_of_a_wheel_names_no_folder_of_its_builder(tmp_path, entry, faults):
    site = written(tmp_path / "engine", _C=shared(rpath=entry)).parent
    linker = Linker(str(site), library_path="", interpreter=None, in_place=False)
    path = f"{site}/engine/_C.so"
    assert len(linker.report([path])[path]["run_paths"]) == faults


def test_the_folders_of_ld_so_conf_are_those_of_the_files_that_it_includes(tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/rocm.conf").write_text("/opt/rocm/lib\n")
    main = tmp_path / "ld.so.conf"
    main.write_text("# ours\ninclude conf.d/*.conf\n/usr/local/lib\n")
    assert configured(str(main)) == ["/opt/rocm/lib", "/usr/local/lib"]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (MANGLED, "c10::hip::getCurrentHIPStream"),
        ("_ZNK3c106SymInt4sizeEv", "c10::SymInt::size"),
        ("_ZNSt6vectorIiE4sizeEv", "std::vector"),
        ("_Z4gemmPf", "gemm"),
        ("hipMalloc", "hipMalloc"),
        ("_ZTI3Foo", "_ZTI3Foo"),
    ],
)
def test_a_symbol_is_shown_with_its_name(symbol, name):
    assert readable(symbol) == name


def test_a_table_that_is_not_in_the_file_is_told_when_the_library_is_read(tmp_path):
    whole = shared(exported=["g"])
    (tmp_path / "short.so").write_bytes(whole[:64] + whole[-64 * 4 :])
    with pytest.raises(ValueError, match="are not in the file"):
        Elf(str(tmp_path / "short.so"))


@given(st.binary(max_size=400), st.integers(0, 399))
@example(noise=bytes(14) + b"\3", at=395)
@settings(max_examples=60, deadline=None)
def test_damage_never_ends_in_anything_but_a_value_error(tmp_path_factory, noise, at):
    whole = shared(needed=["a.so"], undefined=["f"], exported=["g"], versions=["v"], wanted_versions={"a.so": ["w"]})
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    linker = Linker(str(path.parent), library_path="", interpreter=None, in_place=True)
    assert linker.report([str(path)]).keys() == {str(path)}
