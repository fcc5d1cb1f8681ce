"""Serve commands inside containers: a ``docker run`` line and a compose file, read into :class:`Command`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.files import MIB, read_text
from builder.lint.command import Box, Command, Option
from builder.lint.words import of_words, split
from builder.models.base import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# options of docker run that stand alone (https://docs.docker.com/reference/cli/docker/container/run/)
BARE = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P"),
        *("--publish-all", "--read-only", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy"),
        *("-q", "--quiet", "--use-api-socket"),
    )
)
LONG = {"-v": "--volume", "-p": "--publish", "-u": "--user", "-w": "--workdir", "-m": "--memory", "-l": "--label"}
LONG |= {"-d": "--detach", "-i": "--interactive", "-t": "--tty", "-e": "--env", "-P": "--publish-all"}
LONG |= {"-h": "--hostname", "-q": "--quiet", "--net": "--network"}
WORDS = ("entrypoint", "command")
# compose keys and the options of docker run that mean the same (https://docs.docker.com/reference/compose-file/services/)
LISTS = {
    "devices": "--device",
    "group_add": "--group-add",
    "volumes": "--volume",
    "ports": "--publish",
    "security_opt": "--security-opt",
    "cap_add": "--cap-add",
}
SINGLE = {
    "shm_size": "--shm-size",
    "ipc": "--ipc",
    "network_mode": "--network",
    "restart": "--restart",
    "user": "--user",
}
# https://docs.docker.com/reference/compose-file/interpolation/
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?P<rest>[:?+-][^{}]*)?\})")
LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


def of_docker_run(words: Sequence[str], *, version: str | None = None) -> Command:
    """Return the command of ``docker run …`` or ``podman run …``.

    Raises:
        UsageError: There is no image in it, or no engine.
    """
    rest = list(words)
    rest = rest[next(i for i, word in enumerate(rest) if word == "run") + 1 :]
    options: list[Option] = []
    environment: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        for option in _docker_option(rest):
            if option.flag == "--env":
                name, _, value = option.value.partition("=")
                environment[name] = value
            else:
                options.append(option)
    if not rest:
        raise UsageError(f"`{shlex.join(words)[:120]}` names no image")
    box = Box(options=tuple(options), image=rest[0])
    entry = [option.value for option in options if option.flag == "--entrypoint"]
    return of_words([*entry, *rest[1:]], environment, box=box, version=version)


def of_compose(path: Path, *, service: str | None = None, version: str | None = None) -> Command:
    """Return the command of a compose file's service.

    Args:
        path: The file.
        service: The service; needed when several of them start an engine.
        version: The engine's version.

    Raises:
        UsageError: No service starts an engine, or several do and none is named; a command has an open quotation mark;
            a key is of a wrong form, or the file is larger than 1 MiB.
    """
    services = _interpolated(parse_yaml(read_text(path, limit=MIB), path).get("services"), path)
    if not isinstance(services, dict):
        raise UsageError(f"{path} has no services")
    if service is not None and service not in services:
        raise UsageError(f"{path} has no service {service!r} (it has {', '.join(sorted(services))})")
    found: dict[str, Command] = {}
    awaited = _awaited(services)
    for name, value in services.items():
        if (service == name or (service is None and name not in awaited)) and isinstance(value, dict):
            words = [word for key in WORDS for word in _words(value.get(key), f"{path}: {key} of {name}: ")]
            environment = _environment(value.get("environment"), f"{path}: environment of {name}: ")
            try:
                found[name] = _service(value, words, environment, version)
            except UsageError:
                if service is not None:
                    raise
    if len(found) != 1:
        told = f"several do: {', '.join(found)}" if found else "none does"
        raise UsageError(f"one service of {path} must start an engine; {told}", hint="name it with --service NAME")
    return next(iter(found.values()))


def _docker_option(rest: list[str]) -> list[Option]:
    """Take one option from the front of ``rest``; a group of bare short ones (``-it``) gives several."""
    word = rest.pop(0)
    if word.startswith("--"):
        flag, joined, value = word.partition("=")
        if joined:
            return [Option(flag=LONG.get(flag, flag), values=(value,))]
        return [Option(flag=LONG.get(flag, flag), values=() if flag in BARE else _taken(rest, flag))]
    letters = word[1:]
    for i, letter in enumerate(letters):
        if f"-{letter}" not in BARE:
            attached = letters[i + 1 :].removeprefix("=")
            values = (attached,) if attached else _taken(rest, f"-{letter}")
            last = Option(flag=LONG.get(f"-{letter}", f"-{letter}"), values=values)
            return [*(Option(flag=LONG[f"-{one}"]) for one in letters[:i]), last]
    return [Option(flag=LONG[f"-{letter}"]) for letter in letters]


def _taken(rest: list[str], flag: str) -> tuple[str, ...]:
    if not rest:
        raise UsageError(f"docker run's {flag} has no value")
    return (rest.pop(0),)


def _awaited(services: dict[str, Any]) -> set[str]:
    """Return the services whose end another one waits for, so that they serve nothing."""
    waiting = [one["depends_on"] for one in services.values() if isinstance(one, dict) and "depends_on" in one]
    return {
        name
        for one in waiting
        if isinstance(one, dict)
        for name, how in one.items()
        if isinstance(how, dict) and how.get("condition") == "service_completed_successfully"
    }


def _service(value: dict[str, Any], words: list[str], environment: Mapping[str, str], version: str | None) -> Command:
    """Return a compose service as if it were a docker run line."""
    options = [Option(flag=flag, values=(str(one),)) for key, flag in LISTS.items() for one in _listed(value.get(key))]
    for key, flag in SINGLE.items():
        if value.get(key) is not None:
            options.append(Option(flag=flag, values=(str(value[key]),)))
    if value.get("privileged"):
        options.append(Option(flag="--privileged"))
    box = Box(options=tuple(options), image=str(value.get("image") or ""))
    return of_words(words, environment, box=box, version=version)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        return []
    return [_volume(one) if isinstance(one, dict) else one for one in value]


def _volume(one: dict[str, Any]) -> str:
    ends = f"{one.get('source', '')}:{one.get('target', '')}"
    return ends + (":ro" if one.get("read_only") else "")


def _words(value: object, where: str) -> list[str]:
    if value is not None and not isinstance(value, str | list):
        raise UsageError(f"{where}a text or a list is expected, found {value!r}")
    return split(value, where) if isinstance(value, str) else [str(word) for word in value or ()]


def _environment(value: object, where: str) -> dict[str, str]:
    if value is not None and not isinstance(value, dict | list):
        raise UsageError(f"{where}a mapping or a list is expected, found {value!r}")
    pairs = value.items() if isinstance(value, dict) else (str(one).partition("=")[::2] for one in value or ())
    return {str(name): "" if held is None else str(held) for name, held in pairs}


def _interpolated(value: Any, path: Path) -> Any:  # noqa: ANN401 - any YAML value
    """Return what a compose file holds with its variables replaced.

    A variable that nothing gives a value stays as ``${NAME}``: it is not known here. The shell's own variables are left
    out, so that a file is judged alike everywhere.
    """
    beside = path.parent / ".env"
    return _replaced(value, _read(read_text(beside)) if beside.is_file() else {})


def _read(text: str) -> dict[str, str]:
    found = (LINE.fullmatch(line) for line in text.splitlines())
    return {one[1]: _plain(one[2]) for one in found if one}


def _plain(text: str) -> str:
    quoted = re.match(r"(['\"])(.*?)\1", text)
    return quoted[2] if quoted else re.sub(r"(?:^|\s+)#.*", "", text)


def _replaced(value: Any, given: Mapping[str, str]) -> Any:  # noqa: ANN401 - any YAML value
    if isinstance(value, dict):
        return {key: _replaced(item, given) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, given) for item in value]
    return VARIABLE.sub(lambda found: _value(found, given), value) if isinstance(value, str) else value


def _value(found: re.Match[str], given: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    name, rest = found["bare"] or found["name"], found["rest"] or ""
    operator, otherwise = rest.removeprefix(":")[:1], rest.removeprefix(":")[1:]
    there = name in given and bool(given[name] or not rest.startswith(":"))
    if operator == "+":
        return otherwise if there else ""
    if there:
        return given[name]
    return otherwise if operator == "-" else f"${{{name}}}"
