"""Which engine is meant, and why none answers."""

import hashlib
import json
import socket

import pytest

from builder.engine.address import DEFAULT, Address, check_listening, resolve_address
from builder.errors import HostError, UsageError


@pytest.fixture
def config(tmp_path):
    """A docker configuration folder with one context, ``box``, that is the active one."""
    folder = tmp_path / "docker"
    key = hashlib.sha256(b"box").hexdigest()
    meta = folder / "contexts" / "meta" / key / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": "box", "Endpoints": {"docker": {"Host": "ssh://me@box"}}}))
    (folder / "config.json").write_text(json.dumps({"currentContext": "box"}))
    return folder


def test_nothing_said_means_the_default_socket(tmp_path):
    assert resolve_address({"HOME": str(tmp_path)}).url == DEFAULT


def test_docker_host_wins_over_every_context(config):
    env = {"DOCKER_CONFIG": str(config), "DOCKER_CONTEXT": "other", "DOCKER_HOST": "tcp://10.0.0.1:2375"}
    assert resolve_address(env) == Address(url="tcp://10.0.0.1:2375", origin="DOCKER_HOST")


def test_the_active_context_of_the_command_line_is_followed(config):
    found = resolve_address({"DOCKER_CONFIG": str(config)})
    assert found.url == "ssh://me@box"
    assert "'box'" in found.origin


def test_the_context_variable_wins_over_the_active_context(config):
    assert resolve_address({"DOCKER_CONFIG": str(config), "DOCKER_CONTEXT": "default"}).url == DEFAULT


def test_the_configuration_of_the_home_folder_is_read(config, tmp_path):
    config.rename(tmp_path / ".docker")
    assert resolve_address({"HOME": str(tmp_path)}).url == "ssh://me@box"


def test_certificates_of_a_context_reach_the_command_line_too(config):
    key = hashlib.sha256(b"box").hexdigest()
    certificates = config / "contexts" / "tls" / key / "docker"
    certificates.mkdir(parents=True)
    found = resolve_address({"DOCKER_CONFIG": str(config)})
    assert found.environment() == {
        "DOCKER_HOST": "ssh://me@box",
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(certificates),
    }


def test_tls_of_the_environment_names_its_certificates():
    env = {"DOCKER_HOST": "tcp://box:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
    assert str(resolve_address(env).certificates) == "/certs"


def test_a_context_that_does_not_exist_is_named_with_what_to_do(config):
    with pytest.raises(
        UsageError, match="DOCKER_CONTEXT names the docker context 'bux', which does not exist"
    ) as caught:
        resolve_address({"DOCKER_CONFIG": str(config), "DOCKER_CONTEXT": "bux"})
    assert "docker context ls" in caught.value.hint


@pytest.mark.parametrize("text", ["{", "[]", '{"Endpoints": {"docker": {"Host": 3}}}', '{"Endpoints": null}'])
def test_a_context_file_that_does_not_fit_is_an_error_and_not_the_default_host(config, text):
    next((config / "contexts" / "meta").glob("*/meta.json")).write_text(text)
    with pytest.raises(UsageError, match=r"meta\.json"):
        resolve_address({"DOCKER_CONFIG": str(config)})


def test_a_socket_that_listens_is_fine(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert check_listening(Address(url=f"unix://{path}", origin="a test"), {}) is None


def test_an_engine_that_is_not_installed_says_how_to_install_it(tmp_path):
    with pytest.raises(HostError, match="no container engine is installed") as caught:
        check_listening(Address(url=f"unix://{tmp_path}/s", origin="a test"), {"PATH": str(tmp_path)})
    assert "apt-get install docker.io" in caught.value.hint


def test_an_engine_that_does_not_run_says_how_to_start_it(tmp_path):
    program = tmp_path / "dockerd"
    program.touch(mode=0o755)
    with pytest.raises(HostError, match=r"no container engine answers at .*: No such file") as caught:
        check_listening(Address(url=f"unix://{tmp_path}/s", origin="a test"), {"PATH": str(tmp_path)})
    assert "systemctl start docker" in caught.value.hint


def test_a_socket_closed_to_this_user_says_which_group_to_join(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", denied)
    with pytest.raises(HostError, match="permission denied") as caught:
        check_listening(Address(url=f"unix://{tmp_path}/s", origin="a test"), {})
    assert "usermod -aG docker" in caught.value.hint
