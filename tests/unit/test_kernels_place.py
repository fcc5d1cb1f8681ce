"""A compiler in an image says what it would say here; an answer that is not whole is never taken for one."""

import random

import pytest
from fake_engine import FakeEngine
from packed_answer import packed

from builder.engine.port import Output
from builder.errors import BuildError, VerifyError
from builder.kernels import place as station
from builder.kernels.hip import hipcc_in
from builder.kernels.place import Here, InImage
from builder.kernels.triton import triton_in

BITCODE = '"-mlink-builtin-bitcode" "/opt/rocm/amdgcn/bitcode/oclc_isa_version_1100.bc"'
VERSION = "AMD clang version 22.0.0\nTarget: x86_64\n"
LONG = "".join(random.Random(1).choices("abcdefgh \n", k=20_000))


def place(text, status=0, said=""):
    engine = FakeEngine()
    engine.answer = Output(returncode=status, stdout=text, stderr=said)
    return InImage(engine=engine, image="sha256:1")


def test_what_a_program_said_and_wrote_in_an_image_comes_back():
    ran = place(packed(3, stdout="a\n", stderr="b\n", kernel_s=LONG)).run(["hipcc"], timeout=1)

    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "a\n", "b\n")
    assert ran.files == {"kernel.s": LONG.encode()}


def test_the_tree_and_the_files_go_into_the_container(tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/a.hip").write_text("a")
    where = place(packed())

    where.run(["hipcc"], timeout=1, tree=tmp_path, files={"job.json": b"{}"})

    assert where.engine.calls == [
        ("run_once", {"/gfx1100-kernels/tree/csrc/a.hip": b"a", "/gfx1100-kernels/job.json": b"{}"})
    ]


@pytest.mark.parametrize("cut", [slice(76 * 20, None), slice(0, 76 * 100), slice(0, -9), slice(0, 0)])
def test_an_answer_that_lost_its_beginning_or_its_end_is_none(cut):
    whole = packed(kernel_s=LONG)

    with pytest.raises(BuildError, match="`hipcc` in the image sha256:1 wrote did not arrive whole"):
        place(whole[cut]).run(["hipcc"], timeout=1)


def test_an_image_without_a_shell_is_told_by_the_engines_word():
    with pytest.raises(BuildError, match=r"did not arrive whole: exec: \"sh\": not found \(status 127\)"):
        place("", 127, 'exec: "sh": not found').run(["hipcc"], timeout=1)


def test_an_answer_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(station, "LIMIT", 10 << 10)

    with pytest.raises(BuildError, match="did not arrive whole"):
        place(packed(kernel_s=LONG)).run(["hipcc"], timeout=1)


def test_a_compiler_that_does_not_end_is_a_failed_build():
    class Slow(FakeEngine):
        def run_once(self, *_, **__):
            raise VerifyError("`sh` in x did not end within 1 s and was killed")

    with pytest.raises(BuildError, match=r"^`hipcc` in the image x did not end within 1 s$"):
        InImage(engine=Slow(), image="x").run(["hipcc"], timeout=1)


def test_on_this_host_a_program_sees_the_same_folder(tmp_path):
    (tmp_path / "a.hip").write_text("source")

    ran = Here().run(
        ["sh", "-c", "cat tree/a.hip deep/job > out/both; echo said; exit 4"],
        timeout=10,
        tree=tmp_path,
        files={"deep/job": b" and job"},
    )

    assert (ran.returncode, ran.stdout, ran.files) == (4, "said\n", {"both": b"source and job"})


def test_the_images_hipcc_is_taken_with_the_bitcode_that_it_links():
    found = hipcc_in(place(packed(stderr=f"{VERSION} {BITCODE}")))

    assert (found.clang, found.version, str(found.bitcode)) == (
        "hipcc",
        "AMD clang version 22.0.0",
        "/opt/rocm/amdgcn/bitcode",
    )
    assert found.options == ()


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (127, "sh: 9: hipcc: not found", "hipcc: not found"),
        (0, VERSION, "with the device bitcode"),
        (1, f"{VERSION}error: cannot find ROCm device library; {BITCODE}", "error: cannot find ROCm device library"),
    ],
)
def test_a_hipcc_that_links_no_bitcode_is_refused(status, said, told):
    with pytest.raises(BuildError, match=told):
        hipcc_in(place(packed(status, stderr=said)))


def test_an_image_has_a_triton_or_none_and_a_broken_one_is_an_error():
    has, has_none, no_python, broken = (
        place(packed(status, stdout=said, stderr=wrong))
        for status, said, wrong in [
            (0, "3.7.1\n", ""),
            (1, "", "ModuleNotFoundError: No module named 'triton'"),
            (127, "", "sh: 9: python3: not found"),
            (1, "", "ImportError: libtriton.so: cannot open shared object file"),
        ]
    )

    found = triton_in(has)
    assert found is not None
    assert (found.version, found.place) == ("3.7.1", has)
    assert triton_in(has_none) is None
    assert triton_in(no_python) is None
    with pytest.raises(BuildError, match=r"Triton of the build does not work: ImportError: libtriton\.so"):
        triton_in(broken)
