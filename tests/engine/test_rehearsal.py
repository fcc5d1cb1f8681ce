"""The rehearsal on a real engine: the templates of vLLM and SGLang on a base from packages, with CPU torch."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from builder.build.image import build_image
from builder.build.run import Job, build
from builder.console import Console
from builder.engine.base import base_reference, bootstrap_base
from builder.errors import HostError
from builder.models.lock import load_lock
from builder.models.stack import Budget, load_stack, stack_names
from builder.objects import read_library
from builder.registry.publish import immutable_tag
from builder.resolve.lock import resolve
from builder.resolve.wheelhouse import filled
from builder.stage.context import Origin, make_context
from builder.stage.render import render

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def bookworm(engine, settings):
    """The base of the rehearsals."""
    return bootstrap_base(
        engine, "bookworm", cache=settings.cache, mirror=settings.apt_mirror, console=Console(), install=True
    )


@pytest.fixture(scope="session")
def rehearse(engine, settings, tmp_path_factory):
    """Return a function that rehearses a stack and returns its record and the log."""
    locks = {}

    def call(name, origin=None, **options):
        stack = load_stack(ROOT, f"{name}-rehearsal")
        lock = options.pop("lock", None) or locks.setdefault(name, resolve(ROOT, stack, settings=settings))
        before = set((ROOT / "logs").glob(f"{stack.name}-*.log"))
        job = Job(
            root=ROOT,
            stack=stack,
            lock=lock,
            engine=engine,
            origin=origin or Origin(),
            settings=options.pop("settings", settings),
            console=Console(),
            install=True,
            **options,
        )
        record, _ = build(job, tmp_path_factory.mktemp("records"))
        logs = sorted(set((ROOT / "logs").glob(f"{stack.name}-*.log")) - before)
        return record, "".join(log.read_text() for log in logs)

    return call


@pytest.fixture(scope="session")
def vllm(rehearse):
    return rehearse("vllm")[0]


def changed(folder, file, old, new):
    """Return a work tree of the look-alike with one change."""
    shutil.copytree(ROOT / "examples/vllm-lookalike", folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / file).read_text()
    assert old in text
    # another one every time: the engine's cache remembers what earlier runs compiled
    (folder / file).write_text(text.replace(old, new.replace("ONCE", str(time.time_ns()))))
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return Origin(location=str(folder), ref="refs/heads/main")


def layers(engine, image):
    """Return the layers of an image, the lowest first."""
    words = ["docker", "inspect", "--format", "{{json .RootFS.Layers}}", image]
    return json.loads(subprocess.check_output(words, env={**os.environ, **engine.environment}))


def ask(engine, record, *argv):
    done = engine.run_once(record.image_id, argv, files={}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_imports_its_version_is_the_pin_and_the_entry_point_starts_it(engine, vllm):
    said = ask(engine, vllm, "gfx1100-entry", "vllm", "serve", "model")
    assert said.strip().endswith(f"vllm look-alike {vllm.version} 1100 ['serve', 'model']")
    assert {check.status for check in vllm.verification.checks if check.id in {"imports", "version", "labels"}} == {
        "ok"
    }


def test_what_a_rehearsal_cannot_prove_stands_in_its_record(engine, vllm):
    assert any("gfx1100" in line for line in vllm.unproven)
    assert engine.image(vllm.image_id).labels["io.gfx1100.device"] == "none"


def test_the_compiled_library_comes_out_of_the_native_stage_into_the_wheel(engine, vllm):
    asked = "import importlib.metadata as m; print([str(f) for f in m.files('vllm') if f.suffix == '.so'])"
    assert ask(engine, vllm, "python3", "-c", asked).strip() == "['vllm/_C.abi3.so']"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("vllm/envs.py", '"8000"', '"ONCE"'), ("vllm/entrypoints/cli/main.py", "Say who", "ONCE")],
    ids=["a setting that the build does not ask for", "another file"],
)
def test_a_python_only_change_compiles_nothing_and_moves_the_top_layers_alone(
    engine, rehearse, vllm, tmp_path, file, old, new
):
    record, log = rehearse("vllm", changed(tmp_path / "tree", file, old, new))
    assert "compiling csrc" not in log
    one, two = layers(engine, vllm.image_id), layers(engine, record.image_id)
    moved = [layer for layer in two if layer not in one]
    assert len(moved) <= 3
    # the base, its packages, the user, the five parts of torch, the requirements, the entry point
    assert one[:10] == two[:10]


def test_torch_is_divided_into_layers_within_the_budget_that_another_install_makes_again_byte_for_byte(
    engine, settings, vllm, tmp_path
):
    limit = 450_000_000
    budget = Budget(image_bytes=5 * limit, layer_bytes=limit)
    stack = load_stack(ROOT, "vllm-rehearsal").model_copy(update={"budget": budget})
    lock = resolve(ROOT, stack, settings=settings)
    context = make_context(ROOT, stack, lock, tmp_path / "context", origin=Origin(), settings=settings)
    done = build_image(
        engine,
        context.folder,
        tags=(),
        settings=settings,
        jobs=1,
        log=tmp_path / "log",
        console=Console(),
        target="torch",
    )
    image = engine.image(done.image_id)
    parts = [size for size, text in zip(image.layers, image.history, strict=True) if "/parts/" in text]
    assert len(parts) == 5
    assert max(parts) <= limit
    # an engine may count the folders of a layer without files
    assert len([size for size in parts if size > 1 << 20]) == 3
    # torch's own requirements come later, but its libraries find each other across the layers
    load = "import ctypes, glob; print(ctypes.CDLL(glob.glob('/opt/venv/lib/*/*/torch/lib/libtorch_python.so')[0]))"
    loaded = engine.run_once(image.id, ["python3", "-c", load], files={}, timeout=60)
    assert "libtorch_python.so" in loaded.stdout, loaded.stderr
    # the small files are the same ones in both images, and pip wrote them twice
    assert layers(engine, image.id)[7] == layers(engine, vllm.image_id)[7]


ROCM = """FROM gfx1100/vllm-rehearsal:TAG
USER root
RUN mkdir -p /opt/rocm-7.2.3/lib/rocblas/library && ln -s rocm-7.2.3 /opt/rocm && cd /opt/rocm/lib && touch libck.a \\
    && cp /lib/x86_64-linux-gnu/libcrypt.so.1 libour.so.1 && ln -s libour.so.1 libour.so \\
    && touch rocblas/library/one_gfx90a.dat rocblas/library/one_gfx1100.dat
