"""Rules about the container around the engine: docker run and compose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lint.command import Option, size
from builder.lint.rule import Found, rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.lint.command import Box, Command

GIB = 1 << 30
RUN = "docker run --device /dev/kfd --device /dev/dri/renderD128 --group-add 992"
DOCKER = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"


def _boxed(change: Callable[[Box], Box]) -> Callable[[Command], Command]:
    return lambda command: command if command.box is None else replace(command, box=change(command.box))


def _without(flag: str) -> Callable[[Command], Command]:
    return _boxed(lambda box: replace(box, options=tuple(option for option in box.options if option.flag != flag)))


def _with(flag: str, value: str) -> Callable[[Command], Command]:
    def change(box: Box) -> Box:
        kept = tuple(option for option in box.options if option.flag != flag)
        return replace(box, options=(*kept, Option(flag=flag, values=(value,))))

    return _boxed(change)


@rule(
    "error",
    reason="A privileged container has every device and right of the host; the engine needs /dev/kfd and render nodes.",
    source=DOCKER,
    bad="docker run --privileged --device /dev/dri/renderD128 vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def never_privileged(command: Command) -> Iterator[Found]:
    """Find --privileged."""
    if command.box and command.box.has("--privileged"):
        yield Found(
            flag="--privileged",
            message="the container may do everything on the host",
            fix="--device /dev/kfd --device /dev/dri/renderD… --group-add GID, as `gfx1100 doctor` prints them",
            change=_without("--privileged"),
        )


@rule(
    "error",
    reason="A name is looked up in the image's /etc/group, whose numbers are not the host's: /dev/kfd is then "
    "“Permission denied”.",
    source=DOCKER,
    bad="docker run --device /dev/kfd --device /dev/dri/renderD128 --group-add video vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def groups_by_number(command: Command) -> Iterator[Found]:
    """Find groups by name; a variable without a value is not known."""
    for group in command.box.all("--group-add") if command.box else ():
        if not group.isdigit() and group != "keep-groups" and "$" not in group:
            yield Found(
                flag="--group-add",
                message=f"{group} is another number in the image than on the host",
                fix="the number that `stat -c %g /dev/kfd /dev/dri/renderD128` prints",
            )


@rule(
    "warning",
    reason="The whole folder brings every GPU of the host, the integrated one too.",
    source=DOCKER,
    bad="docker run --device /dev/kfd --device /dev/dri --group-add 992 vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def only_chosen_render_nodes(command: Command) -> Iterator[Found]:
    """Find /dev/dri as a whole."""
    for device in command.box.all("--device") if command.box else ():
        if device.split(":")[0].rstrip("/") == "/dev/dri":
            yield Found(
                flag="--device",
                message="/dev/dri brings every GPU of the host",
                fix="--device /dev/dri/renderD128 for each card that `gfx1100 doctor` chose",
            )


@rule(
    "error",
    reason="The compute driver is reached through /dev/kfd; a render node alone gives no device.",
    source=DOCKER,
    bad="docker run --device /dev/dri/renderD128 --group-add 992 vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def the_compute_device_is_there(command: Command) -> Iterator[Found]:
    """Find a container without /dev/kfd."""
    if command.box is None or command.box.has("--privileged"):
        return
    devices = [device.split(":")[0] for device in command.box.all("--device")]
    if "/dev/kfd" not in devices and "amd.com/gpu=all" not in devices:
        change = _boxed(lambda box: replace(box, options=(*box.options, Option(flag="--device", values=("/dev/kfd",)))))
        yield Found(flag="--device", message="/dev/kfd is missing", fix="--device /dev/kfd", change=change)


@rule(
    "error",
    reason="Each card is opened through its own render node; without it the engine does not see the card.",
    source=DOCKER,
    bad="docker run --device /dev/kfd --group-add 992 vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def a_render_node_for_each_card(command: Command) -> Iterator[Found]:
    """Find a container with fewer render nodes than cards."""
    box = command.box
    devices = [device.split(":")[0].rstrip("/") for device in box.all("--device")] if box else []
    if box is None or box.has("--privileged") or {"/dev/dri", "amd.com/gpu=all"} & set(devices):
        return
    nodes = {device for device in devices if "render" in device or "$" in device}
    if len(nodes) < command.cards:
        yield Found(
            flag="--device",
            message=f"{len(nodes)} render nodes for {command.cards} cards",
            fix="--device /dev/dri/renderD… for each card that `gfx1100 doctor` chose",
        )


@rule(
    "error",
    reason="Workers exchange data through /dev/shm, which has 64 MB in a container: a bus error at two cards.",
    source="https://docs.vllm.ai/en/latest/deployment/docker/",
    bad=f"{RUN} --device /dev/dri/renderD129 vllm vllm serve m --tensor-parallel-size 2",
    good=f"{RUN} --device /dev/dri/renderD129 --shm-size 16g vllm vllm serve m --tensor-parallel-size 2",
)
def shared_memory_for_several_cards(command: Command) -> Iterator[Found]:
    """Find a small /dev/shm under several workers."""
    box = command.box
    if box is None or command.cards == 1 or box.all("--ipc")[-1:] == ["host"]:
        return
    given = (box.all("--shm-size") or ["64m"])[-1]
    if (size(given) or 0) < GIB:
        yield Found(
            flag="--shm-size",
            message=f"the container's /dev/shm has {given} for {command.cards} workers",
            fix="--shm-size 16g",
            change=_with("--shm-size", "16g"),
        )


@rule(
    "info",
    reason="With the host's IPC namespace the container has the host's /dev/shm, and --shm-size is void.",
    source="https://docs.docker.com/reference/cli/docker/container/run/",
    bad=f"{RUN} --ipc=host --shm-size 32g vllm vllm serve m",
    good=f"{RUN} --ipc=host vllm vllm serve m",
)
def one_way_to_shared_memory(command: Command) -> Iterator[Found]:
    """Find --shm-size beside --ipc=host."""
    if command.box and command.box.all("--ipc")[-1:] == ["host"] and command.box.all("--shm-size"):
        yield Found(
            flag="--shm-size",
            message="it is void beside --ipc=host",
            fix="drop --ipc=host and keep --shm-size",
            change=_without("--ipc"),
        )


@rule(
    "warning",
    reason="A container that dies at its start is started again without end, and takes the card's driver down with it; "
    "on-failure:3 gives up.",
    source="https://docs.docker.com/engine/containers/start-containers-automatically/",
    bad=f"{RUN} --restart unless-stopped vllm vllm serve m",
    good=f"{RUN} vllm vllm serve m",
)
def no_restart_before_ready(command: Command) -> Iterator[Found]:
    """Find a restart policy that is set before the first answered prompt."""
    policy = (command.box.all("--restart") if command.box else [])[-1:]
    if policy and policy != ["no"] and not policy[0].startswith("on-failure:"):
        yield Found(
            flag="--restart",
            message=f"{policy[0]} restarts a broken start for ever",
            fix="none or on-failure:3; `docker update --restart unless-stopped NAME` once it has answered a prompt",
            change=_without("--restart"),
        )


@rule(
    "warning",
    reason="A tag moves: what starts tomorrow may be another image, and nobody can say which one ran.",
    source="https://docs.docker.com/dhi/core-concepts/digests/",
    bad=f"{RUN} jartx-vllm:latest vllm serve m",
    good=f"{RUN} 127.0.0.1:5000/vllm@sha256:{'0' * 64} vllm serve m",
)
def image_by_digest(command: Command) -> Iterator[Found]:
    """Find an image by tag latest, or by no tag at all."""
    image = command.box.image if command.box else ""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    if image and "@" not in image and tag == "latest":
        yield Found(flag=image, message="latest moves", fix="REPOSITORY@sha256:…, which `gfx1100 pull` prints")


@rule(
    "warning",
    reason="What may write to the model folder can break the checkpoint for every other image.",
    source="https://docs.docker.com/engine/storage/bind-mounts/",
    bad=f"{RUN} -v /srv/models:/models vllm vllm serve /models/m",
    good=f"{RUN} -v /srv/models:/models:ro vllm vllm serve /models/m",
)
def model_folder_is_read_only(command: Command) -> Iterator[Found]:
    """Find a model mount that may be written to."""
    for volume in command.box.all("--volume") if command.box else ():
        source, _, rest = volume.partition(":")
        target, _, how = rest.partition(":")
        if target and command.model.startswith(target.rstrip("/") + "/") and "ro" not in how.split(","):
            new = f"{source}:{target}:{','.join(filter(None, (how.replace('rw', ''), 'ro')))}"

            def change(box: Box, old: str = volume, new: str = new) -> Box:
                done = [replace(o, values=(new,)) if o.value == old else o for o in box.options]
                return replace(box, options=tuple(done))

            yield Found(flag="--volume", message=f"{volume} may be written to", fix=f"-v {new}", change=_boxed(change))


@rule(
    "warning",
    reason="Compiled kernels and graphs are made again at every start without a volume: 20 minutes instead of half "
    "a one. A volume that outlives the image brings stale ones, so it belongs to one image digest.",
    source="https://docs.vllm.ai/en/latest/design/torch_compile/",
    bad=f"{RUN} vllm vllm serve m",
    good=f"{RUN} -v cache-0123456789ab:/root/.cache vllm vllm serve m",
)
def compile_caches_are_kept(command: Command) -> Iterator[Found]:
    """Find a container without a volume for the caches."""
    if command.box is None:
        return
    targets = [volume.split(":")[1] for volume in command.box.all("--volume") if volume.count(":")]
    targets += [command.environment.get(name, "") for name in ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")]
    if not any("cache" in target or ".triton" in target for target in targets):
        yield Found(
            flag="--volume",
            message="kernels are compiled again at every start",
            fix="-v VOLUME-<first digits of the image's digest>:/root/.cache",
        )
