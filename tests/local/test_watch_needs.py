"""What the lock and the profiles need of a tree, compared between two commits."""

import pytest
from watch_project import Project, Upstream

from builder.models.stack import load_stack
from builder.source.repository import open_source
from builder.watch.needs import compare, needs_of


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "up.git")
    made.base = made.commit("the beginning")
    return made


@pytest.fixture
def changes(tmp_path, up):
    project = Project(tmp_path, str(up.repo.path))
    needs = needs_of(project.root, load_stack(project.root, "mini"), "")

    def compared():
        source = open_source(str(up.repo.path), cache=tmp_path / "cache")
        return [change.sentence() for change in compare(source, up.base, up.head, needs)]

    return compared


def test_what_nobody_watches_changes_nothing(up, changes):
    up.idle()
    up.change("requirements/common.txt", "# a comment", "# another")
    assert changes() == []


def test_requirements_are_compared_by_name_not_by_line(up, changes):
    text = "numpy>=1.26\nTorch == 2.12.0 ; python_version > '3'\n-r other.txt\nnew_one[extra]>=1\n"
    up.commit(files={"requirements/common.txt": text})
    assert changes() == [
        "requirement new-one is new in requirements/common.txt (>=1)",
        "requirement torch is gone from requirements/common.txt (==2.11.0)",
        'requirement torch; python_version > "3" is new in requirements/common.txt (==2.12.0)',
    ]


def test_requirements_of_a_project_file_are_compared_and_a_broken_one_is_left_out(up, changes):
    project = '[build-system]\nrequires = ["setuptools>=77"]\n[project]\ndependencies = ["a==1"]\n'
    up.base = up.commit(files={"pyproject.toml": project, "python/pyproject.toml": "[broken"})
    up.commit(files={"pyproject.toml": project.replace("a==1", "a==2"), "python/pyproject.toml": "[still"})
    assert changes() == ["requirement a: ==1 -> ==2 (pyproject.toml)"]


@pytest.mark.parametrize(
    "odd", ["project = 3", "[project]\ndependencies = 3", "[project]\noptional-dependencies = [1]"]
)
def test_a_project_file_of_another_shape_has_no_requirements(up, changes, odd):
    up.commit(files={"pyproject.toml": odd + "\n"})
    assert changes() == []


def test_versions_that_the_build_asks_for_are_compared(up, changes):
    docker = "ARG BASE_IMAGE=rocm/dev:7.2.3\nFROM --platform=x rocm/base:7.2 AS one\n"
    up.base = up.commit(files={"docker/Dockerfile.rocm_base": docker, "rust-toolchain.toml": 'channel = "1.95"\n'})
    up.commit(
        files={
            "docker/Dockerfile.rocm_base": docker.replace("7.2", "7.14"),
            "rust-toolchain.toml": 'channel = "1.96"\n',
            "CMakeLists.txt": 'set(TORCH_SUPPORTED_VERSION_ROCM "2.13.0")\n',
        }
    )
    assert changes() == [
        "version TORCH_SUPPORTED_VERSION_ROCM: 2.11.0 -> 2.13.0 (CMakeLists.txt)",
        "version BASE_IMAGE: rocm/dev:7.2.3 -> rocm/dev:7.14.3 (docker/Dockerfile.rocm_base)",
        "version image rocm/base: rocm/base:7.2 -> rocm/base:7.14 (docker/Dockerfile.rocm_base)",
        "version channel: 1.95 -> 1.96 (rust-toolchain.toml)",
    ]


def test_a_used_flag_that_is_renamed_or_gone_is_told_and_an_unused_one_is_not(up, changes):
    up.base = up.change("smoke_engine/server.py", '("--host")', '("--host"); parser.add_argument("--unused")')
    server = up.files["smoke_engine/server.py"].replace("--max-model-len", "--max-model-length")
    up.commit(files={"smoke_engine/server.py": server.replace("--host", "--bind").replace("--unused", "--other")})
    assert changes() == [
        "flag --host, which is used here, is gone from smoke_engine/server.py",
        (
            "flag --max-model-len, which is used here, is gone from smoke_engine/server.py; "
            "perhaps renamed to --max-model-length"
        ),
    ]


def test_a_flag_that_moves_to_another_file_is_still_there(up, changes):
    server = up.files["smoke_engine/server.py"].replace('parser.add_argument("--host")\n', "")
    up.commit(files={"smoke_engine/server.py": server, "vllm/engine/arg_utils.py": "host: str\n    host: str = ''\n"})
    assert changes() == []


def test_a_used_variable_of_the_engine_is_told_and_a_foreign_one_is_not(up, changes):
    up.change("smoke_engine/server.py", "SMOKE_FAST", "SMOKE_FASTER")
    assert changes() == [
        "variable SMOKE_FAST, which is used here, is gone from smoke_engine/server.py; perhaps renamed to SMOKE_FASTER"
    ]


def test_when_the_files_of_the_flags_are_all_gone_that_is_one_line(up, changes):
    up.commit(files={"smoke_engine/server.py": None})
    assert changes() == ["flag (all of them), which is used here, is gone from smoke_engine/server.py"]


def test_an_op_that_is_gone_is_told_and_one_that_moved_is_not(up, changes):
    ops = up.files["csrc/torch_bindings.cpp"].splitlines()
    up.base = up.commit(files={"csrc/rocm/torch_bindings.cpp": 'rocm_ops.def(\n    "moved(Tensor a)");\n'})
    up.commit(files={"csrc/rocm/torch_bindings.cpp": None, "csrc/torch_bindings.cpp": 'm.def("moved");\n' + ops[1]})
    assert changes() == ["op gemm_rdna3 is gone from csrc/torch_bindings.cpp"]


def test_a_module_that_the_stack_expects_may_move_into_a_package_but_not_vanish(up, changes):
    up.commit(files={"smoke_engine/verify.py": None, "smoke_engine/verify/__init__.py": ""})
    assert changes() == []
    up.commit(files={"smoke_engine/verify/__init__.py": None})
    assert changes() == ["module smoke_engine.verify, which is used here, is gone from smoke_engine/verify.py"]
