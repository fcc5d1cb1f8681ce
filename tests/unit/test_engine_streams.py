"""BuildKit's plain progress as steps, and a failed step as a class with a next step."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.engine.streams import TAIL_LINES, BuildOutput, classify

LOGS = Path(__file__).parents[1] / "fixtures" / "buildkit"


def fed(*lines):
    output = BuildOutput()
    for line in lines:
        output.feed(line)
    return output


def running(output):
    return [step for step in output.steps.values() if step.state == "running"]


def failed(*printed, error="executor failed running [/bin/sh -c make]: exit code: 1", name="[native 2/3] RUN make"):
    return fed(f"#5 {name}", *(f"#5 0.{i} {line}" for i, line in enumerate(printed)), f"#5 ERROR: {error}")


@pytest.mark.parametrize("log", ["docker-20.10-failed.log", "buildx-0.13-failed.log"])
def test_old_and_new_output_name_the_same_failing_step_with_its_lines(log):
    output = fed(*(LOGS / log).read_text().splitlines())
    assert output.failed.name == '[native 3/3] RUN echo a; echo "foo.cc:3:4: error: no x"; exit 2'
    assert list(output.failed.tail) == ["a", "foo.cc:3:4: error: no x"]
    assert classify(output).kind == "compile"
    assert running(output) == []


def test_only_instructions_that_do_work_count_as_such():
    output = fed(*(LOGS / "docker-20.10-failed.log").read_text().splitlines())
    assert [step.number for step in output.steps.values() if step.is_instruction] == [5, 6]


def test_a_step_that_comes_back_after_another_is_the_same_step():
    output = fed(
        "#5 [a 1/2] RUN x", "#5 0.1 one", "#6 [b 1/2] RUN y", "#5 ...", "#6 0.1 two", "#5 [a 1/2] RUN x", "#5 0.2 three"
    )
    assert list(output.steps[5].tail) == ["one", "three"]
    assert len(running(output)) == 2


def test_seconds_and_cache_hits_are_read():
    output = fed("#5 [2/3] RUN x", "#5 DONE 12.5s", "#6 [3/3] COPY a b", "#6 CACHED")
    assert (output.steps[5].seconds, output.steps[5].state) == (12.5, "done")
    assert output.steps[6].state == "cached"


def test_the_step_that_failed_comes_before_those_cancelled_because_of_it():
    output = fed("#5 [a 2/2] RUN x", "#6 [b 2/2] RUN y", "#5 ERROR: context canceled", "#6 ERROR: x: exit code: 1")
    assert output.failed.number == 6


def test_a_cancelled_step_no_longer_runs():
    assert running(fed("#5 [a 2/2] RUN x", "#5 CANCELED")) == []


def test_a_progress_bar_is_kept_as_its_last_state():
    assert list(failed("10%\r50%\r100%").failed.tail) == ["100%"]


def test_only_the_last_lines_of_a_step_are_kept():
    output = failed(*map(str, range(100)))
    assert list(output.failed.tail) == [str(n) for n in range(100 - TAIL_LINES, 100)]


@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        ("memory", ["c++: fatal error: Killed signal terminated program cc1plus"]),
        ("memory", ["clang: error: unable to execute command: Killed"]),
        ("memory", ["subprocess.CalledProcessError: Command '['cmake']' died with <Signals.SIGKILL: 9>."]),
        ("memory", ["CalledProcessError: Command '['cmake', '--build']' returned non-zero exit status 9."]),
        ("memory", ["terminate called after throwing an instance of 'std::bad_alloc'"]),
        ("memory", ["LLVM ERROR: out of memory"]),
        ("space", ["tar: x: Cannot write: No space left on device"]),
        ("space", ["OSError: [Errno 122] Disk quota exceeded"]),
        ("network", ["E: Failed to fetch http://h/x  Temporary failure resolving 'h'"]),
        (
            "network",
            ["urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='h', port=443): Read timed out."],
        ),
        ("network", ["fatal: unable to access 'https://h/': gnutls_handshake() failed"]),
        ("network", ["curl: (56) Recv failure"]),
        ("network", ["error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly"]),
        ("compile", ["/s/a.hip:3:5: error: use of undeclared identifier 'x'", "1 error generated."]),
        ("compile", ["ld.lld: error: undefined symbol: f"]),
        ("compile", ["FAILED: a.o", "ninja: build stopped: subcommand failed."]),
        ("guard", ["gfx1100-guard: torch is 2.13.0, not 2.13.0+rocm7.2"]),
        ("guard", ["gfx1100-parts: lib.so has 5 bytes and a layer may have 4: raise budget.layer_bytes of the stack"]),
        ("patch", ["error: patch failed: a.py:3", "error: a.py: patch does not apply"]),
        ("unknown", ["something else"]),
        ("unknown", []),
    ],
)
def test_what_a_step_printed_gives_its_class(kind, printed):
    failure = classify(failed(*printed))
    assert failure.kind == kind
    assert failure.hint


def test_a_kill_decides_even_when_other_jobs_print_long_after_it():
    printed = [
        "c++: fatal error: Killed signal terminated program cc1plus",
        *["[5/9] Building"] * 200,
        "a.cc:1:2: error: x",
    ]
    assert classify(failed(*printed)).kind == "memory"


def test_exit_137_is_out_of_memory_without_any_word_about_it():
    assert classify(failed("[5/9] Building", error="executor failed running [x]: exit code: 137")).kind == "memory"


def test_exit_status_9_beside_a_compiler_error_is_the_compilers():
    printed = ["a.cc:1:2: error: no x", "CalledProcessError: returned non-zero exit status 9."]
    assert classify(failed(*printed)).kind == "compile"


def test_words_in_the_command_itself_do_not_decide():
    command = (
        "executor failed running [/bin/sh -c test -f x || echo 'gfx1100-guard: no x: Connection refused']: exit code: 1"
    )
    assert classify(failed(name="[2/2] RUN echo 'No space left on device'", error=command)).kind == "unknown"


def test_a_network_fault_that_was_overcome_long_before_does_not_decide():
    printed = ["Connection timed out, retrying", *["building"] * TAIL_LINES, "a.cc:1:2: error: x"]
    assert classify(failed(*printed)).kind == "compile"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("base", "reg/x@sha256:00: not found"),
        ("base", "failed to resolve source metadata for reg/x: reg/x@sha256:00: not found"),
        ("base", "pull access denied, repository does not exist or may require authorization"),
        (
            "network",
            "failed to resolve source metadata for reg/x: failed to do request: dial tcp: lookup reg: no such host",
        ),
        ("network", "failed to do request: Head: net/http: TLS handshake timeout"),
    ],
)
def test_a_base_that_is_gone_is_told_from_one_that_cannot_be_asked_for(kind, error):
    assert classify(failed(error=error, name="[internal] load metadata for reg/x@sha256:00")).kind == kind


def test_a_certificate_that_is_not_trusted_names_the_setting():
    line = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate'))"
    assert "ca_bundle" in classify(failed(line)).hint


def test_a_failure_before_any_step_shows_the_engines_own_words():
    failure = classify(fed("failed to solve: dockerfile parse error line 2: unknown instruction: RUNN"))
    assert failure.lines == ("failed to solve: dockerfile parse error line 2: unknown instruction: RUNN",)


def test_a_full_disk_before_any_step_is_recognised():
    assert classify(fed("ERROR: write /data/x: no space left on device")).kind == "space"


LINE = st.one_of(
    st.text(max_size=60), st.from_regex(r"#\d{1,2} (\[a \d/\d\] |\d\.\d |DONE \d\.\ds|CACHED|ERROR: )?.{0,20}")
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, max_size=30))
def test_no_output_breaks_the_reader(lines):
    output = fed(*lines)
    assert classify(output).kind in {"memory", "space", "network", "base", "compile", "guard", "patch", "unknown"}
    assert all(len(step.tail) <= TAIL_LINES for step in output.steps.values())
