"""The wheelhouse over real http: wheels by hash, requirements for the image's Python, and what a lock says of them."""

import base64
import hashlib
import http.server
import json
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
from registry_server import PASSWORD, USER, FakeRegistry
from source_repos import MAIN, Repo

from builder.console import Console
from builder.errors import HostError, UpstreamError, UsageError, VerifyError
from builder.models.lock import LockedWheel, load_lock
from builder.models.stack import Base, Bases, Requirements, Source, Wheel, load_stack
from builder.resolve.lock import ensure_lock, resolve
from builder.resolve.wheelhouse import filled, local_wheel, require_full
from builder.settings import load_settings

ROOT = Path(__file__).parents[2]


def make_wheel(folder, name, version, tag="py3-none-any", requires=()):
    """Write a wheel that pip can read and return its path."""
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Index:
    """A folder of wheels and the address that it is served at."""

    folder: Path
    url: str = ""

    def has(self, name, version, **more):
        return make_wheel(self.folder, name, version, **more)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return an index on loopback, which our own look-ups and pip ask."""
    served = Index(tmp_path / "index")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind, _, name = self.path.strip("/").partition("/")
            if kind == "files":
                self.answer("application/zip", (served.folder / unquote(name)).read_bytes())
                return
            links = "".join(
                f'<a href="/files/{path.name}#sha256={sha(path)}">{path.name}</a>'
                for path in served.folder.glob("*.whl")
                if path.name.partition("-")[0].replace("_", "-") == name
            )
            self.answer("text/html", f"<html><body>{links}</body></html>".encode(), 200 if links else 404)

        def answer(self, kind, body, status=200):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        yield served
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(tmp_path):
    return load_settings(ROOT, {"HOME": str(tmp_path / "home")})


@pytest.fixture
def stack(index):
    """Return a stack whose torch comes from the index."""
    torch = Wheel(name="torch", version="2.13.0", index=f"{index.url}/simple")
    return load_stack(ROOT, "vllm-rehearsal").model_copy(
        update={"wheels": (torch,), "build_requirements": ("tool",), "requirements": Requirements(lines=("regex",))}
    )


def test_a_lock_takes_the_version_that_the_index_has_with_its_local_part(index, settings, stack):
    wheel = index.has("torch", "2.13.0+rocm7.2", tag="cp311-cp311-linux_x86_64")
    lock = resolve(ROOT, stack, settings=settings)
    assert (lock.wheels[0].version, lock.wheels[0].sha256) == ("2.13.0+rocm7.2", sha(wheel))
    assert lock.unresolved() == []


def test_a_full_wheelhouse_holds_the_pinned_wheels_and_what_they_and_the_requirements_need(index, settings, stack):
    index.has("torch", "2.13.0", requires=["sympy"])
    index.has("sympy", "1.14")
    index.has("regex", "1", tag="cp39-cp39-linux_x86_64")
    index.has("regex", "2", tag="cp311-cp311-manylinux_2_17_x86_64")
    index.has("tool", "3")
    lock = filled(ROOT, stack, resolve(ROOT, stack, settings=settings), settings=settings)
    found = sorted(path.relative_to(settings.wheels).as_posix() for path in settings.wheels.rglob("*.whl"))
    assert found == [
        "pinned/torch-2.13.0-py3-none-any.whl",
        "vllm-rehearsal/build/sympy-1.14-py3-none-any.whl",
        "vllm-rehearsal/build/tool-3-py3-none-any.whl",
        "vllm-rehearsal/run/regex-2-cp311-cp311-manylinux_2_17_x86_64.whl",
        "vllm-rehearsal/run/sympy-1.14-py3-none-any.whl",
    ]
    assert [(wheel.name, wheel.version) for wheel in lock.requirements] == [("regex", "2"), ("sympy", "1.14")]
    again = resolve(ROOT, stack, settings=settings, previous=lock)
    assert again.requirements == lock.requirements


def test_the_real_distribution_is_not_fetched_where_an_empty_one_stands_for_it(index, settings, stack):
    torch, triton = (
        Wheel(name=name, version="2.13.0", index=f"{index.url}/simple", stands_for=stands)
        for name, stands in (("torch", None), ("triton-rocm", "triton"))
    )
    for name in ("torch", "triton_rocm", "tool"):
        index.has(name, "2.13.0")
    index.has("regex", "1", requires=["triton>=2"])
    for version in ("2.13.0", "9"):
        index.has("triton", version, tag="cp311-cp311-manylinux_2_17_x86_64")
    wanted = stack.model_copy(update={"wheels": (torch, triton)})
    lock = filled(ROOT, wanted, resolve(ROOT, wanted, settings=settings), settings=settings)
    assert [wheel.name for wheel in lock.requirements] == ["regex"]
    assert not list(settings.wheels.rglob("triton-*"))


def test_a_wheelhouse_is_full_when_it_has_what_the_lock_names(index, settings, stack):
    for name in ("torch", "tool", "regex"):
        index.has(name, "2.13.0")
    empty = resolve(ROOT, stack, settings=settings)
    with pytest.raises(HostError, match=r"lacks torch-2.13.0-py3-none-any.whl \(1 in all\)") as caught:
        require_full(stack, empty, settings)
    assert "lock vllm-rehearsal --download" in caught.value.hint
    lock = filled(ROOT, stack, empty, settings=settings)
    require_full(stack, lock, settings)
    with pytest.raises(HostError, match="lacks the run-time requirements"):
        require_full(stack, empty, settings)
    next(settings.wheels.rglob("run/regex*")).unlink()
    with pytest.raises(HostError, match=r"lacks regex-2\.13\.0"):
        require_full(stack, lock, settings)


def test_a_wheel_that_changed_under_its_name_is_refused_and_leaves_nothing(index, settings, stack, tmp_path):
    index.has("torch", "2.13.0")
    lock = resolve(ROOT, stack, settings=settings)
    index.has("torch", "2.13.0", requires=["other"])
    with pytest.raises(VerifyError, match=r"torch-2.13.0-py3-none-any.whl has the hash .* the lock says"):
        filled(ROOT, stack, lock, settings=settings)
    assert list((settings.wheels / "pinned").iterdir()) == []


def test_a_wheel_that_is_there_but_damaged_is_named(index, settings, stack, tmp_path):
    path = index.has("torch", "2.13.0")
    lock = resolve(ROOT, stack, settings=settings)
    (settings.wheels / "pinned").mkdir(parents=True)
    (settings.wheels / "pinned" / path.name).write_text("damaged")
    with pytest.raises(VerifyError) as caught:
        filled(ROOT, stack, lock, settings=settings)
    assert "take it away" in caught.value.hint


def test_an_unresolved_wheel_cannot_be_downloaded(settings, stack, tmp_path):
    lock = resolve(ROOT, stack, settings=settings, offline=True)
    with pytest.raises(UsageError, match="unresolved entries: wheel torch"):
        filled(ROOT, stack, lock, settings=settings)


def test_a_requirement_without_a_wheel_says_what_to_do(index, settings, stack, tmp_path):
    index.has("torch", "2.13.0")
    lock = resolve(ROOT, stack, settings=settings)
    with pytest.raises(UpstreamError, match="No matching distribution found for tool") as caught:
        filled(ROOT, stack, lock, settings=settings)
    assert "without a wheel" in caught.value.hint


def test_a_wheel_whose_index_is_out_of_reach_comes_from_where_pip_looks(index, settings, stack):
    far = Wheel(name="torch", version="2.13.0+cpu", index="http://127.0.0.1:9/whl/cpu")
    stack = stack.model_copy(update={"wheels": (far,)})
    with pytest.raises(UpstreamError, match="/whl/cpu/torch/ could not be asked"):
        resolve(ROOT, stack, settings=settings)
    path = index.has("torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    (wheel,) = resolve(ROOT, stack, settings=settings).wheels
    assert (wheel.version, wheel.url, wheel.sha256) == ("2.13.0+cpu", path.name, sha(path))


def test_a_wheel_without_an_index_comes_from_the_wheelhouse_before_pip_is_asked(index, tmp_path):
    wheel = Wheel(name="torch", version="2.13.0")
    there = make_wheel(tmp_path / "house" / "pinned", "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    found = local_wheel(wheel, python="3.11", folder=tmp_path / "house")
    assert (found.version, found.url, found.sha256) == ("2.13.0+cpu", there.name, sha(there))


def test_a_wheel_without_an_index_comes_from_where_pip_looks(index, tmp_path):
    path = index.has("torch", "2.13.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    found = local_wheel(Wheel(name="torch", version="2.13.0"), python="3.12", folder=tmp_path / "house")
    assert (found.url, found.sha256) == (path.name, sha(path))
    with pytest.raises(UpstreamError):
        local_wheel(Wheel(name="torch", version="2.13.0"), python="3.11", folder=tmp_path / "house")


@pytest.fixture
def upstream(tmp_path):
    """Return a repository over file:// with one commit, and that commit."""
    repo = Repo(tmp_path / "engine.git")
    commit = repo.commit({"setup.py": b"x"})
    return f"file://{repo.path}", commit


