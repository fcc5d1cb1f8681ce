"""Locks: wheels from both forms of index over real http, what moves, what is stale, and nothing written in part."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

from builder.errors import UpstreamError, UsageError
from builder.models.lock import load_lock
from builder.models.stack import Wheel, load_stack, stack_names
from builder.resolve.lock import differences, resolve, stale
from builder.resolve.wheels import find_wheel
from builder.settings import load_settings

ROOT = Path(__file__).parents[2]
FILE = "torch-2.13.0%2Brocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl"
OTHERS = ("torch-2.12.0%2Brocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl", FILE.replace("cp312", "cp311"))
HASH = "ab" * 32
HTML = ("text/html", "".join(f'<a href="../files/{name}#sha256={HASH}">x</a>' for name in (FILE, *OTHERS)))
JSON = (
    "application/vnd.pypi.simple.v1+json",
    json.dumps(
        {"files": [{"filename": FILE.replace("%2B", "+"), "url": f"../files/{FILE}", "hashes": {"sha256": HASH}}]}
    ),
)


@pytest.fixture
def index():
    """Return a function that serves one page and gives the index's address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, kind, body = self.server.page
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def serve(kind, body, status=200):
            server.page = (status, kind, body)
            return f"http://127.0.0.1:{server.server_address[1]}/whl"

        yield serve
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(tmp_path):
    return load_settings(ROOT, {"HOME": str(tmp_path / "home")})


def find(address, settings, version="2.13.0+rocm7.2", python="3.12"):
    return find_wheel(Wheel(name="torch", version=version, index=address), python=python, settings=settings)


@pytest.mark.parametrize("page", [HTML, JSON], ids=["html", "json"])
def test_a_wheel_is_found_with_its_hash_in_both_forms_of_index(index, settings, page):
    found = find(index(*page), settings)
    assert found.sha256 == HASH
    assert found.url.endswith(f"/whl/files/{FILE}")


def test_a_version_that_the_index_does_not_have_is_an_error(index, settings):
    with pytest.raises(UsageError, match=r"no wheel of torch 2.14.0 for Python 3.12"):
        find(index(*HTML), settings, version="2.14.0")


def test_a_wheel_of_another_python_does_not_fit(index, settings):
    with pytest.raises(UsageError, match=r"for Python 3.13"):
        find(index(*HTML), settings, python="3.13")


def test_a_wheel_without_a_hash_is_refused(index, settings):
    with pytest.raises(UsageError, match="gives no SHA-256"):
        find(index("text/html", f'<a href="{FILE}">x</a>'), settings)


def test_a_yanked_wheel_is_not_taken(index, settings):
    with pytest.raises(UsageError, match="no wheel of torch"):
        find(index("text/html", f'<a data-yanked="bad" href="{FILE}#sha256={HASH}">x</a>'), settings)


@pytest.mark.parametrize(
    ("kind", "body", "status", "error"),
    [
        ("text/html", "", 500, UpstreamError),
        ("text/html", "", 404, UsageError),
        ("image/png", "x", 200, UpstreamError),
        ("application/vnd.pypi.simple.v1+json", "{", 200, UpstreamError),
        ("application/vnd.pypi.simple.v1+json", "[]", 200, UpstreamError),
    ],
)
def test_an_answer_that_is_no_index_page_is_an_error(index, settings, kind, body, status, error):
    with pytest.raises(error):
        find(index(kind, body, status), settings)


def test_an_index_that_cannot_be_reached_is_unknown(settings):
    with pytest.raises(UpstreamError, match="could not be asked"):
        find("http://127.0.0.1:1/whl", settings)


def test_the_committed_locks_are_fresh(settings):
    for name in stack_names(ROOT):
        assert stale(ROOT, load_stack(ROOT, name), load_lock(ROOT, name), settings=settings) == []


def test_resolving_again_moves_nothing(settings):
    lock = load_lock(ROOT, "smoke")
    fresh = resolve(ROOT, load_stack(ROOT, "smoke"), settings=settings, previous=lock)
    assert differences(lock, fresh) == []
    assert fresh.text() == lock.text()


def test_what_is_unknown_stays_unresolved_offline(settings):
    lock = resolve(ROOT, load_stack(ROOT, "vllm"), settings=settings, offline=True)
    assert lock.unresolved() == [
        "commit",
        "wheel torch",
        "wheel triton-rocm",
        "wheel torchvision",
        "fetch triton-kernels",
    ]


def test_a_resolved_entry_is_kept_and_a_wheel_that_is_known_is_not_asked_for_again(settings):
    stack, lock = load_stack(ROOT, "vllm"), load_lock(ROOT, "vllm")
    known = tuple(wheel.model_copy(update={"url": "https://e/x.whl", "sha256": HASH}) for wheel in lock.wheels)
    fetched = tuple(fetch.model_copy(update={"commit": "b" * 40}) for fetch in lock.fetched)
    kept = lock.model_copy(update={"commit": "a" * 40, "wheels": known, "fetched": fetched})
    fresh = resolve(ROOT, stack, settings=settings, previous=kept)
    assert fresh.unresolved() == []
    assert fresh.version == "0.0.dev0+gaaaaaaaaaaaa"


@pytest.fixture
def checkout(tmp_path):
    for folder in ("stacks", "templates", "patches", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / "root" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("stacks/smoke.yaml", "smoke.yaml has changed"),
        ("templates/macros.j2", "the template smoke has changed"),
        ("patches/smoke/smoke-store.yaml", "the series patches/smoke has changed"),
        ("examples/smoke-engine/README.md", "the files of examples/smoke-engine have changed"),
    ],
)
def test_a_lock_is_stale_when_anything_that_it_was_made_from_changes(checkout, settings, file, words):
    path = checkout / file
    text = path.read_text()
    path.write_text(text.replace("title: ", "title: X", 1) if path.suffix == ".yaml" else text + "\n")
    found = stale(checkout, load_stack(checkout, "smoke"), load_lock(checkout, "smoke"), settings=settings)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("version", ["0.1.dev1", "0.0.dev0+gaaaaaaaaaaaa", "unresolved"])
@pytest.mark.parametrize("name", ["smoke", "vllm-upstream"])
def test_a_lock_whose_version_is_not_the_one_of_its_commit_is_stale(settings, name, version):
    lock = load_lock(ROOT, name).model_copy(update={"version": version})
    [found] = stale(ROOT, load_stack(ROOT, name), lock, settings=settings)
    assert f"the version is {version}, and its commit's is " in found


@pytest.mark.parametrize("name", ["build", "runtime", "rccl"])
def test_a_lock_is_stale_when_the_recipe_of_any_of_its_bases_changed(settings, name):
    stack = load_stack(ROOT, "smoke")
    three = stack.bases.model_copy(update={"rccl": stack.bases.build})
    stack = stack.model_copy(update={"bases": three})
    lock = resolve(ROOT, stack, settings=settings, offline=True)
    assert stale(ROOT, stack, lock, settings=settings) == []
    other = lock.bases[name].model_copy(update={"recipe_sha256": "0" * 64})
    lock = lock.model_copy(update={"bases": {**lock.bases, name: other}})
    assert stale(ROOT, stack, lock, settings=settings) == [f"the recipe of the {name} base has changed"]


def test_a_lock_without_a_commit_has_no_version_either(settings):
    lock = load_lock(ROOT, "vllm").model_copy(update={"version": "0.1.dev1"})
    assert lock.commit == "unresolved"
    [found] = stale(ROOT, load_stack(ROOT, "vllm"), lock, settings=settings)
    assert "the version is 0.1.dev1" in found
