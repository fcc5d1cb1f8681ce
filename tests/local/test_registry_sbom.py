"""What goes with an image: the bill of materials, the provenance, and the list of what is installed."""

import json
import subprocess
import sys

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from fake_engine import FakeEngine
from packageurl import PackageURL

from builder.engine.port import Output
from builder.errors import VerifyError
from builder.models.lock import Lock, LockedBase, LockedPatch, LockedWheel
from builder.models.record import Published
from builder.registry import package_list
from builder.registry.provenance import provenance
from builder.registry.sbom import LISTER, Distribution, Installed, Package, installed_in, sbom

DIGEST = "sha256:" + "d" * 64


@pytest.fixture
def published(record):
    place = Published(repository="127.0.0.1:5000/team/app", tag="none-x", digest=DIGEST)
    return record.model_copy(update={"published": place, "rocm": "7.2.4"})


@pytest.fixture
def lock():
    return Lock(
        format=1,
        stack="smoke",
        stack_sha256="6" * 64,
        commit="a" * 40,
        version="0.0.dev0+gaaaaaaaaaaaa",
        bases={
            "build": LockedBase(image="base:build", recipe_sha256="7" * 64),
            "runtime": LockedBase(image="base:runtime", digest="sha256:" + "8" * 64),
        },
        wheels=(LockedWheel(name="Torch", version="2.9", url="https://example.org/torch.whl", sha256="9" * 64),),
        patches=(LockedPatch(id="one", file="one.yaml", sha256="2" * 64),),
        template_sha256="0" * 64,
    )


@pytest.fixture
def installed():
    return Installed(
        system={"ID": "debian", "VERSION_ID": "13"},
        distributions=(
            Distribution(name="torch", version="2.9", licence="BSD-3-Clause", sha256="a" * 64),
            Distribution(name="Flash_Attn", version="1.0+rocm7"),
            Distribution(name="flash-attn", version="1.0+rocm7"),
        ),
        packages=(Package(name="libstdc++6", version="1:14.2~rc1+b1-19", architecture="amd64", sha256="b" * 64),),
    )


@pytest.fixture
def bill(published, lock, installed):
    return sbom(published, lock, installed)


def part(bill, name):
    return next(one for one in json.loads(bill)["components"] if one["name"] == name)


