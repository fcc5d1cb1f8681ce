import pytest
from registry_server import FakeEngine, FakeRegistry, compact, digest

from builder.errors import RegistryError, UsageError, VerifyError
from builder.files import sha256
from builder.models.record import Check, PatchRecord, Verification
from builder.registry.attest import attached_record
from builder.registry.client import Client
from builder.registry.publish import immutable_tag, publish
from builder.registry.reference import parse_reference
from builder.registry.transport import Transport
from builder.settings import Settings

FAILED = Verification(verdict="failed", checks=(Check(id="code-objects", status="failed", message="gfx942 found"),))


class KilledError(BaseException):
    """The program is killed; nothing may catch it."""


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def engine(registry):
    return FakeEngine(registry)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def send(engine, registry, settings):
    """Publish a record to team/app of the registry."""

    def call(record, **more):
        more = {"to": f"{registry.host}/team/app", "settings": settings, "on_progress": [].append, **more}
        return publish(engine, record, **more)

    return call


@pytest.fixture
def record_of(record):
    """Make the record of an image."""
    return lambda image_id, **more: record.model_copy(update={"image_id": image_id, **more})


class TestTag:
    def test_it_says_rocm_commit_and_series(self, record_of):
        record = record_of(digest(b""), rocm="7.2.4", commit="0123456789ab" + "c" * 28)

        assert immutable_tag(record) == f"7.2.4-0123456789ab-{sha256('one ' + '2' * 64 + chr(10))[:8]}"

    def test_a_stack_without_a_rocm_release_says_none(self, record_of):
        assert immutable_tag(record_of(digest(b""))).startswith("none-aaaaaaaaaaaa-")

    def test_it_moves_with_every_patch_and_with_their_order(self, record_of):
        one, two = (PatchRecord(id=name, sha256=name[0] * 64, outcome="applied") for name in ("a", "b"))
        changed = one.model_copy(update={"sha256": "c" * 64})
        series = [(), (one,), (two,), (one, two), (two, one), (changed,)]

        assert len({immutable_tag(record_of(digest(b""), patches=patches)) for patches in series}) == len(series)

    def test_it_does_not_move_with_what_is_not_in_the_image(self, record_of):
        image = digest(b"")

        assert immutable_tag(record_of(image, created="later", verification=None)) == immutable_tag(record_of(image))


