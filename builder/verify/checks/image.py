"""Checks of the image's own properties: what it says of its builder, whom it runs as, how large it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builder.verify.checks.spec import Finding, check, failed, listed, ok, skipped

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.stack import Stack

BUILD_SETTING = re.compile(
    r"^(SETUPTOOLS_SCM_\w+|VCS_VERSIONING_\w+|VLLM_VERSION_OVERRIDE|MAX_JOBS|PIP_(INDEX|EXTRA|CERT|CONFIG)\w*|\w*_(?i:proxy)"
    r"|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|\w*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_KEY)\w*)$"
)
# an instruction's word (ENV, ARG, LABEL), or the arguments that a builder lists before a RUN: `RUN |2 NAME=value …`
SET_IN_HISTORY = re.compile(r"(?:^|\s)(?:ENV|ARG)\s+(\w+)")
BUILD_ARGUMENTS = re.compile(r"^(?:RUN )?\|\d+ (.*)")
ASSIGNMENT = re.compile(r"(?:^|\s)(\w+)=")
# forms that providers of tokens document, and a key's first line
TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16}|sk-[\w-]{32,})\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@$]+:[^/\s@$]+@"
)
VARIABLE = "pass it to the build as a BuildKit secret, or as a setting of this machine (gfx1100.local.yaml)"


@check(
    "environment",
    "no build setting and no secret in the environment",
    means="a proxy or mirror of the builder's network breaks the engine elsewhere; a secret is everybody's who pulls",
    fix=f"{VARIABLE}; take a leaked secret out of use",
    caught={
        "the plain version variable, set as ENV, gave every other package of the image the engine's version": "",
        "a version could not be found in docker, and was then set for all": "https://github.com/vllm-project/vllm/issues/13130",
    },
)
def environment_is_clean(image: Image) -> Finding:
    """The image's Env holds no SETUPTOOLS_SCM_*, no proxy, no mirror, no certificate path, no token."""
    pairs = [entry.partition("=")[::2] for entry in image.environment]
    bad = sorted(name for name, value in pairs if BUILD_SETTING.match(name) or TOKEN.search(value))
    return failed(f"Env holds {', '.join(bad)}") if bad else ok(f"{len(pairs)} variables, none of them a build setting")


@check(
    "history",
    "no build setting and no secret in the history",
    means="`docker history` shows it to everybody who pulls the image, in whatever layer it was used",
    fix=f"{VARIABLE}; take a leaked secret out of use",
    caught={"build arguments are recorded: a secret given as ARG stands in the image's history": ""},
)
def history_is_clean(image: Image) -> Finding:
    """No instruction sets such a variable, no build argument carries one, and no text has the form of a token."""
    bad = []
    for number, text in enumerate(reversed(image.history), 1):
        arguments = BUILD_ARGUMENTS.match(text)
        names = [*SET_IN_HISTORY.findall(text), *(ASSIGNMENT.findall(arguments[1]) if arguments else [])]
        bad += [f"step {number} sets {name}" for name in names if BUILD_SETTING.match(name)]
        bad += [f"step {number} holds a token, a key or a login in an address"] if TOKEN.search(text) else []
    return failed(listed(bad)) if bad else ok(f"{len(image.history)} steps")


@check(
    "secrets",
    "no secret, certificate or build setting among the files",
    means="a login is everybody's who pulls; a foreign certificate lets its owner read the engine's traffic",
    fix="mount it as a BuildKit secret in the RUN that needs it; take a leaked login out of use",
    caught={"a company's CA bundle, a mirror's pip.conf or a login stayed in a layer": ""},
)
def files_hold_no_secret(secrets: Sequence[Mapping[str, str]]) -> Finding:
    """No login, key, pip or apt setting of the builder lies in the image, and no certificate but the distribution's."""
    found = [f"{file['path']} ({file['what']})" for file in secrets]
    return failed(listed(found)) if found else ok("none of the usual places holds one")


