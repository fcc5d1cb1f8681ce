"""The engine's own host and its images, read in containers."""

import pytest

from builder.host.host import read_engine_host, read_host
from builder.lint.operators import operators_of

pytestmark = pytest.mark.engine


def test_the_host_of_the_engine_is_read_in_a_container_there(engine, built):
    there, here = read_engine_host(engine, built.image_id), read_host()
    assert there.facts["memory"]["total"] == here.facts["memory"]["total"]
    assert there.facts["kernel"] == here.facts["kernel"]
    assert [gpu.pci for gpu in there.gpus] == [gpu.pci for gpu in here.gpus]
    assert operators_of(engine, built.image_id) == frozenset()