class TestBill:
    def test_it_fits_the_schema(self, bill):
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None

    def test_the_schema_would_find_a_fault(self, bill):
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.replace("SHA-256", "SHA-9")) is not None

    def test_a_source_in_a_folder_with_a_blank_fits_the_schema_too(self, published, lock, installed):
        moved = published.model_copy(update={"repository": "/home/some body/engine.git"})
        bill = sbom(moved, lock, installed)
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
        assert part(bill, "engine")["externalReferences"][0]["url"] == "/home/some%20body/engine.git"

    def test_the_same_input_gives_the_same_bytes(self, bill, published, lock, installed):
        assert sbom(published, lock, installed) == bill

    def test_every_package_url_is_in_its_canonical_form(self, bill):
        urls = [one["purl"] for one in json.loads(bill)["components"] if "purl" in one]
        urls.append(json.loads(bill)["metadata"]["component"]["purl"])
        assert [PackageURL.from_string(url).to_string() for url in urls] == urls
        assert len(urls) == 4

    def test_a_distribution_carries_the_hash_of_its_record_its_licence_and_its_wheel(self, bill):
        torch = part(bill, "torch")
        assert torch["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
        assert torch["licenses"] == [{"expression": "BSD-3-Clause"}]
        assert torch["externalReferences"][0]["hashes"][0]["content"] == "9" * 64

    def test_a_distribution_in_two_folders_stands_once(self, bill):
        names = [one["name"] for one in json.loads(bill)["components"]]
        assert names == ["engine", "one", "ROCm", "torch", "Flash_Attn", "libstdc++6"]

    def test_commit_patches_and_rocm_are_components(self, bill):
        engine, patch = part(bill, "engine"), part(bill, "one")
        assert engine["pedigree"] == {"commits": [{"uid": "a" * 40}]}
        assert patch["hashes"][0]["content"] == "2" * 64
        assert {"name": "gfx1100:outcome", "value": "applied"} in patch["properties"]
        assert part(bill, "ROCm")["version"] == "7.2.4"

    def test_the_image_depends_on_everything_but_the_patches_which_the_engine_has(self, bill):
        value = json.loads(bill)
        image, engine = value["dependencies"]
        references = {one["bom-ref"] for one in value["components"]}
        assert set(image["dependsOn"]) | set(engine["dependsOn"]) == references
        assert engine["dependsOn"] == ["patch:one"]

    def test_a_stack_whose_base_brings_hip_names_no_rocm_release(self, published, lock, installed):
        value = json.loads(sbom(published.model_copy(update={"rocm": None}), lock, installed))
        assert not any(one["name"] == "ROCm" for one in value["components"])


class TestProvenance:
    def test_it_is_a_statement_about_the_digest_with_every_input(self, published, lock):
        value = json.loads(provenance(published, lock, {}))
        definition = value["predicate"]["buildDefinition"]

        assert (value["_type"], value["predicateType"]) == (
            "https://in-toto.io/Statement/v1",
            "https://slsa.dev/provenance/v1",
        )
        assert value["subject"] == [{"name": "127.0.0.1:5000/team/app", "digest": {"sha256": "d" * 64}}]
        assert {one["name"]: one["digest"] for one in definition["resolvedDependencies"]} == {
            "source": {"gitCommit": "a" * 40},
            "lock": {"sha256": "1" * 64},
            "patch one": {"sha256": "2" * 64},
            "base build": {"gfx1100Recipe": "7" * 64},
            "base runtime": {"sha256": "8" * 64},
            "wheel Torch": {"sha256": "9" * 64},
        }

    def test_a_workflow_is_named_by_its_own_address_and_run(self, published, lock):
        environ = {
            "GITHUB_SERVER_URL": "https://forge.example",
            "GITHUB_WORKFLOW_REF": "me/it/.github/workflows/images.yml@refs/heads/main",
            "GITHUB_REPOSITORY": "me/it",
            "GITHUB_RUN_ID": "7",
        }
        run = json.loads(provenance(published, lock, environ))["predicate"]["runDetails"]

        assert run["builder"]["id"] == "https://forge.example/me/it/.github/workflows/images.yml@refs/heads/main"
        assert run["metadata"]["invocationId"] == "https://forge.example/me/it/actions/runs/7"

    def test_an_own_machine_claims_no_more_than_that(self, published, lock):
        run = json.loads(provenance(published, lock, {"GITHUB_REPOSITORY": "me/it"}))["predicate"]["runDetails"]
        assert run["builder"]["id"] == "urn:gfx1100:builder:own-machine"
        assert "invocationId" not in run["metadata"]


class TestInstalled:
    def test_distributions_are_read_with_the_hash_of_their_record(self, tmp_path):
        info = tmp_path / "demo-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: Demo\nVersion: 1.0\nLicense-Expression: MIT\n")
        (info / "RECORD").write_bytes(b"")
        egg = tmp_path / "old.egg-info"
        egg.mkdir()
        (egg / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old\nVersion: 2\n")
        (tmp_path / "broken.dist-info").mkdir()

        found = package_list.distributions([tmp_path])

        assert [(one["name"], one["version"], one["licence"]) for one in found] == [
            ("Demo", "1.0", "MIT"),
            ("old", "2", ""),
        ]
        assert [one["sha256"][:8] for one in found] == ["e3b0c442", ""]

    def test_installed_packages_are_read_and_removed_ones_are_not(self, tmp_path):
        (tmp_path / "info").mkdir()
        (tmp_path / "info" / "libc6:amd64.md5sums").write_bytes(b"")
        (tmp_path / "status").write_text(
            "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.41-12\n"
            "Description: C library\n Version: no field\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        )

        found = package_list.packages(tmp_path)

        assert [(one["name"], one["version"], one["architecture"]) for one in found] == [("libc6", "2.41-12", "amd64")]
        assert found[0]["sha256"].startswith("e3b0c442")

    def test_a_system_without_dpkg_or_os_release_has_neither(self, tmp_path):
        assert (package_list.packages(tmp_path), package_list.system(tmp_path / "os-release")) == ([], {})

    def test_the_file_runs_alone_and_its_answer_is_understood(self):
        done = subprocess.run([sys.executable, "-I", str(LISTER)], capture_output=True, text=True, check=True)
        engine = FakeEngine()
        engine.answer = Output(returncode=0, stdout=done.stdout, stderr="")

        found = installed_in(engine, "sha256:x")

        assert "pytest" in {one.name for one in found.distributions}

    @pytest.mark.parametrize("answer", ["", "Traceback", '{"system": {}}', "[]"])
    def test_an_image_that_does_not_answer_is_told_with_what_it_said(self, answer):
        engine = FakeEngine()
        engine.answer = Output(returncode=127, stdout=answer, stderr="python3: not found")

        with pytest.raises(VerifyError, match=r"status 127, .*python3: not found"):
            installed_in(engine, "sha256:x")
