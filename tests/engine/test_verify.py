"""Every check on a real image: the smoke image passes, and a twin that is broken in every way fails each of them."""

import runpy
from pathlib import Path

import pytest

from builder.build.image import build_image
from builder.console import Console
from builder.models.record import read_record
from builder.models.stack import Budget, Ops, Order, Wheel, load_stack
from builder.stage.inputs import series_of
from builder.verify.checks import CHECKS
from builder.verify.run import verify, verify_image

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine
NOT_IN_SMOKE = {"libamd-smi", "torch", "wheels", "ops", "import-order"}

# each line breaks one thing, or a few that belong together
DOCKERFILE = r"""
FROM {image}
USER root
WORKDIR /usr/local/lib/python3.13/dist-packages
ARG MAX_JOBS=3
RUN echo '# edited' >> /usr/share/gfx1100/patches/smoke-store.yaml
RUN sed -i 's/DEFAULT_MAX_TOKENS = 32/DEFAULT_MAX_TOKENS = 16/' smoke_engine/defaults.py
RUN cp -r smoke_engine-*.dist-info leaked-1.dist-info && sed -i 's/^Name:.*/Name: leaked/' leaked-1.dist-info/METADATA
RUN sed -i 's/^Version:.*/Version: 9/' smoke_engine-*.dist-info/METADATA
RUN sed -i 's/^wheels: \[\]/wheels: [{{name: torch, version: "2.13.0+rocm7.2", url: u, sha256: "{sha}"}}]/' \
    /usr/share/gfx1100/lock.yaml
RUN printf 'import torch\nimport amdsmi\n' >> smoke_engine/__init__.py && touch amdsmi.py
RUN mkdir -p torch/lib /opt/rocm/lib/rocblas/library \
    && printf '__version__ = "2.13.0"\ncuda = "12.8"\nhip = None\n' > torch/version.py \
    && printf 'class ops:\n    class _C:\n        qr_all_reduce = 1\n' > torch/__init__.py \
    && echo 1 > torch/lib/libamd_smi.so && echo 2 > /opt/rocm/lib/libamd_smi.so.26 \
    && echo x > /opt/rocm/lib/rocblas/library/TensileLibrary_gfx90a.dat
RUN for name in torch triton triton_rocm nvidia_cublas; do \
        mkdir $name-2.dist-info \
        && printf "Name: $name\nVersion: 2\nRequires-Dist: nobody-has-this\n" > $name-2.dist-info/METADATA \
        && echo triton/__init__.py,, > $name-2.dist-info/RECORD; done
RUN echo 'raise ImportError("broken on purpose")' > broken_module.py
RUN echo machine example.org login me > /root/.netrc && mkdir -p /etc/ssl/certs \
    && printf -- '-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n' > /etc/ssl/certs/ca-certificates.crt
COPY wrong_arch.so wrong_links.so smoke_engine/
LABEL org.opencontainers.image.revision=x
ENV SETUPTOOLS_SCM_PRETEND_VERSION=1
HEALTHCHECK CMD true
ENTRYPOINT []
CMD []
"""
BROKEN = {
    "chain": "/usr/share/gfx1100/patches/smoke-store.yaml is ",
    "labels": "revision is 'x'",
    "tags": "gfx1100-test/moved:000000000000 points at an image of the commit",
    "patches": "smoke-max-tokens: 'DEFAULT_MAX_TOKENS = 32' stands 0 times",
    "replay": "smoke_engine/defaults.py should be",
    "wheel-files": "files of smoke-engine differ from its RECORD",
    "environment": "Env holds SETUPTOOLS_SCM_PRETEND_VERSION",
    "history": "sets MAX_JOBS",
    "secrets": "/root/.netrc (logins); /etc/ssl/certs/ca-certificates.crt (1 certificates",
    "user": "the image's user is 'root'",
    "entrypoint": "the image has no entry point",
    "healthcheck": "the image declares 'CMD-SHELL true'",
    "size": "a layer may have 0.10 GB; it comes from `RUN",
    "foreign-archs": "/opt/rocm/lib/rocblas/library/TensileLibrary_gfx90a.dat",
    "imports": "broken_module: ImportError: broken on purpose",
    "ops": "_C.gemm_rdna3 is missing (rdna3); _C.qr_all_reduce is there (rdna3)",
    "import-order": "asks for torch before amdsmi",
    "libraries": "wrong_links.so: ",
    "needed": "libfar.so, needed by /usr/local/lib/python3.13/dist-packages/smoke_engine/wrong_links.so, is nowhere",
    "symbols": "c10::hip::getCurrentHIPStream (_ZN3c103hip19getCurrentHIPStreamEa)",
    "run-paths": "'/build/torch/lib' is no folder of the image",
    "libamd-smi": "2 copies: ",
    "code-objects": "wrong_arch.so holds code for gfx942",
    "version": "smoke-engine has the version 9",
    "version-leak": "leaked carry the version of smoke-engine",
    "torch": "torch 2.13.0: HIP None, CUDA 12.8",
    "wheels": "torch is 2, the lock says 2.13.0+rocm7.2",
    "cuda-packages": "nvidia_cublas 2",
    "owners": "own triton/",
    "requirements": "torch requires nobody-has-this, which is not installed",
}


