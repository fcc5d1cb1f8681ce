"""An engine in memory: the port, without a daemon. What a test needs to steer is a public attribute."""

from dataclasses import replace
from types import MappingProxyType

from builder.engine.port import Container, Image, Output


class FakeEngine:
    """Images and containers as dictionaries; ``on_start`` may decide what a started container becomes."""

    name = "fake engine"
    environment = MappingProxyType({})

    def __init__(self, images=(), *, on_start=lambda container: container):
        self.images = {image.id: image for image in images}
        self.boxes = {}
        self.specs = {}
        self.policies = {}
        self.files = {}
        self.changed = {}
        self.log = {}
        self.answer = Output(returncode=0, stdout="{}", stderr="")
        self.on_start = on_start
        self.calls = []

    def image(self, reference):
        for image in self.images.values():
            if reference in (image.id, *image.tags, *image.repo_digests):
                return image
        return None

    def read_files(self, image, paths, *, limit):
        return {path: self.files[path] for path in paths if path in self.files}

    def run_once(self, image, argv, *, files, timeout, user=None, mounts=None):
        self.calls.append(("run_once", files))
        return self.answer

    def create(self, spec):
        identity = f"c{len(self.specs)}"
        box = Container(
            id=identity,
            name=spec.name,
            image_id=spec.image,
            state="created",
            labels=spec.labels,
            shm_bytes=spec.shm_bytes or 64 << 20,
        )
        self.boxes[identity], self.specs[identity] = box, spec
        self.calls.append(("create", spec.name))
        return box

    def start(self, container_id):
        self.calls.append(("start", self.boxes[container_id].name))
        self.boxes[container_id] = self.on_start(replace(self.boxes[container_id], state="running", exit_code=None))

    def stop(self, container_id, *, timeout):
        self.calls.append(("stop", self.boxes[container_id].name))
        self.boxes[container_id] = replace(self.boxes[container_id], state="exited", exit_code=0)

    def remove(self, container_id):
        self.calls.append(("remove", self.boxes[container_id].name))
        del self.boxes[container_id]

    def rename(self, container_id, name):
        assert self.container(name) is None, f"the name {name} is taken"
        self.boxes[container_id] = replace(self.boxes[container_id], name=name)

    def keep_running(self, container_id, *, always):
        self.policies[container_id] = always

    def container(self, name_or_id):
        for box in self.boxes.values():
            if name_or_id in (box.id, box.name):
                return box
        return None

    def containers(self, label):
        key, _, value = label.partition("=")
        return [box for box in self.boxes.values() if key in box.labels and (not value or box.labels[key] == value)]

    def add_folders(self, container_id, at, names, *, user, group):
        self.calls.append(("add_folders", at))

    def logs(self, container_id, *, tail):
        return self.log.get(container_id, "")

    def logs_since(self, container_id, since):
        lines = self.log.get(container_id, "").splitlines()
        return [(float(at), line) for at, line in enumerate(lines, 1) if at >= since]

    def follow(self, container_id, *, tail=None):
        lines = self.log.get(container_id, "").splitlines()
        return iter(lines if tail is None else lines[-tail:])

    def changes(self, container_id):
        return self.changed.get(container_id, ())


def image(number=1, **more):
    """Return an image with a made-up id."""
    return Image(id="sha256:" + f"{number:064x}", **more)
