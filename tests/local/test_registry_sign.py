"""Signatures: how cosign is called, and what its absence and its refusal become."""

import json
import os

import pytest

from builder.errors import HostError, RegistryError, UsageError, VerifyError
from builder.registry.reference import parse_reference
from builder.registry.sign import require_signature, signer
from builder.settings import Settings

PLACE = parse_reference(f"127.0.0.1:5000/team/app@sha256:{'d' * 64}")
# writes its arguments down and does as it is told; the help text is that of a release with or without signing configs
COSIGN = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[2:] == ["--help"]:
    print(os.environ.get("COSIGN_HELP", "--tlog-upload"))
    sys.exit()
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:] + [os.environ.get("SSL_CERT_FILE")]) + "\\n")
sys.stderr.write("no matching signatures\\n")
sys.exit(int(os.environ.get("COSIGN_STATUS", "0")))
"""


@pytest.fixture
def settings(tmp_path):
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A cosign that notes its calls, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "calls"
    log.touch()
    program = folder / "cosign"
    program.write_text(COSIGN.format(log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "cosign.key"
    path.touch()
    return str(path)


def test_a_key_signs_the_digest_outside_of_the_public_log(calls, key, settings):
    signer(key, settings)(PLACE)
    assert calls() == [["sign", "--yes", "--key", key, "--tlog-upload=false", str(PLACE), None]]


def test_a_release_with_signing_configs_is_told_to_use_none(calls, key, settings, monkeypatch):
    monkeypatch.setenv("COSIGN_HELP", "  --use-signing-config=true:")
    signer(key, settings)(PLACE)
    assert {"--use-signing-config=false", "--new-bundle-format=false", "--tlog-upload=false"} < set(calls()[0])


def test_keyless_signs_in_the_public_log(calls, settings):
    signer("keyless", settings)(PLACE)
    assert calls() == [["sign", "--yes", str(PLACE), None]]


def test_a_key_service_is_no_file(calls, settings):
    signer("hashivault://mine", settings)(PLACE)
    assert calls()[0][2:4] == ["--key", "hashivault://mine"]


def test_the_ca_bundle_reaches_cosign(calls, key, settings):
    signer(key, settings.model_copy(update={"ca_bundle": "/ca.pem"}))(PLACE)
    assert calls()[0][-1] == "/ca.pem"


def test_a_key_that_is_no_file_is_told_before_anything_else(settings):
    with pytest.raises(UsageError, match="nowhere is no file"):
        signer("/nowhere", settings)


def test_a_signature_that_fails_is_told_with_cosigns_words(calls, key, settings, monkeypatch):
    monkeypatch.setenv("COSIGN_STATUS", "1")
    with pytest.raises(RegistryError, match=r"(?s)the channel was not moved.*no matching signatures"):
        signer(key, settings)(PLACE)


def test_without_cosign_its_absence_is_said(key, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="cosign is not installed"):
        signer(key, settings)
    with pytest.raises(HostError, match="require_signature"):
        require_signature(PLACE, settings.model_copy(update={"require_signature": key}))


def test_without_a_key_nothing_is_asked(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert require_signature(PLACE, settings) == ""


def test_a_signature_is_checked_with_the_key(calls, key, settings):
    said = require_signature(PLACE, settings.model_copy(update={"require_signature": key}))
    assert key in said
    assert calls() == [["verify", "--key", key, "--insecure-ignore-tlog=true", str(PLACE), None]]


def test_a_missing_or_wrong_signature_is_no_image_to_pull(calls, key, settings, monkeypatch):
    monkeypatch.setenv("COSIGN_STATUS", "12")
    with pytest.raises(VerifyError, match=r"(?s)has no signature of .*no matching signatures"):
        require_signature(PLACE, settings.model_copy(update={"require_signature": key}))