def made(name):
    """Return what a module of the unit tests makes, without a compiler."""
    return runpy.run_path(str(ROOT / "tests/unit" / f"{name}.py"))


@pytest.fixture(scope="module")
def twin(engine, settings, built, tmp_path_factory):
    """Return what is found in an image that is broken in every way, verified as a stack that asks for everything."""
    folder = tmp_path_factory.mktemp("twin")
    objects, shared = made("made_objects"), made("made_libraries")["shared"]
    code = objects["code_object"](objects["kernel"](), mach=objects["GFX942"])
    wrong = objects["bundle"](("hipv4-amdgcn-amd-amdhsa--gfx942", code))
    (folder / "wrong_arch.so").write_bytes(objects["fat_library"](wrong))
    undefined = ["_ZN3c103hip19getCurrentHIPStreamEa"]
    (folder / "wrong_links.so").write_bytes(
        shared(needed=["libfar.so"], undefined=undefined, runpath="/build/torch/lib")
    )
    # a name of its own: another build of the same commit takes the one that the build gave
    engine.tag(built.image_id, "gfx1100-test/whole", "test")
    (folder / "Dockerfile").write_text(DOCKERFILE.format(image="gfx1100-test/whole:test", sha="0" * 64))
    identity = build_image(
        engine, folder, tags=(), settings=settings, jobs=1, log=folder / "log", console=Console()
    ).image_id
    engine.tag(identity, "gfx1100-test/moved", "000000000000")
    smoke = load_stack(ROOT, "smoke")
    asked = {
        "modules": ("torch", *smoke.expect.modules, "broken_module"),
        "extensions": ("smoke_engine/wrong_arch.so", "smoke_engine/wrong_links.so"),
        "ops": (Ops(name="rdna3", namespace="_C", present=("gemm_rdna3",), absent=("qr_all_reduce",)),),
        "imports": Order(module="smoke_engine", first="amdsmi", then="torch"),
    }
    stack = smoke.model_copy(
        update={
            "expect": smoke.expect.model_copy(update=asked),
            "wheels": (Wheel(name="torch", version="2.13.0+rocm7.2"),),
            "budget": Budget(image_bytes=10**12, layer_bytes=10**8),
        }
    )
    yield verify(engine, engine.image(identity), stack, series_of(ROOT, smoke)).verification
    engine.untag("gfx1100-test/moved:000000000000")
    engine.untag("gfx1100-test/whole:test")


def test_the_smoke_image_fails_no_check_and_skips_only_what_it_does_not_have(built):
    found = {check.id: check.status for check in built.verification.checks}
    assert {name for name, status in found.items() if status == "skipped"} == NOT_IN_SMOKE
    assert {name for name, status in found.items() if status == "ok"} == set(CHECKS) - NOT_IN_SMOKE


def test_every_check_has_a_broken_twin():
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.parametrize(("identity", "words"), BROKEN.items(), ids=BROKEN.keys())
def test_a_broken_twin_of_the_image_fails_its_check(twin, identity, words):
    (check,) = [check for check in twin.checks if check.id == identity]
    assert (check.status, words in check.message) == ("failed", True), check.message


def test_the_record_holds_the_hash_of_every_report_and_the_reports_are_kept(built, records):
    from builder.files import sha256

    kept = {path.name: sha256(path.read_bytes()) for path in (records.parent / "reports").iterdir()}
    (record,) = [read_record(path) for path in records.glob("*.json") if built.image_id[7:23] in path.name]
    hashes = record.verification.report_sha256
    assert set(hashes) == {"probe", "files", "objects"}
    assert {f"{digest[:16]}-{name}.json": digest for name, digest in hashes.items()}.items() <= kept.items()


def test_verifying_again_gives_the_same_reports(engine, built):
    again = verify_image(engine, built.image_id, root=ROOT).verification
    assert again.report_sha256 == built.verification.report_sha256
