"""The chain of a published image, read from its registry alone, and the room that its pull needs."""

import json

import pytest
from registry_server import FakeEngine, FakeRegistry, compact, digest, pointer

from builder.engine.port import Image, Output
from builder.errors import HostError, RegistryError, VerifyError
from builder.models.lock import Lock, LockedBase, LockedPatch
from builder.registry.attest import Payload
from builder.registry.manifest import DOCKER_MANIFEST
from builder.registry.provenance import STATEMENT_TYPE, provenance
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.registry.room import SPARE
from builder.registry.sbom import SBOM_TYPE, Installed, sbom
from builder.settings import Settings
from builder.verify.published import trace_published

LABELS = {
    "io.gfx1100.dockerfile-sha256": "3" * 64,
    "io.gfx1100.context-sha256": "4" * 64,
    "io.gfx1100.lock-sha256": "1" * 64,
    "org.opencontainers.image.version": "0.0.dev0+gaaaaaaaaaaaa",
    "org.opencontainers.image.revision": "a" * 40,
}
LOCK = Lock(
    format=1,
    stack="smoke",
    stack_sha256="6" * 64,
    commit="a" * 40,
    version="0.0.dev0+gaaaaaaaaaaaa",
    bases={"runtime": LockedBase(image="base:runtime", digest="sha256:" + "8" * 64)},
    patches=(LockedPatch(id="one", file="one.yaml", sha256="2" * 64),),
    template_sha256="0" * 64,
)


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def send(registry, settings, record):
    """Publish an image whose labels and documents can be changed; return its record."""

    def call(*, labels=LABELS, bill=lambda text: text, statement=lambda text: text, documents=True):
        engine = FakeEngine(registry)
        config = compact({"os": "linux", "architecture": "amd64", "config": {"Labels": labels}})
        engine.contents[digest(config)] = (config, (b"layer",))

        def payloads(published):
            nothing = Installed(system={}, distributions=(), packages=())
            texts = (bill(sbom(published, LOCK, nothing)), statement(provenance(published, LOCK, {})))
            types = (SBOM_TYPE, STATEMENT_TYPE)
            return [
                Payload(name=kind, artifact_type=kind, content=text.encode())
                for kind, text in zip(types, texts, strict=True)
            ]

        return publish(
            engine,
            record.model_copy(update={"image_id": digest(config)}),
            to=f"{registry.host}/team/app",
            settings=settings,
            on_progress=[].append,
            payloads=payloads if documents else lambda _: (),
        ).record

    return call


@pytest.fixture
def walk(registry, settings):
    return lambda end=":latest": trace_published(
        f"{registry.host}/team/app{end}", settings=settings, on_progress=[].append
    )


def test_a_whole_chain_holds_and_names_the_commit(send, walk):
    record = send()

    chain = walk()

    assert chain.broken is None
    assert [link.name for link in chain.links] == [
        "digest",
        "verified",
        "dockerfile",
        "context",
        "lock",
        "version",
        "sbom",
        "provenance",
        "commit",
    ]
    assert chain.links[0].found == record.published.digest
    assert chain.links[-1].found == "a" * 40
    assert walk(f"@{record.published.digest}").broken is None


@pytest.mark.parametrize("label", LABELS)
def test_a_label_that_says_something_else_breaks_the_chain(send, walk, label):
    send(labels={**LABELS, label: "f" * 40})
    assert walk().broken is not None


def test_a_missing_bill_and_provenance_break_the_chain(send, walk):
    send(documents=False)
    assert [link.name for link in walk().links if not link.ok] == ["sbom", "provenance"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("a" * 40, "b" * 40),
        lambda text: text.replace("2" * 64, "e" * 64),
        lambda text: text.replace('"patch', '"batch'),
        lambda text: "{}",
        lambda text: "[1]",
        lambda text: "no json",
        lambda text: json.dumps({**json.loads(text), "components": [1], "subject": 3}),
    ],
    ids=["commit", "patch hash", "no patch", "empty", "list", "text", "wrong types"],
)
@pytest.mark.parametrize("which", ["bill", "statement"])
def test_a_document_about_something_else_breaks_the_chain(send, walk, which, change):
    send(**{which: change})
    assert walk().broken.name == {"bill": "sbom", "statement": "provenance"}[which]


def test_an_image_without_a_record_is_not_ours(registry, walk):
    registry.add_image("team/app", "latest")
    with pytest.raises(VerifyError, match="no record is attached"):
        walk()


def test_an_image_that_is_not_there_is_told(walk):
    with pytest.raises(RegistryError, match="is not in the registry"):
        walk()


class TestRoom:
    @pytest.fixture
    def engine(self, registry):
        return FakeEngine(registry)

    @pytest.fixture
    def lines(self):
        return []

    @pytest.fixture
    def fetch(self, registry, settings, engine, tmp_path, lines):
        def call(**more):
            more = {"settings": settings, "records": tmp_path / "records", "on_progress": lines.append, **more}
            return pull(engine, f"{registry.host}/team/app:latest", **more)

        return call

    def free(self, monkeypatch, amount):
        monkeypatch.setattr("builder.registry.room.free_bytes", lambda engine, ask: amount)

    def test_a_disk_with_too_little_room_is_told_before_anything_is_pulled(
        self, engine, send, fetch, monkeypatch, tmp_path
    ):
        send()
        self.free(monkeypatch, SPARE)
        with pytest.raises(HostError, match="does not fit") as caught:
            fetch()
        assert "images --prune" in caught.value.hint
        assert engine.calls == []
        assert not (tmp_path / "records").exists()

    def test_a_disk_with_enough_room_is_said(self, send, fetch, monkeypatch, lines):
        send()
        self.free(monkeypatch, SPARE + 5 * len(b"layer"))
        fetch()
        assert any("MB free" in line for line in lines)

    def test_layers_of_the_image_before_need_no_room(self, engine, send, fetch, monkeypatch, registry, record):
        send()
        fetch()
        size = 10 * SPARE
        body = compact(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": pointer("application/vnd.docker.container.image.v1+json", b"{}"),
                "layers": [{**pointer("x", b"layer"), "size": size}],
            }
        )
        old = registry.add_manifest("team/app", body, DOCKER_MANIFEST)
        engine.digests[f"{registry.host}/team/app@{old}"] = record.image_id
        engine.images = lambda label: [Image(id="sha256:old", repo_digests=(f"{registry.host}/team/app@{old}",))]
        engine.digests.clear()
        self.free(monkeypatch, SPARE)
        fetch()

    def test_an_engine_that_cannot_tell_is_not_refused(self, send, fetch, lines):
        send()
        fetch()
        assert any("nobody can tell" in line for line in lines)

    def test_another_stack_than_the_one_asked_for_is_refused(self, engine, send, fetch):
        send()
        with pytest.raises(VerifyError, match="is smoke, and vllm was asked for"):
            fetch(stack="vllm")
        assert engine.calls == []

    def test_an_engine_on_another_machine_is_asked_through_one_of_its_images(self, engine, send, fetch, lines):
        send()
        engine.images = lambda label: [Image(id="sha256:old")]
        engine.run_once = lambda *_, **__: Output(returncode=0, stdout="10 1000000000", stderr="")
        fetch()
        assert any("10000 MB free" in line for line in lines)
