"""The live view: steps, time left, figures and silent fallbacks, read off the lines that engines write."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine

from builder.cli.state import find_root
from builder.deploy.lines import CAUSES, FALLBACKS, FIGURES, STEPS
from builder.deploy.progress import LogReader, Progress, first_error, likely_cause
from builder.engine.port import Container
from builder.models.profile import Profile, load_profile

ROOT = find_root(None)
SMOKE = load_profile(ROOT, "smoke")
# lines of vLLM 0.32, of SGLang 0.5.20 and of its gfx1100 fork, as their logs have them
VLLM_SHARDS = "(Worker pid=37) Loading safetensors checkpoint shards:  50% Completed | 4/8 [00:07<00:08,  2.1s/it]"
VLLM_GRAPHS = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  60%|######    | 3/5 [00:02<00:01,  1.3it/s]"
VLLM_CACHE = "(EngineCore pid=25) INFO 11-29 14:17:26 [kv_cache_utils.py:2327] GPU KV cache size: 638,075 tokens"
SGLANG_CACHE = (
    "[22:24:31 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 197144, K size: 2.88 GB, V size: 2.88 GB"
)
SGLANG_GRAPHS = "Capturing batches (bs=2 avail_mem=1.72 GB):  67%|######    | 2/3 [00:18<00:09,  4.57s/it]"
OWN_AR = (
    "SGLANG_RDNA_CUSTOM_AR=1: using standalone RDNA custom allreduce extension (rdna_ar_ext); sgl_kernel AR ops are "
    "overridden"
)
OWN_VERIFY = "rdna_unified_verify ACTIVE (verify path)"


def fed(*lines, profile=SMOKE, at=10.0, **more):
    progress = Progress(profile, **more)
    progress.feed(lines, at=at)
    return progress


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (VLLM_SHARDS, "loading shards 4/8"),
        (VLLM_GRAPHS, "capturing graphs 3/5"),
        (SGLANG_GRAPHS, "capturing graphs 2/3"),
        (VLLM_CACHE, "the KV cache is allocated"),
        (SGLANG_CACHE, "the KV cache is allocated"),
        (
            "[22:24:31] Capture cuda graph begin. This can take up to several minutes. avail mem=4.73 GB",
            "capturing graphs",
        ),
        ("INFO [smoke_engine.loading] Loading shards 3/8", "loading shards 3/8"),
        ("INFO [smoke_engine.loading] Capturing graphs 2/4 (batch size 2)", "capturing graphs 2/4"),
        ("INFO [backends.py:200] Dynamo bytecode transform time: 4.20 s", "compiling kernels"),
        ("INFO:     Application startup complete.", "listening"),
        ("The server is fired up and ready to roll!", "listening"),
        ("something that nobody knows", "starting"),
    ],
)
def test_a_line_tells_the_step(line, told):
    assert fed(line).text(10.0) == told


def test_the_settings_that_an_engine_prints_are_no_step():
    line = "config: CompilationConfig(mode=0, enable_flashinfer_autotune=True, cudagraph_capture_sizes=[])"
    assert fed(line).text(1.0) == "starting"


def test_the_time_left_of_a_counted_step_follows_its_pace():
    progress = fed("Loading shards 1/8", at=10.0)
    progress.feed(["Loading shards 4/8"], at=30.0)
    assert progress.text(30.0) == "loading shards 4/8 (about 20 s left of this step)"


def test_the_last_start_of_the_same_image_tells_the_time_left_in_all():
    progress = fed("Loading shards 1/8", usual=95.0)
    assert "about 85 s in all" in progress.text(10.0)
    assert "the last start took 95 s" in progress.text(100.0)


def test_a_silent_server_is_told_of():
    assert "no word for 200 s" in fed(VLLM_CACHE, at=10.0).text(210.0)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (VLLM_CACHE, "kv_tokens", 638_075),
        (SGLANG_CACHE, "kv_tokens", 197_144),
        ("max_total_num_tokens=195013, chunked_prefill_size=2048", "kv_tokens", 195_013),
        ("Setting attention block size to 3296 tokens to ensure that", "block_tokens", 3296),
    ],
)
def test_figures_are_read(line, name, value):
    assert fed(line).figures == {name: value}


DFLASH = load_profile(ROOT, "sglang-dflash2")
INT8 = load_profile(ROOT, "vllm-int8-128k")
OCTAVE = load_profile(ROOT, "vllm-octave-256k")
GOOD_SGLANG = (OWN_AR, OWN_VERIFY, SGLANG_CACHE)


def test_a_good_start_warns_of_nothing():
    assert fed(*GOOD_SGLANG, profile=DFLASH).warnings() == []
    assert fed(VLLM_CACHE, profile=INT8).warnings() == []


@pytest.mark.parametrize(
    ("profile", "lines", "words"),
    [
        (DFLASH, (*GOOD_SGLANG, "SGLANG_RDNA_CUSTOM_AR=1 but failed to load rdna_ar_ext: no file"), "through RCCL"),
        (DFLASH, (OWN_VERIFY, SGLANG_CACHE), "did not say that it is used"),
        (DFLASH, (OWN_AR, SGLANG_CACHE), "no prompt went through rdna_unified_verify"),
        (DFLASH, (*GOOD_SGLANG, "rdna_unified_verify decode unavailable (page_size)"), "plain Triton kernel"),
        (DFLASH, (*GOOD_SGLANG, "[rdna_ar] vendor seeding failed: x"), "compiled at every start"),
        (
            INT8,
            (VLLM_CACHE, "WARNING Failed to import from vllm._C with ImportError('x')"),
            "a library of vLLM's kernels",
        ),
        (INT8, (VLLM_CACHE, "Custom allreduce is disabled because of missing custom"), "custom all-reduce is off"),
        (OCTAVE, ("Parameter mtp.fc.weight not found in params_dict, skip loading",), "no draft will be accepted"),
        (INT8, ("GPU KV cache size: 100,000 tokens",), "less than one context of 131,072"),
        (INT8, ("GPU KV cache size: 400,000 tokens",), "638,075 were measured"),
        (OCTAVE, ("Setting attention block size to 1584 tokens",), "no multiple of the block of 1,584"),
    ],
)
def test_a_silent_fallback_is_raised(profile, lines, words):
    warnings = fed(*lines, profile=profile).warnings()
    assert any(words in warning for warning in warnings), warnings


def test_a_profile_without_cards_is_not_told_of_an_all_reduce():
    assert fed("Custom allreduce is disabled because of missing custom allreduce library").warnings() == []


def test_every_line_of_the_tables_says_where_it_is_known_from():
    for entry in (*STEPS, *FIGURES, *FALLBACKS):
        assert entry.source.startswith("https://")
    assert len({cause.pattern for cause in CAUSES}) == len(CAUSES)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.41 GiB.", "--gpu-memory-utilization"),
        ("RuntimeError: [Errno 12] Cannot allocate memory", "the host's memory"),
        ("Bus error (core dumped)", "shm_bytes"),
        (
            "HSA_STATUS_ERROR_EXCEPTION: an HSAIL operation resulted in a hardware exception. code: 0x1016",
            "GPU's queue",
        ),
        ("There is no module or parameter named 'layers.0' in Qwen3_5MultiTokenPredictor", "checkpoint fix"),
        ("vllm: error: unrecognized arguments: --spec-method mtp", "does not know a flag"),
        ("hipErrorNoBinaryForGpu: Unable to find code object", "not built for this card"),
        ("ValueError: No available memory for the cache blocks", "lower --max-model-len"),
        ("Unable to open /dev/kfd read-write: Permission denied", "doctor"),
        ("Segmentation fault", "read the log above"),
    ],
)
def test_the_cause_of_a_death_is_read_off_its_log(log, words):
    assert words in likely_cause(log, out_of_memory=False)


def test_the_first_error_is_found_under_its_echo():
    log = "\n".join(
        ["INFO fine", "ERROR [x.py] RuntimeError: Unsupported head_dim=16", *["EngineDeadError: gone"] * 50]
    )
    assert first_error(log) == "RuntimeError: Unsupported head_dim=16"
    assert first_error("INFO fine") is None


def container(engine, log):
    box = Container(id="c", name="c", image_id="i", state="running")
    engine.boxes["c"], engine.log["c"] = box, log
    return box


def test_each_line_of_a_growing_log_is_read_once():
    engine = FakeEngine()
    reader = LogReader(engine, container(engine, "one\ntwo"))
    assert reader.new_lines() == ["one", "two"]
    assert reader.new_lines() == []
    engine.log["c"] += "\nthree"
    assert reader.new_lines() == ["three"]


def test_lines_of_the_same_moment_are_neither_lost_nor_told_twice(monkeypatch):
    engine = FakeEngine()
    reader = LogReader(engine, container(engine, ""))
    told = [(5.0, "a"), (5.0, "b")]
    monkeypatch.setattr(engine, "logs_since", lambda _, since: [line for line in told if line[0] >= since])
    assert reader.new_lines() == ["a", "b"]
    told += [(5.0, "c"), (6.0, "d")]
    assert reader.new_lines() == ["c", "d"]


def test_a_progress_bar_that_redraws_itself_gives_its_last_state():
    engine = FakeEngine()
    reader = LogReader(engine, container(engine, "Loading shards 1/8\rLoading shards 2/8\r"))
    assert reader.new_lines() == ["Loading shards 1/8", "Loading shards 2/8"]


def test_what_a_container_said_before_its_last_start_is_not_read():
    engine = FakeEngine()
    box = container(engine, "old\nnew")
    started = replace(box, started_at="1970-01-01T00:00:02.000000000Z")
    assert LogReader(engine, started).new_lines() == ["new"]


def test_a_flag_is_read_in_both_spellings():
    profile = Profile.model_validate({**SMOKE.model_dump(), "command": ("--max-model-len=4096",)})
    assert fed("GPU KV cache size: 100 tokens", profile=profile).warnings()