@check(
    "user",
    "the image does not run as root",
    means="a fault in the engine, or in a model file that it unpickles, is a fault with root's rights",
    fix="end the Dockerfile with USER and a numeric id",
    caught={
        "group names differ between image and host; numeric ids do not": "https://github.com/kyuz0/amd-strix-halo-vllm-toolboxes/issues/6"
    },
)
def user_is_not_root(image: Image, answer: Mapping[str, Any]) -> Finding:
    """The image names a user that is not root, and a process in it has that user's rights."""
    if image.user.partition(":")[0] in {"", "0", "root"} or answer["user"] == 0:
        return failed(f"the image's user is {image.user or 'root'!r}")
    return ok(f"user {image.user}")


@check(
    "entrypoint",
    "the image starts the server by itself",
    means="`docker run` starts a shell, or nothing, and profiles cannot pass their flags to it",
    fix="end the Dockerfile with ENTRYPOINT in its list form",
    caught={
        "users could not tell how an image is started": "https://github.com/kyuz0/amd-r9700-vllm-toolboxes/issues/4"
    },
)
def entrypoint_is_set(image: Image) -> Finding:
    """Whoever runs the image gets the engine, without knowing its command."""
    return ok(" ".join(image.entrypoint)) if image.entrypoint else failed("the image has no entry point")


@check(
    "healthcheck",
    "the image brings no health check of its own",
    means="a model loads for minutes: a check with a fixed patience calls that unhealthy, and it is restarted for ever",
    fix="take HEALTHCHECK out, or set HEALTHCHECK NONE over a base's; `gfx1100 serve` waits for an answered prompt",
    caught={
        "/health said 200, and the first prompt ran out of memory": "https://github.com/vllm-project/vllm/issues/43009",
        "a container was called unhealthy while it was still compiling": "",
    },
)
def no_health_check(image: Image) -> Finding:
    """Readiness is decided where the profile is known: by progress in the log and by an answered prompt."""
    if image.healthcheck:
        return failed(f"the image declares {' '.join(image.healthcheck)!r}")
    return ok("none declared")


@check(
    "size",
    "the image and its largest layer are within the budget",
    means="pulls take longer than they must, and a registry may give up on the push of a huge layer every time",
    fix="look at `docker history`; remove files in the RUN that brings them, split a large RUN, or raise the budget",
    caught={
        "a 22 GB image": "https://github.com/ROCm/vllm/issues/363",
        "the push of one large layer always aborts at 100 %": "https://github.com/moby/moby/issues/53700",
    },
)
def size_is_within_budget(image: Image, stack: Stack) -> Finding:
    """The unpacked image and the largest layer are at most as large as the stack allows."""
    if stack.budget is None:
        return skipped("the stack has no budget")
    largest = max(image.layers, default=0)
    said = f"{image.size / 1e9:.2f} GB, the largest layer {largest / 1e9:.2f} GB"
    if image.size > stack.budget.image_bytes:
        return failed(f"{said}; the budget is {stack.budget.image_bytes / 1e9:.2f} GB")
    if largest > stack.budget.layer_bytes:
        command = image.history[image.layers.index(largest)]
        limit = stack.budget.layer_bytes / 1e9
        return failed(f"{said}; a layer may have {limit:.2f} GB; it comes from `{' '.join(command.split())[:100]}`")
    return ok(said)


@check(
    "foreign-archs",
    "no file of another GPU architecture",
    means="gigabytes that a gfx1100 card never reads are pulled, stored and kept on the GPU host's disk",
    fix="remove them in the RUN that brings them",
    caught={"a 22 GB image": "https://github.com/ROCm/vllm/issues/363"},
)
def no_foreign_files(foreign: Mapping[str, Any], arch: str) -> Finding:
    """No code-object file, kernel library or database in the image is named after a GPU that is not gfx1100."""
    if foreign["count"]:
        files = listed(foreign["files"], 3)
        return failed(
            f"{foreign['count']} files, {foreign['bytes'] / 1e6:.1f} MB, are for other cards than {arch}: {files}"
        )
    spared = foreign.get("spared", 0)
    return ok(f"all that name a card name {arch}" + (f", but {spared} of the base" if spared else ""))
