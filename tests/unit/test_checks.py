"""Each check passes on a good image and fails on its broken twin; the chain breaks at the link that was touched."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from builder.engine.port import Container, Image, Output
from builder.errors import UsageError, VerifyError
from builder.files import sha256
from builder.models.lock import Lock, LockedBase, LockedPatch
from builder.models.record import PatchRecord, Published, write_record
from builder.models.stack import load_stack
from builder.objects import CodeObject, Kernel, Library
from builder.patching.header import Proof
from builder.verify import evidence as evidence_module
from builder.verify.checks import CHECKS, Evidence, run_checks
from builder.verify.run import verify_image
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
        patches=(LockedPatch(id="one", file="one.yaml", sha256=sha256(PATCH)),),
        template_sha256="2" * 64,
    )


def an_image(**labels):
    return Image(
        id="sha256:" + "5" * 64,
        repo_digests=(f"reg/smoke@{DIGEST}",),
        labels={
            "org.opencontainers.image.revision": COMMIT,
            "org.opencontainers.image.version": VERSION,
            "io.gfx1100.stack": "smoke",
            "io.gfx1100.arch": "gfx1100",
            "io.gfx1100.dockerfile-sha256": sha256(DOCKERFILE),
            "io.gfx1100.lock-sha256": sha256(a_lock().text()),
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
    "distributions": [["smoke-engine", VERSION], ["fastapi", "1.0"]],
    "version": VERSION,
    "modules": {"smoke_engine": "ok"},
    "loads": {LIBRARY: "ok"},
    "texts": {"smoke_engine/defaults.py": {"/site-packages/smoke_engine/defaults.py": {"text": "A = 1\nB = 1\n"}}},
    "site": "/site-packages",
    "user": 10001,
}


def good(**changed):
    given = {
        "image": an_image(),
        "stack": load_stack(ROOT, "smoke"),
        "lock": a_lock(),
        "chain": {"Dockerfile": DOCKERFILE, "lock.yaml": a_lock().text().encode(), "patches/one.yaml": PATCH},
        "answer": ANSWER,
        "libraries": {LIBRARY: b""},
        "objects": {"smoke_engine/_C.*.so": (a_library(),)},
        "proofs": {"one": (Proof(text="A = 1\n", file="smoke_engine/defaults.py", count=1),)},
    }
    return Evidence(**(given | changed))


def answer(**changed):
    return ANSWER | changed


def static(evidence):
    stack = evidence.stack
    return replace(evidence, stack=stack.model_copy(update={"pin": stack.pin.model_copy(update={"variable": None})}))


BROKEN = [
    ("chain", good(chain={"Dockerfile": b"FROM other\n", "lock.yaml": a_lock().text().encode()}), "Dockerfile"),
    (
        "chain",
        good(chain={"Dockerfile": DOCKERFILE, "lock.yaml": a_lock().text().encode(), "patches/one.yaml": b"edited"}),
        "patches/one.yaml",
    ),
    ("labels", good(image=an_image(**{"org.opencontainers.image.revision": "b" * 40})), "revision"),
    ("version", good(answer=answer(distributions=[["smoke_engine", "0.1.dev1"]])), "the pin is"),
    ("version", good(answer=answer(distributions=[])), "0 distributions"),
    ("version", good(answer=answer(version="import failed: x")), "__version__"),
    ("version-leak", good(answer=answer(distributions=[["smoke-engine", VERSION], ["aiter", VERSION]])), "aiter"),
    ("imports", good(answer=answer(modules={"smoke_engine": "ImportError: x"})), "ImportError"),
    ("libraries", good(answer=answer(loads={LIBRARY: "undefined symbol: hipMalloc"})), "undefined symbol"),
    ("code-objects", good(objects={"x/*.so": ()}), "no file below site-packages matches"),
    ("code-objects", good(objects={"x": (a_library("gfx942"),)}), "holds code for gfx942"),
    ("code-objects", good(objects={"x": (Library(path="x", bundles=0, objects=()),)}), "no GPU"),
    (
        "patches",
        good(proofs={"one": (Proof(text="C = 1", file="smoke_engine/defaults.py"),)}),
        "one: 'C = 1' stands 0 times",
    ),
    ("patches", good(proofs={"one": (Proof(text="= 1", file="smoke_engine/defaults.py", count=1),)}), "stands 2 times"),
    ("patches", good(proofs={"one": (Proof(text="A", file="gone.py"),)}), "no file gone.py to look in"),
    ("patches", good(proofs={"one": (Proof(symbol="launch", file=None),)}), "the symbol launch stands 0 times"),
    (
        "patches",
        good(proofs={"one": (Proof(isa="k", marker="x"),)}),
        "has no proof that an image can show",
    ),
    ("user", good(image=replace(an_image(), user="")), "'root'"),
    ("user", good(answer=answer(user=0)), "user"),
    ("entrypoint", good(image=replace(an_image(), entrypoint=())), "no entry point"),
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


def test_every_check_has_a_broken_twin():
    assert {identity for identity, _, _ in BROKEN} | {"environment"} == set(CHECKS)


@pytest.mark.parametrize(
    ("identity", "evidence"),
    [
        ("version", static(good())),
        ("imports", good(answer=answer(modules={}))),
        ("libraries", good(answer=answer(loads={}))),
        ("code-objects", good(objects={})),
        ("patches", good(proofs={})),
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


def test_an_image_without_our_label_asks_what_it_should_be():
    stranger = replace(an_image(), labels={})
    with pytest.raises(UsageError, match="has no label") as caught:
        verify_image(engine_with(stranger, {}), stranger.id, root=ROOT)
    assert "--stack" in caught.value.hint


def test_a_probe_that_dies_is_an_error_with_its_last_lines():
    engine = engine_with(an_image(), {})
    engine.answer = Output(returncode=137, stdout="", stderr="Killed\n")
    with pytest.raises(VerifyError, match="ended with status 137 and no answer:\nKilled"):
        evidence_module.ask(engine, an_image(), load_stack(ROOT, "smoke"), [])


def test_a_patch_that_the_series_does_not_have_is_an_error():
    with pytest.raises(VerifyError, match="built with one, which the series does not have"):
        verify_image(engine_with(an_image(), good().chain), an_image().id, root=ROOT)


@pytest.mark.parametrize("manifest", [b"{}", b"[]", b"{", b'{"patches": [{}]}'])
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
