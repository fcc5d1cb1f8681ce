"""Each check passes on a good image and fails on its broken twin; the chain breaks at the link that was touched."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from builder.engine.port import Container, Image, Output
from builder.errors import UsageError, VerifyError
from builder.files import sha256
from builder.models.lock import Lock, LockedBase, LockedPatch, LockedWheel
from builder.models.record import PatchRecord, Published, write_record
from builder.models.stack import Ops, Order, Wheel, load_stack
from builder.objects import CodeObject, Kernel, Library
from builder.patching.header import Proof
from builder.verify import evidence as evidence_module
from builder.verify.checks import CHECKS, Evidence, run_checks
from builder.verify.run import examine, verify_image
from builder.verify.trace import trace

ROOT = Path(__file__).parents[2]
PATCH = b"a patch"
DOCKERFILE = b"FROM base\n"
COMMIT = "a" * 40
VERSION = "0.0.dev0+gaaaaaaaaaaaa"
DIGEST = "sha256:" + "d" * 64
CHAIN = "/usr/share/gfx1100/"
LIBRARY = "/site-packages/smoke_engine/_C.gfx1100.so"


def a_lock():
    base = LockedBase(image="base", recipe_sha256="1" * 64)
    return Lock(
        format=1,
        stack="smoke",
        stack_sha256="1" * 64,
        commit=COMMIT,
        version=VERSION,
        bases={"build": base, "runtime": base},
        wheels=(LockedWheel(name="torch", version="2.13.0+rocm7.2", url="https://x/torch.whl", sha256="3" * 64),),
        patches=(LockedPatch(id="one", file="one.yaml", sha256=sha256(PATCH)),),
        template_sha256="2" * 64,
    )


def an_image(**labels):
    return Image(
        id="sha256:" + "5" * 64,
        repo_digests=(f"reg/smoke@{DIGEST}",),
        tags=("gfx1100/smoke:aaaaaaaaaaaa", "reg/smoke:latest", "reg/smoke:7.2-aaaaaaaaaaaa-00000000"),
        labels={
            "org.opencontainers.image.revision": COMMIT,
            "org.opencontainers.image.version": VERSION,
            "io.gfx1100.stack": "smoke",
            "io.gfx1100.arch": "gfx1100",
            "io.gfx1100.dockerfile-sha256": sha256(DOCKERFILE),
            "io.gfx1100.lock-sha256": sha256(a_lock().text()),
            "io.gfx1100.manifest-sha256": sha256(a_manifest()),
            "io.gfx1100.context-sha256": "4" * 64,
            **labels,
        },
        environment=("PATH=/usr/bin",),
        entrypoint=("smoke-engine",),
        user="10001:10001",
    )


def a_library(arch="gfx1100"):
    kernel = Kernel(name="k", vgpr=1, sgpr=1, lds_bytes=0, scratch_bytes=0, vgpr_spills=0, sgpr_spills=0, wavefront=32)
    return Library(path=LIBRARY, bundles=1, objects=(CodeObject(arch=arch, at=0, size=1, kernels=(kernel,)),))


ANSWER = {
    "distributions": [["smoke-engine", VERSION], ["fastapi", "1.0"], ["torch", "2.13.0+rocm7.2"]],
    "requires": [["smoke-engine", "fastapi>=0.110"], ["smoke-engine", "uvloop; sys_platform == 'win32'"]],
    "markers": {"sys_platform": "linux", "python_version": "3.13"},
    "owners": {"torch": ["torch"], "triton": [], "smoke_engine": ["smoke-engine"]},
    "torch": {"__version__": "2.13.0+rocm7.2", "hip": "7.2.53211", "cuda": None},
    "version": VERSION,
    "modules": {"smoke_engine": "ok"},
    "loads": {LIBRARY: "ok"},
    "ops": {"_C": {"gemm_rdna3": True, "qr_all_reduce": False}},
    "first": {"order": ["smoke_engine", "amdsmi", "torch"], "loaded": ["smoke_engine", "amdsmi"], "error": ""},
    "texts": {"smoke_engine/defaults.py": {"/site-packages/smoke_engine/defaults.py": {"text": "A = 1\nB = 1\n"}}},
    "site": "/site-packages",
    "user": 10001,
}
LINK = {"needed": ["libc.so.6"], "missing": [], "versions": [], "unresolved": [], "run_paths": []}
AFTER = sha256("patched")


def a_stack(**expect):
    smoke = load_stack(ROOT, "smoke")
    given = {
        "ops": (Ops(name="rdna3", namespace="_C", present=("gemm_rdna3",), absent=("qr_all_reduce",)),),
        "imports": Order(module="smoke_engine", first="amdsmi", then="torch"),
        **expect,
    }
    wheels = (Wheel(name="torch", version="2.13.0+rocm7.2"),)
    return smoke.model_copy(update={"expect": smoke.expect.model_copy(update=given), "wheels": wheels})


def a_manifest(**more):
    file = {"path": "smoke_engine/defaults.py", "before": "1" * 64, "after": AFTER}
    patches = [{"id": "one", "outcome": "applied", "files": [file, {**file, "path": "csrc/a.hip"}]}]
    return json.dumps({"patches": patches, **more}).encode()


def a_chain(**changed):
    return {
        "Dockerfile": DOCKERFILE,
        "lock.yaml": a_lock().text().encode(),
        "manifest.json": a_manifest(),
        "patches/one.yaml": PATCH,
    } | changed


def good(**changed):
    told = changed.get("answer", ANSWER)
    given = {
        "image": an_image(),
        "stack": a_stack(),
        "lock": a_lock(),
        "chain": a_chain(),
        "distributions": told["distributions"],
        "own_version": told["version"],
        "answer": told,
        "loaded": told,
        "links": {LIBRARY: LINK},
        "foreign": {"count": 0, "bytes": 0, "files": []},
        "libamd_smi": ["/opt/rocm/lib/libamd_smi.so.26.2"],
        "secrets": [],
        "installed": {"smoke_engine/defaults.py": AFTER},
        "record": {"files": 3, "wrong": [], "wrong_count": 0},
        "libraries": {LIBRARY: b""},
        "objects": {"smoke_engine/_C.*.so": (a_library(),)},
        "proofs": {"one": (Proof(text="A = 1\n", file="smoke_engine/defaults.py", count=1),)},
    }
    return Evidence(**(given | changed))


def answer(**changed):
    return ANSWER | changed


def linked(**changed):
    return good(links={LIBRARY: LINK | changed})


def image(**changed):
    return good(image=replace(an_image(), **changed))


def static(evidence):
    stack = evidence.stack
    return replace(evidence, stack=stack.model_copy(update={"pin": stack.pin.model_copy(update={"variable": None})}))


BROKEN = [
    ("chain", good(chain=a_chain(Dockerfile=b"FROM other\n")), "Dockerfile"),
    ("chain", good(chain=a_chain(**{"patches/one.yaml": b"edited"})), "patches/one.yaml"),
    ("chain", good(chain=a_chain(**{"manifest.json": a_manifest(commit="x")})), "manifest.json"),
    ("labels", good(image=an_image(**{"org.opencontainers.image.revision": "b" * 40})), "revision"),
    ("tags", image(tags=("gfx1100/smoke:bbbbbbbbbbbb",)), "smoke:bbbbbbbbbbbb points at an image of the commit aaaa"),
    ("tags", image(tags=("127.0.0.1:5000/s:7.2-bbbbbbbbbbbb-00000000",)), "points at an image"),
    (
        "patches",
        good(proofs={"one": (Proof(text="C = 1", file="smoke_engine/defaults.py"),)}),
        "one: 'C = 1' stands 0 times",
    ),
    ("patches", good(proofs={"one": (Proof(text="= 1", file="smoke_engine/defaults.py", count=1),)}), "stands 2 times"),
    ("patches", good(proofs={"one": (Proof(text="A", file="gone.py"),)}), "no file gone.py to look in"),
    ("patches", good(proofs={"one": (Proof(symbol="launch", file=None),)}), "the symbol launch stands 0 times"),
    ("patches", good(proofs={"one": (Proof(isa="k", marker="x"),)}), "has no proof that an image can show"),
    ("replay", good(installed={"smoke_engine/defaults.py": "e" * 64}), "smoke_engine/defaults.py is eeeeeeeeeeee"),
    ("replay", good(installed={}), "is no file"),
    ("wheel-files", good(record={"files": 3, "wrong": ["a.py"], "wrong_count": 1}), "1 files of smoke-engine differ"),
    ("wheel-files", good(record={"files": 0, "wrong": [], "wrong_count": 0}), "not installed from a wheel"),
    ("environment", image(environment=("PATH=/bin", "HTTPS_PROXY=http://proxy")), "Env holds HTTPS_PROXY"),
    ("history", image(history=("RUN |1 MAX_JOBS=2 /bin/sh -c make",)), "step 1 sets MAX_JOBS"),
    ("secrets", good(secrets=[{"path": "/root/.netrc", "what": "logins"}]), "/root/.netrc (logins)"),
    ("user", image(user=""), "'root'"),
    ("user", good(answer=answer(user=0)), "user"),
    ("entrypoint", image(entrypoint=()), "no entry point"),
    ("healthcheck", image(healthcheck=("CMD-SHELL", "curl localhost")), "curl localhost"),
    ("size", image(size=900_000_000), "the budget is 0.80 GB"),
    (
        "size",
        image(size=700_000_000, history=("RUN cp a b", "RUN  big"), layers=(1, 650_000_000)),
        "a layer may have 0.60 GB; it comes from `RUN big`",
    ),
    ("foreign-archs", good(foreign={"count": 1, "bytes": 2e6, "files": ["/opt/a_gfx90a.co"]}), "1 files, 2.0 MB"),
    ("imports", good(answer=answer(modules={"smoke_engine": "ImportError: x"})), "ImportError"),
    ("ops", good(answer=answer(ops={"_C": {"qr_all_reduce": False}})), "_C.gemm_rdna3 is missing (rdna3)"),
    ("ops", good(answer=answer(ops={"_C": {"gemm_rdna3": True, "qr_all_reduce": True}})), "_C.qr_all_reduce is there"),
    (
        "import-order",
        good(answer=answer(first={"order": ["torch", "amdsmi"], "loaded": ["torch", "amdsmi"], "error": ""})),
        "asks for torch before amdsmi",
    ),
    (
        "import-order",
        good(answer=answer(first={"order": ["amdsmi", "torch"], "loaded": ["torch"], "error": ""})),
        "it cannot be loaded",
    ),
    (
        "import-order",
        good(answer=answer(first={"order": ["torch"], "loaded": ["torch"], "error": ""})),
        "never asks for amdsmi",
    ),
    ("libraries", good(answer=answer(loads={LIBRARY: "undefined symbol: hipMalloc"})), "undefined symbol"),
    ("needed", linked(missing=["libfar.so, needed by /x.so"]), "libfar.so, needed by /x.so, is nowhere"),
    ("needed", linked(versions=["GLIBC_2.39 of libc.so.6, which /lib/libc.so.6 does not have"]), "GLIBC_2.39"),
    ("needed", good(links={LIBRARY: {"error": "no ELF file"}}), "no ELF file"),
    (
        "symbols",
        linked(unresolved=[{"symbol": "_Z1fi", "name": "f", "kindred": ["_Z1fl of libtorch.so"]}]),
        "f (_Z1fi); with other arguments there is _Z1fl of libtorch.so",
    ),
    ("symbols", linked(unresolved=[{"symbol": "hipFar", "name": "hipFar", "kindred": []}]), ": hipFar"),
    ("run-paths", linked(run_paths=["'/build' is no folder of the image"]), "'/build'"),
    ("libamd-smi", good(libamd_smi=["/a", "/b"]), "2 copies: /a, /b"),
    ("code-objects", good(objects={"x/*.so": ()}), "no file below site-packages matches"),
    ("code-objects", good(objects={"x": (a_library("gfx942"),)}), "holds code for gfx942"),
    ("code-objects", good(objects={"x": (Library(path="x", bundles=0, objects=()),)}), "no GPU"),
    (
        "version",
        good(answer=answer(distributions=[["smoke_engine", "0.1.dev1"]])),
        "in a shallow clone, or in one without tags",
    ),
    ("version", good(answer=answer(distributions=[])), "0 distributions"),
    ("version", good(answer=answer(version="import failed: x")), "__version__"),
    ("version-leak", good(answer=answer(distributions=[["smoke-engine", VERSION], ["aiter", VERSION]])), "aiter"),
    ("torch", good(answer=answer(torch={"__version__": "2.13.0", "hip": None, "cuda": "12.8"})), "CUDA 12.8"),
    ("torch", good(answer=answer(torch={"__version__": "2.13.0+cpu", "hip": None, "cuda": None})), "HIP None"),
    ("torch", good(answer=answer(torch=None)), "torch is not installed"),
    ("torch", good(stack=a_stack().model_copy(update={"rocm": "7.14"})), "the stack is for ROCm 7.14"),
    (
        "wheels",
        good(answer=answer(distributions=[["torch", "2.13.0"]])),
        "torch is 2.13.0, the lock says 2.13.0+rocm7.2",
    ),
    ("wheels", good(answer=answer(distributions=[])), "torch is not installed"),
    ("cuda-packages", good(answer=answer(distributions=[["nvidia-cublas-cu12", "12.4"]])), "nvidia-cublas-cu12 12.4"),
    ("cuda-packages", good(answer=answer(distributions=[["torchvision", "0.28.0+cu128"]])), "torchvision"),
    ("owners", good(answer=answer(owners={"triton": ["triton", "triton-rocm"]})), "triton and triton-rocm own triton/"),
    ("requirements", good(answer=answer(requires=[["vllm", "numba==0.65.0"]])), "vllm requires numba, which is not"),
    ("requirements", good(answer=answer(requires=[["x", "fastapi<1"]])), "x requires fastapi<1, and 1.0 is installed"),
]


def found(identity, evidence):
    return next(check for check in run_checks(evidence) if check.id == identity)


def test_a_good_image_passes_every_check():
    checks = run_checks(good())
    assert {check.status for check in checks} == {"ok"}
    assert [check.id for check in checks] == list(CHECKS)


@pytest.mark.parametrize(("identity", "evidence", "message"), BROKEN)
def test_a_broken_twin_fails_its_check_with_what_was_found(identity, evidence, message):
    check = found(identity, evidence)
    assert check.status == "failed"
    assert message in check.message


@pytest.mark.parametrize(
    "name",
    [
        "SETUPTOOLS_SCM_PRETEND_VERSION",
        "VCS_VERSIONING_PRETEND_VERSION",
        "MAX_JOBS",
        "https_proxy",
        "HTTP_PROXY",
        "PIP_INDEX_URL",
        "SSL_CERT_FILE",
        "HF_TOKEN",
        "DB_PASSWORD",
        "OPENAI_API_KEY",
    ],
)
def test_a_build_setting_or_a_secret_in_the_environment_is_found(name):
    check = found("environment", good(image=replace(an_image(), environment=("PATH=/bin", f"{name}=x"))))
    assert (check.status, name in check.message) == ("failed", True)


def test_the_value_of_a_secret_is_not_repeated():
    check = found("environment", good(image=replace(an_image(), environment=("HF_TOKEN=hf_secret",))))
    assert "hf_secret" not in check.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ENV SETUPTOOLS_SCM_PRETEND_VERSION=1", "step 1 sets SETUPTOOLS_SCM_PRETEND_VERSION"),
        ("ARG HF_TOKEN", "step 1 sets HF_TOKEN"),
        ("|2 A=b PIP_INDEX_URL=http://mirror /bin/sh -c pip install x", "step 1 sets PIP_INDEX_URL"),
        ("RUN /bin/sh -c curl -H 'x: hf_abcdefghijklmnopqrstuvwxyzabcdef'", "holds a token"),
        ("RUN pip install -i https://me:secret@mirror/simple x", "a login in an address"),
        ("COPY -----BEGIN RSA PRIVATE KEY-----", "holds a token, a key"),
    ],
)
def test_a_build_setting_or_a_secret_in_the_history_is_found_and_not_repeated(text, words):
    check = found("history", image(history=("CMD x", text)))
    assert (check.status, words in check.message) == ("failed", True)
    assert "abcdefghijklmnopqrstuvwxyz" not in check.message
    assert "me:secret" not in check.message


@pytest.mark.parametrize(
    "text",
    [
        'RUN /bin/sh -c MAX_JOBS="$(cat /run/secrets/jobs)" make',
        "RUN |1 PYTHON=3.12 /bin/sh -c apt-get install tokenizers",
        "COPY --from=wheel /install/ /",
        'RUN /bin/sh -c git clone "https://$USER:$PASSWORD@example.org/x"',
        "LABEL org.opencontainers.image.source=https://github.com/JartX/vllm",
    ],
)
def test_the_history_of_a_clean_build_passes(text):
    assert found("history", image(history=(text,))).status == "ok"


@pytest.mark.parametrize("tag", ["r/s:latest", "r/s:v0.31.0", "r/s:7.2-20260101"])
def test_a_tag_that_names_no_commit_is_free(tag):
    assert found("tags", image(tags=(tag,))).status == "skipped"


def test_what_a_wheel_cannot_show_is_skipped_with_the_reason():
    checks = run_checks(Evidence(links={}, foreign={"count": 0, "bytes": 0, "files": []}, objects={}))
    reasons = {check.id: check.message for check in checks if check.status == "skipped"}
    assert reasons["labels"] == "only an image can show this"
    assert reasons["owners"] == "only an image or a folder of packages can show this"
    assert {check.status for check in checks} == {"ok", "skipped"}


def test_only_and_skip_choose_the_checks():
    assert [check.id for check in run_checks(good(), only=["size", "user"])] == ["user", "size"]
    (left_out,) = run_checks(good(), only=["size"], skip=["size"])
    assert (left_out.status, left_out.message) == ("skipped", "left out on request")


def test_a_check_that_does_not_exist_is_an_error_that_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'symbols'"):
        run_checks(good(), skip=["symbol"])


def test_a_requirement_that_the_image_leaves_out_on_purpose_is_not_missed():
    evidence = good(stack=a_stack(unmet=("Flash_Attn",)), answer=answer(requires=[["x", "flash-attn>=2"]]))
    assert found("requirements", evidence).status == "ok"


def test_what_the_requirements_resolved_to_is_installed_so_or_not_at_all():
    resolved = (LockedWheel(name="fastapi", version="1.0", url="u", sha256="1" * 64),)
    unused = (LockedWheel(name="ray", version="2.0", url="u", sha256="1" * 64),)
    other = (LockedWheel(name="fastapi", version="1.1", url="u", sha256="1" * 64),)
    for requirements, status in ((resolved + unused, "ok"), (other, "failed")):
        lock = a_lock().model_copy(update={"requirements": requirements})
        assert found("wheels", good(lock=lock)).status == status


def test_a_torch_for_the_rocm_of_the_stack_passes():
    assert found("torch", good(stack=a_stack().model_copy(update={"rocm": "7.2"}))).status == "ok"


def test_a_rehearsal_has_a_torch_for_neither_cuda_nor_hip():
    cpu = answer(torch={"__version__": "2.13.0+cpu", "hip": None, "cuda": None})
    rehearsal = a_stack().model_copy(update={"device": "none"})
    assert found("torch", good(answer=cpu, stack=rehearsal)).status == "ok"
    assert found("torch", good(stack=rehearsal)).status == "failed"


def test_a_rehearsal_says_which_patches_its_machine_code_cannot_prove():
    rehearsal = a_stack().model_copy(update={"device": "none"})
    machine_code = (Proof(isa="k", code="DC762000", marker="x"),)
    both = good(stack=rehearsal, proofs={"two": machine_code, **good().proofs})
    assert found("patches", both).message == "one; not compiled in a rehearsal: two"
    assert found("patches", good(stack=rehearsal, proofs={"two": machine_code})).status == "skipped"
    assert found("patches", good(proofs={"two": machine_code})).status == "failed"


def test_ops_of_other_commits_are_not_asked_for_and_unknown_ones_are_named():
    group = Ops(name="octave", namespace="_C", present=("octave_decode",), file="csrc/torch_bindings.cpp")
    for told, status in ((True, "failed"), (False, "skipped"), (None, "ok")):
        manifest = a_manifest(ops={"octave": told})
        check = found("ops", good(stack=a_stack(ops=(group,)), chain=a_chain(**{"manifest.json": manifest})))
        assert check.status == status, check.message
    assert "not known for this commit: octave" in check.message


def test_the_verdict_holds_the_hash_of_every_report(tmp_path):
    examined = examine(good())
    assert examined.verification.verdict == "ok"
    assert examined.verification.report_sha256 == {name: sha256(text) for name, text in examined.reports.items()}
    assert set(examined.reports) == {"probe", "files", "objects"}
    examined.keep(tmp_path)
    assert sorted(sha256(path.read_text())[:16] for path in tmp_path.iterdir()) == sorted(
        path.name[:16] for path in tmp_path.iterdir()
    )


def test_the_libraries_with_device_code_are_listed_for_scripts():
    told = examine(good()).as_json()
    assert told["objects"] == [{**a_library().row(), "archs": ["gfx1100"], "bundles": 1, "path": LIBRARY}]
    assert set(told) >= {"verdict", "checks", "objects"}


def test_every_check_has_a_broken_twin():
    assert {identity for identity, _, _ in BROKEN} == set(CHECKS)


@pytest.mark.parametrize(("identity", "evidence", "message"), BROKEN)
def test_a_failed_check_says_what_that_means_and_what_to_do(identity, evidence, message):
    check = found(identity, evidence)
    assert check.means
    assert check.fix


@pytest.mark.parametrize(
    ("identity", "evidence"),
    [
        ("version", static(good())),
        ("version-leak", static(good())),
        ("imports", good(answer=answer(modules={}))),
        ("libraries", good(answer=answer(loads={}))),
        ("code-objects", good(objects={})),
        ("patches", good(proofs={})),
        ("tags", image(tags=("gfx1100/smoke:latest",))),
        ("replay", good(chain=a_chain(**{"manifest.json": b'{"patches": []}'}))),
        ("replay", good(stack=a_stack(installed={}))),
        ("size", good(stack=a_stack().model_copy(update={"budget": None}))),
        ("needed", good(links={})),
        ("needed", linked(outside=["libtorch.so"])),
        ("symbols", linked(outside=["libtorch.so"])),
        ("libamd-smi", good(libamd_smi=[])),
        ("torch", good(answer=answer(torch=None), stack=a_stack().model_copy(update={"wheels": ()}))),
        ("wheels", good(lock=a_lock().model_copy(update={"wheels": ()}))),
        ("ops", good(stack=a_stack(ops=()))),
        ("import-order", good(stack=a_stack(imports=None))),
    ],
)
def test_what_cannot_be_checked_is_skipped_with_the_reason(identity, evidence):
    check = found(identity, evidence)
    assert check.status == "skipped"
    assert check.message


def engine_with(image, chain):
    engine = FakeEngine([image])
    engine.files = {CHAIN + name: data for name, data in chain.items()}
    return engine


def test_an_image_that_carries_no_chain_cannot_be_verified():
    with pytest.raises(VerifyError, match=r"carries no /usr/share/gfx1100/lock.yaml"):
        verify_image(engine_with(an_image(), {}), an_image().id, root=ROOT)


@pytest.mark.parametrize("lock", [b"format: 1\n", b"[]", b"{"])
def test_an_image_with_a_damaged_lock_cannot_be_verified(lock):
    with pytest.raises(VerifyError, match="the image's lock is damaged"):
        verify_image(engine_with(an_image(), {"lock.yaml": lock}), an_image().id, root=ROOT)


def test_an_image_without_our_label_asks_what_it_should_be():
    stranger = replace(an_image(), labels={})
    with pytest.raises(UsageError, match="has no label") as caught:
        verify_image(engine_with(stranger, {}), stranger.id, root=ROOT)
    assert "--stack" in caught.value.hint


def test_a_probe_that_dies_is_an_error_with_its_last_lines():
    engine = engine_with(an_image(), {})
    engine.answer = Output(returncode=137, stdout="", stderr="Killed\n")
    with pytest.raises(VerifyError, match="ended with status 137 and no answer:\nKilled"):
        evidence_module.ask(engine, an_image(), load_stack(ROOT, "smoke"), {}, [])


def test_a_patch_that_the_series_does_not_have_is_an_error():
    with pytest.raises(VerifyError, match="built with one, which the series does not have"):
        verify_image(engine_with(an_image(), good().chain), an_image().id, root=ROOT)


@pytest.mark.parametrize("manifest", [b"{}", b"[]", b"{", b'{"patches": [{}]}', b'{"patches": [], "ops": []}'])
def test_a_patch_whose_outcome_nobody_tells_is_an_error(manifest):
    lock = a_lock().model_copy(
        update={"patches": (LockedPatch(id="smoke-store", file="smoke-store.yaml", sha256="1" * 64),)}
    )
    chain = {"lock.yaml": lock.text().encode(), "manifest.json": manifest}
    with pytest.raises(VerifyError, match=r"manifest\.json"):
        verify_image(engine_with(an_image(), chain), an_image().id, root=ROOT)


@pytest.fixture
def chained(record, tmp_path):
    """Return an engine with a container whose chain is whole, and the folder of its record."""
    engine = engine_with(an_image(), good().chain)
    engine.boxes["box"] = Container(
        id="box",
        name="gfx1100-smoke",
        image_id=an_image().id,
        state="running",
        labels={"io.gfx1100.digest": DIGEST},
    )
    whole = record.model_copy(
        update={
            "lock_sha256": sha256(a_lock().text()),
            "dockerfile_sha256": sha256(DOCKERFILE),
            "patches": (PatchRecord(id="one", sha256=sha256(PATCH), outcome="applied"),),
            "published": Published(repository="reg/smoke", tag="t", digest=DIGEST),
        }
    )
    write_record(tmp_path, whole)
    return engine, whole, tmp_path


def test_a_whole_chain_has_no_broken_link(chained):
    engine, whole, records = chained
    walked = trace(engine, "gfx1100-smoke", records=records)
    assert walked.broken is None
    assert [link.name for link in walked.links][-1] == "commit"
    assert walked.as_json()["links"][0]["ok"] is True
    assert whole.commit in walked.text()


@pytest.mark.parametrize(
    ("link", "changed"),
    [
        ("verified", {"verification": None}),
        ("dockerfile", {"dockerfile_sha256": "e" * 64}),
        ("context", {"context_sha256": "e" * 64}),
        ("lock", {"lock_sha256": "e" * 64}),
        ("patch one", {"patches": (PatchRecord(id="one", sha256="e" * 64, outcome="applied"),)}),
        ("series", {"patches": ()}),
        ("version", {"version": "0.0.dev0+gbbbbbbbbbbbb"}),
        ("commit", {"commit": "b" * 40}),
        ("deployed", {"published": Published(repository="reg/smoke", tag="t", digest="sha256:" + "e" * 64)}),
    ],
)
def test_a_touched_record_breaks_the_chain_at_its_own_link(chained, link, changed):
    engine, whole, records = chained
    write_record(records, whole.model_copy(update=changed))
    assert trace(engine, "gfx1100-smoke", records=records).broken.name == link


@pytest.mark.parametrize(
    ("link", "file", "content"),
    [("dockerfile", "Dockerfile", b"FROM evil\n"), ("patch one", "patches/one.yaml", b"edited")],
)
def test_a_touched_image_breaks_the_chain_at_its_own_link(chained, link, file, content):
    engine, _, records = chained
    engine.files[CHAIN + file] = content
    assert trace(engine, "gfx1100-smoke", records=records).broken.name == link


def test_a_file_that_was_changed_in_the_container_breaks_the_chain(chained):
    engine, _, records = chained
    engine.changed["box"] = ("/usr/lib/python3/dist-packages/smoke_engine/server.py", "/tmp/x")
    broken = trace(engine, "gfx1100-smoke", records=records).broken
    assert (broken.name, "server.py" in broken.found) == ("files", True)


def test_caches_that_a_running_engine_writes_do_not_break_the_chain(chained):
    engine, _, records = chained
    engine.changed["box"] = ("/usr/lib/python3/dist-packages/x/__pycache__/a.pyc", "/home/engine/.cache/x")
    assert trace(engine, "gfx1100-smoke", records=records).broken is None


def test_an_image_without_a_record_is_an_error(chained, tmp_path):
    engine, _, _ = chained
    with pytest.raises(VerifyError, match="no record in"):
        trace(engine, "gfx1100-smoke", records=tmp_path / "elsewhere")


def test_a_record_whose_image_is_gone_says_so(chained):
    engine, whole, records = chained
    engine.images.clear()
    walked = trace(engine, str(next(records.glob("*.json"))), records=records)
    assert (walked.broken.name, walked.broken.expected) == ("image", whole.image_id)


def test_what_is_nothing_of_the_engine_is_an_error(chained):
    engine, _, records = chained
    with pytest.raises(UsageError, match="no container, image or record"):
        trace(engine, "nothing", records=records)