class TestPublishing:
    def test_the_verified_image_stands_under_both_tags_and_carries_its_record(
        self, engine, registry, send, settings, record_of
    ):
        record = record_of(engine.build(b"base", b"engine"))

        done = send(record)

        published = done.record.published
        assert published.repository == f"{registry.host}/team/app"
        assert registry.tags["team/app", published.tag] == registry.tags["team/app", "latest"] == published.digest
        assert done.record == record.model_copy(update={"published": published})
        app = parse_reference(published.repository)
        with Client(settings) as client:
            assert attached_record(client, app, client.manifest(app.tagged("latest"))) == done.record

    def test_the_channel_moves_after_everything_else_and_without_a_second_push(self, engine, registry, send, record_of):
        send(record_of(engine.build(b"base")))

        writes = [line for line in registry.requests if line.startswith("PUT")]
        assert writes[-1] == "PUT /v2/team/app/manifests/latest"
        assert [call.partition(" ")[0] for call in engine.calls] == ["tag", "push"]

    def test_the_bytes_are_those_of_layers_that_were_not_there(self, engine, send, record_of):
        first = send(record_of(engine.build(b"base", b"engine one")))
        second = send(record_of(engine.build(b"base", b"engine two!"), commit="3" * 40))

        assert first.pushed_bytes == len(b"base") + len(b"engine one")
        assert second.pushed_bytes == len(b"engine two!")

    def test_a_layer_that_comes_twice_is_counted_once(self, engine, send, record_of):
        assert send(record_of(engine.build(b"same", b"same"))).pushed_bytes == 4

    def test_tags_without_layers_of_ours_do_not_stop_the_count(self, engine, registry, send, record_of):
        registry.add_index("team/app", "arm-only", ["arm64"])
        registry.add_index("team/app", "sha256-" + "0" * 64, ["amd64"])

        assert send(record_of(engine.build(b"base"))).pushed_bytes == 4
        assert not any("/manifests/sha256-" in line for line in registry.requests)

    def test_the_same_image_again_pushes_nothing_and_changes_nothing(self, engine, registry, send, record_of):
        record = record_of(engine.build(b"base"))
        first = send(record)
        before = dict(registry.manifests), dict(registry.tags)
        engine.calls.clear()

        again = send(first.record)

        assert (again.record, again.pushed_bytes) == (first.record, 0)
        assert engine.calls == []
        assert (registry.manifests, registry.tags) == before

    def test_another_channel_takes_the_same_image(self, engine, registry, send, record_of):
        record = record_of(engine.build(b"base"))
        send(record)

        done = send(record, channel="nightly")

        assert done.pushed_bytes == 0
        assert registry.tags["team/app", "nightly"] == registry.tags["team/app", "latest"]

    def test_an_engine_with_the_containerd_store_is_checked_by_the_manifest(self, engine, registry, send, record_of):
        built = engine.build(b"base")
        engine.names[f"{registry.host}/other/app:x"] = built
        manifest = engine.push(f"{registry.host}/other/app", "x", on_progress=[].append)
        engine.contents[manifest] = engine.contents.pop(built)
        tag = immutable_tag(record_of(manifest))
        engine.image = lambda _: type("Image", (), {"id": manifest})
        body = registry.manifests["other/app", manifest]

        engine.push = lambda _, tag, **__: registry.add_manifest("team/app", body[1], body[0], tag)
        done = send(record_of(manifest))

        assert done.record.published.digest == manifest
        assert registry.tags["team/app", tag] == manifest


class TestAnotherImageUnderTheSameName:
    @pytest.fixture
    def first(self, engine, send, record_of):
        return send(record_of(engine.build(b"x"))).record.published

    @pytest.mark.parametrize(
        ("context", "said"), [("4", "another build of the very same context"), ("9", "another image")]
    )
    def test_it_takes_a_longer_tag_and_the_first_tag_stays(
        self, engine, registry, send, record_of, first, context, said
    ):
        lines, record = [], record_of(engine.build(b"y"), context_sha256=context * 64)

        second = send(record, on_progress=lines.append).record.published

        assert second.tag == f"{first.tag}-{record.image_id[7:15]}"
        assert registry.tags["team/app", first.tag] == first.digest
        assert registry.tags["team/app", second.tag] == registry.tags["team/app", "latest"] == second.digest
        told = f"{first.repository}:{first.tag} holds {said} ({first.digest}) and never moves"
        assert any(line.startswith(told) for line in lines)

    def test_the_same_image_again_pushes_nothing(self, engine, send, record_of, first):
        record = record_of(engine.build(b"y"))
        second = send(record)
        engine.calls.clear()

        again = send(record)

        assert (again.record, again.pushed_bytes, engine.calls) == (second.record, 0, [])
        assert first.tag != second.record.published.tag

    def test_an_image_that_was_pushed_there_by_hand_is_kept_too(self, engine, registry, send, record_of):
        record = record_of(engine.build(b"x"))
        other, _ = registry.add_image("team/app", immutable_tag(record), layers=(b"other",))

        published = send(record).record.published

        assert registry.tags["team/app", immutable_tag(record)] == other != published.digest
        assert registry.tags["team/app", published.tag] == published.digest