"""


def test_rocms_libraries_come_from_the_base_of_the_build_in_layers_and_without_what_the_image_has_no_use_for(
    engine, settings, vllm, tmp_path, names
):
    options = {"settings": settings, "jobs": 1, "log": tmp_path / "log", "console": Console()}
    (tmp_path / "rocm").mkdir()
    (tmp_path / "rocm/Dockerfile").write_text(ROCM.replace("TAG", immutable_tag(vllm)))
    build_image(engine, tmp_path / "rocm", tags=(f"{names[0]}:test",), **options)
    stack = load_stack(ROOT, "vllm-rehearsal").model_copy(update={"template": "wheel"})
    lock = resolve(ROOT, stack, settings=settings)
    context = make_context(ROOT, stack, lock, tmp_path / "context", origin=Origin(), settings=settings)
    dockerfile = context.folder / "Dockerfile"
    text, replaced = re.subn(r"FROM \S+ AS rocm-parts", f"FROM {names[0]}:test AS rocm-parts", dockerfile.read_text())
    assert replaced == 1
    dockerfile.write_text(text)
    done = build_image(engine, context.folder, tags=(), target="torch", **options)
    found = engine.run_once(
        done.image_id, ["sh", "-c", "cd /opt/rocm-7.2.3 && find . ! -type d | sort"], files={}, timeout=60
    )
    expected = ["./lib/libour.so", "./lib/libour.so.1", "./lib/rocblas/library/one_gfx1100.dat"]
    assert found.stdout.split() == expected, found.stderr


def test_a_change_of_a_native_file_compiles(rehearse, vllm, tmp_path):
    _, log = rehearse("vllm", changed(tmp_path / "tree", "csrc/answer.c", "1100", "1101 /* ONCE */"))
    assert "compiling csrc" in log


def test_sglang_is_built_patched_and_joined_from_its_parts(engine, rehearse):
    record, _ = rehearse("sglang")
    said = ask(engine, record, "gfx1100-entry", "sglang.launch_server", "--port", "1")
    assert said.strip().endswith(f"sglang look-alike {record.version} ['--port', '1']")
    asked = "import sgl_kernel, importlib.metadata as m; print(sgl_kernel.gptq_gemm(1, 2), m.version('sglang-kernel'))"
    assert ask(engine, record, "python3", "-c", asked).strip().endswith("2 0.4.6")
    # importing the all-reduce once more finds the library of its own key and compiles nothing
    asked = (
        "import sys; sys.path.append('/opt/sglang/scripts/rdna_ar'); import rdna_ar_ext as r; print(r.LIBRARY.exists())"
    )
    assert ask(engine, record, "python3", "-c", asked).strip() == "True"


def settings_run(settings):
    return settings.wheels / "vllm-rehearsal" / "run"


def test_a_full_wheelhouse_needs_no_network(rehearse, settings, tmp_path):
    stack = load_stack(ROOT, "vllm-rehearsal")
    own = settings.model_copy(update={"wheelhouse": str(tmp_path / "wheelhouse")})
    lock = filled(ROOT, stack, resolve(ROOT, stack, settings=own), settings=own)
    assert {wheel.name for wheel in lock.requirements} >= {"msgspec", "regex", "sympy"}
    # so that the install runs, whatever the engine's cache remembers
    (settings_run(own) / f"unrelated-{time.time_ns()}-py3-none-any.whl").touch()
    _, log = rehearse("vllm", lock=lock, settings=own, offline=True)
    assert "Looking in links: /wheelhouse" in log
    assert not re.search(r"Downloading|Looking in indexes", log)


def test_a_wheelhouse_that_lacks_something_stops_a_build_offline_before_it_begins(rehearse, settings, tmp_path):
    own = settings.model_copy(update={"wheelhouse": str(tmp_path / "wheelhouse")})
    with pytest.raises(HostError, match=r"the wheelhouse .* lacks torch-2.13.0.*whl \(1 in all\)"):
        rehearse("vllm", settings=own, offline=True)


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_buildkit_parses_the_dockerfile(engine, settings, bookworm, name, tmp_path):
    text = render(ROOT, load_stack(ROOT, name), load_lock(ROOT, name))
    # all instructions of all stages are parsed, whichever stage is built; the published bases cannot be had here
    parsed = re.sub(r"^FROM \S+[:@]\S+", f"FROM {base_reference('bookworm')}", text, flags=re.MULTILINE)
    (tmp_path / "Dockerfile").write_text(f"{parsed}\nFROM {base_reference('bookworm')} AS parsed\nLABEL parsed=1\n")
    done = build_image(
        engine,
        tmp_path,
        tags=(),
        settings=settings,
        jobs=1,
        log=tmp_path / "log",
        console=Console(),
        target="parsed",
    )
    assert engine.image(done.image_id).labels["parsed"] == "1"


FAT = """
import ctypes, hashlib, json, subprocess, sys
def load():
    library = ctypes.CDLL("/fat/lib.so")
    return library.answer()