def test_everything_is_resolved_from_real_protocols_at_once(index, settings, stack, upstream, tmp_path, monkeypatch):
    url, commit = upstream
    index.has("torch", "2.13.0")
    with FakeRegistry() as registry:
        registry.auth = "token"
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        digest, _ = registry.add_image("rocm/dev", "7.2")
        base = Base(image=f"{registry.host}/rocm/dev:7.2")
        changed = stack.model_copy(
            update={
                "source": Source(repository=url, ref=MAIN),
                "bases": Bases(build=base, runtime=Base(image="rocm/dev:7.2")),
            }
        )
        mirrored = settings.model_copy(update={"registry_mirror": registry.host})
        lock = resolve(ROOT, changed, settings=mirrored)
    assert (lock.commit, lock.version) == (commit, f"0.0.dev0+g{commit[:12]}")
    assert {name: found.digest for name, found in lock.bases.items()} == {"build": digest, "runtime": digest}
    # the mirror is this machine's business: the lock names what everybody calls it
    assert lock.bases["runtime"].image == "rocm/dev:7.2"
    assert registry.token_requests


@pytest.fixture
def checkout(tmp_path, stack, upstream):
    """Return a checkout with a stack whose lock is unresolved."""
    root = tmp_path / "root"
    for name in ("templates", "patches"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(ROOT / name)
    changed = stack.model_copy(
        update={"name": "mine", "device": "rocm", "source": Source(repository=upstream[0], ref=MAIN)}
    )
    lock = resolve(root, changed, settings=load_settings(ROOT, {"HOME": str(tmp_path)}), offline=True)
    (root / "stacks").mkdir()
    (root / "stacks" / "mine.lock.yaml").write_text(lock.text())
    return root, changed


def test_a_build_resolves_what_is_unresolved_and_writes_the_lock(index, settings, checkout, upstream):
    root, stack = checkout
    index.has("torch", "2.13.0")
    assert load_lock(root, "mine").unresolved() == ["commit", "wheel torch"]
    lock = ensure_lock(root, stack, settings=settings, console=Console())
    assert lock.commit == upstream[1]
    assert load_lock(root, "mine") == lock
    assert lock.unresolved() == []


def test_a_build_of_another_commit_leaves_the_locks_commit_unresolved(index, settings, checkout):
    root, stack = checkout
    index.has("torch", "2.13.0")
    stack = stack.model_copy(update={"source": stack.source.model_copy(update={"repository": "file:///nowhere"})})
    (root / "stacks/mine.lock.yaml").write_text(resolve(root, stack, settings=settings, offline=True).text())
    lock = ensure_lock(root, stack, settings=settings, console=Console(), commit=False)
    assert lock.unresolved() == load_lock(root, "mine").unresolved() == ["commit"]


def test_a_stale_lock_stops_a_build(settings, checkout):
    root, stack = checkout
    with pytest.raises(UsageError, match="is stale"):
        ensure_lock(root, stack.model_copy(update={"title": "x"}), settings=settings, console=Console())


def test_the_lock_file_is_untouched_when_something_cannot_be_resolved(index, settings, checkout):
    root, stack = checkout
    before = (root / "stacks/mine.lock.yaml").read_text()
    with pytest.raises(UsageError):
        ensure_lock(root, stack, settings=settings, console=Console())
    assert (root / "stacks/mine.lock.yaml").read_text() == before


def test_a_wheels_file_name_is_the_end_of_its_address():
    wheel = LockedWheel(name="t", version="1", url="https://example.org/a/t-1%2Brocm-py3-none-any.whl", sha256="a" * 64)
    assert wheel.file == "t-1+rocm-py3-none-any.whl"