class TestRefusals:
    def refused(self, engine, send, record, said, *, error=VerifyError):
        before = dict(engine.registry.tags)
        with pytest.raises(error, match=said) as caught:
            send(record)
        assert engine.registry.tags == before
        assert not any(call.startswith("push") for call in engine.calls)
        return caught.value

    def test_an_image_that_was_never_verified(self, engine, send, record_of):
        self.refused(engine, send, record_of(engine.build(b"x"), verification=None), "never verified")

    def test_an_image_that_failed_with_the_checks_that_failed(self, engine, send, record_of):
        self.refused(engine, send, record_of(engine.build(b"x"), verification=FAILED), "failed .* code-objects")

    def test_an_image_that_is_gone_from_the_engine(self, engine, send, record_of):
        self.refused(engine, send, record_of(digest(b"gone")), "no longer has the verified image")

    def test_an_engine_that_answers_with_another_image(self, engine, send, record_of):
        record, other = record_of(digest(b"gone")), engine.build(b"other")
        engine.names[record.image_id] = other

        self.refused(engine, send, record, "was verified")

    def test_a_name_that_was_given_to_another_image_before_the_push(self, engine, send, record_of):
        record, other = record_of(engine.build(b"x")), engine.build(b"other")
        engine.tag = lambda _, repository, tag: engine.names.update({f"{repository}:{tag}": other})

        self.refused(engine, send, record, "was verified")

    def test_both_immutable_tags_hold_other_images(self, engine, registry, send, record_of):
        record = record_of(engine.build(b"x"))
        registry.add_image("team/app", immutable_tag(record), layers=(b"other",))
        registry.add_image("team/app", f"{immutable_tag(record)}-{record.image_id[7:15]}", layers=(b"another",))

        error = self.refused(engine, send, record, "holds another image already")
        assert "delete that tag" in error.hint

    def test_a_channel_that_another_stack_holds(self, engine, send, record_of):
        send(record_of(engine.build(b"x"), stack="vllm", commit="3" * 40))
        engine.calls.clear()

        self.refused(engine, send, record_of(engine.build(b"y")), "holds the stack vllm", error=RegistryError)

    @pytest.mark.parametrize("channel", ["a/b", "", "sha256-x"])
    def test_a_channel_that_is_no_name_for_people(self, send, engine, channel, record_of):
        with pytest.raises(UsageError):
            send(record_of(engine.build(b"x")), channel=channel)

    @pytest.mark.parametrize("commit", ["a" * 40, "b" * 40])
    @pytest.mark.parametrize("end", ["", "-0123abcd"])
    def test_a_channel_with_the_name_of_an_immutable_tag(self, send, engine, record_of, commit, end):
        record = record_of(engine.build(b"x"))

        with pytest.raises(UsageError, match="never moves"):
            send(record, channel=immutable_tag(record.model_copy(update={"commit": commit})) + end)

    def test_a_repository_with_a_tag(self, send, engine, registry, record_of):
        with pytest.raises(UsageError, match="a repository is needed"):
            send(record_of(engine.build(b"x")), to=f"{registry.host}/team/app:v1")