def told():
    done = subprocess.run([sys.executable, "/prune.py", "gfx1100", "/fat", "--strip"], capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["groups"]
print(json.dumps({"before": load(), "groups": told(), "after": load(), "again": told()}))
"""


def test_a_library_that_hipcc_made_for_two_architectures_loads_as_before_when_one_is_zeroed(
    engine, settings, base, tmp_path, names
):
    smoke = load_stack(ROOT, "smoke")
    context = make_context(
        ROOT, smoke, load_lock(ROOT, "smoke"), tmp_path / "smoke", origin=Origin(), settings=settings
    )
    options = {"settings": settings, "jobs": 1, "log": tmp_path / "log", "console": Console()}
    build_image(engine, context.folder, tags=(f"{names[0]}:test",), target="native-build", **options)
    (tmp_path / "lib.hip").write_text(
        "#include <hip/hip_runtime.h>\n__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n"
        'extern "C" int answer() { float* x = nullptr; hipLaunchKernelGGL(twice, 1, 1, 0, 0, x); return 42; }\n'
    )
    (tmp_path / "try.py").write_text(FAT)
    shutil.copyfile(ROOT / "templates/prune.py", tmp_path / "prune.py")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {names[0]}:test\nCOPY lib.hip /\n"
        "RUN mkdir /fat && hipcc --offload-arch=gfx1100 --offload-arch=gfx1030 -shared -fPIC"
        " -o /fat/lib.so /lib.hip\nCOPY prune.py try.py /\n"
    )
    done = build_image(engine, tmp_path, tags=(), **options)
    before = engine.read_files(done.image_id, ["/fat/lib.so"], limit=1 << 28)["/fat/lib.so"]
    assert read_library(before).archs == ("gfx1030", "gfx1100")
    answer = engine.run_once(done.image_id, ["python3", "/try.py"], files={}, timeout=60)
    told = json.loads(answer.stdout)
    assert (told["before"], told["after"]) == (42, 42)
    assert told["groups"]["libraries"]["removed"] == 1
    assert told["again"]["libraries"]["after"] == told["groups"]["libraries"]["after"]