class TestFaults:
    @pytest.fixture
    def old(self, registry):
        """What the channel held before."""
        return registry.add_image("team/app", "latest", layers=(b"old",))[0]

    def test_a_push_that_dies_leaves_the_channel(self, engine, registry, send, old, record_of):
        record = record_of(engine.build(b"x"))
        engine.push_trouble = RegistryError("could not push: broken pipe")
        with pytest.raises(RegistryError, match="broken pipe"):
            send(record)
        assert registry.tags == {("team/app", "latest"): old}

        engine.push_trouble = None
        done = send(record)
        assert registry.tags["team/app", "latest"] == done.record.published.digest

    def test_a_manifest_that_differs_from_what_was_pushed_leaves_the_channel(
        self, engine, registry, send, old, record_of
    ):
        record = record_of(engine.build(b"x"))
        wrong, _ = registry.add_image("team/app", None, layers=(b"wrong",))
        engine.push = lambda *_, **__: wrong

        with pytest.raises(VerifyError, match="not the image that was verified"):
            send(record)
        assert registry.tags["team/app", "latest"] == old

    def test_a_manifest_that_is_changed_on_the_way_back_leaves_the_channel(
        self, engine, registry, send, old, record_of
    ):
        record = record_of(engine.build(b"x"))
        engine.on_push = lambda: registry.fault("GET", "/manifests/sha256:", change=lambda body: body + b" ")
        with pytest.raises(RegistryError, match="other bytes"):
            send(record)
        assert registry.tags["team/app", "latest"] == old

        done = send(record)
        assert registry.tags["team/app", "latest"] == done.record.published.digest

    def test_a_push_that_left_nothing_in_the_registry_leaves_the_channel(self, engine, registry, send, old, record_of):
        engine.push = lambda *_, **__: digest(b"nothing")

        with pytest.raises(RegistryError, match="not there after its push"):
            send(record_of(engine.build(b"x")))
        assert registry.tags["team/app", "latest"] == old

    def test_a_channel_that_somebody_else_moved_meanwhile_is_told(self, engine, registry, send, old, record_of):
        back = lambda: registry.tags.update({("team/app", "latest"): old})  # noqa: E731
        registry.fault("PUT", "/manifests/latest", change=lambda body: body, then=back)

        with pytest.raises(RegistryError, match=f"latest is {old} after it was moved"):
            send(record_of(engine.build(b"x")))

    def test_a_damaged_record_on_the_channel_does_not_stop_the_repair(self, engine, registry, send, record_of):
        first = send(record_of(engine.build(b"x")))
        registry.blobs = {key: b"{}" if b"lock_sha256" in blob else blob for key, blob in registry.blobs.items()}
        for key, (media_type, body) in list(registry.manifests.items()):
            text = first.record.text().encode()
            if digest(text).encode() in body:
                changed = body.replace(digest(text).encode(), digest(b"{}").encode())
                registry.manifests.pop(key)
                registry.add_manifest("team/app", changed, media_type)
        registry.blobs["team/app", digest(b"{}")] = b"{}"

        done = send(record_of(engine.build(b"y"), commit="3" * 40))

        assert registry.tags["team/app", "latest"] == done.record.published.digest

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_kill_at_any_request_leaves_the_channel_and_a_second_try_succeeds(
        self, registry, settings, monkeypatch, record_of, moment
    ):
        # the longer way, which holds all the requests of the shorter one
        registry.referrers_api = False
        killer = Killer(monkeypatch, moment)

        def attempt(name, *, at):
            engine = FakeEngine(registry)
            killer.at, killer.asked = at, []
            more = {"to": f"{registry.host}/{name}", "settings": settings, "on_progress": [].append}
            return publish(engine, record_of(engine.build(b"x")), **more).record.published.digest

        registry.add_image("whole", "latest", layers=(b"old",))
        attempt("whole", at=None)
        # all requests but the last two: the channel's move, and the look at it
        moments = len(killer.asked) - 2
        for at in range(moments):
            old, _ = registry.add_image(f"app{at}", "latest", layers=(b"old",))
            with pytest.raises(KilledError):
                attempt(f"app{at}", at=at)
            assert registry.tags[f"app{at}", "latest"] == old

            new = attempt(f"app{at}", at=None)
            assert registry.tags[f"app{at}", "latest"] == new != old
        assert moments > 10


class Killer:
    """Kills the program before or after the request number ``at``, counted from 0."""

    def __init__(self, monkeypatch, moment):
        self.at = None
        self.asked = []
        exchange = Transport._send

        def send(transport, request, url, headers):
            number = len(self.asked)
            self.asked.append(f"{request.method} {url}")
            if number == self.at and moment == "before":
                raise KilledError
            answer = exchange(transport, request, url, headers)
            if number == self.at:
                raise KilledError
            return answer

        monkeypatch.setattr(Transport, "_send", send)


def test_the_steps_are_told(engine, send, record_of):
    lines = []

    send(record_of(engine.build(b"x")), on_progress=lines.append)

    assert [line.partition(" ")[0] for line in lines] == ["push", "push", "record", lines[-1].partition(" ")[0]]
    assert "latest is sha256:" in lines[-1]


def test_a_wait_is_told(engine, registry, send, record_of):
    registry.fault("GET", "/manifests/latest", status=429, headers={"Retry-After": "3"}, body=compact({}))
    lines = []

    send(record_of(engine.build(b"x")), on_progress=lines.append)

    assert "next try in 3 s" in lines[0]
