"""How an image was made: an in-toto statement with SLSA provenance v1; the same record gives the same bytes.

Forms: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance.
What the build type's fields mean stands in docs/publish.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.files import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.models.lock import Lock, LockedBase
    from builder.models.record import Record

STATEMENT_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:gfx1100:build:v1"
BUILDER = "urn:gfx1100:builder:own-machine"


def provenance(record: Record, lock: Lock, environ: Mapping[str, str]) -> str:
    """Return the provenance of a published image.

    Args:
        record: The record, which says where the image was published.
        lock: The lock that the image carries.
        environ: The environment, in which GitHub's workflows say which of them is running.
    """
    published = record.published
    if published is None:
        raise AssertionError
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [{"name": published.repository, "digest": {"sha256": published.digest.removeprefix("sha256:")}}],
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD,
                    "externalParameters": {
                        "stack": record.stack,
                        "repository": record.repository,
                        "ref": record.ref,
                    },
                    "internalParameters": {
                        "version": record.version,
                        "dockerfileSha256": record.dockerfile_sha256,
                        "contextSha256": record.context_sha256,
                        "patches": [{"id": patch.id, "outcome": patch.outcome} for patch in record.patches],
                    },
                    "resolvedDependencies": _dependencies(record, lock),
                },
                "runDetails": _run(record, environ),
            },
        }
    )


def _dependencies(record: Record, lock: Lock) -> list[dict[str, Any]]:
    files = {patch.id: patch.file for patch in lock.patches}
    return [
        {
            "name": "source",
            "uri": f"git+{record.repository}@{record.ref}",
            "digest": {"gitCommit": record.commit},
        },
        {"name": "lock", "uri": f"stacks/{record.stack}.lock.yaml", "digest": {"sha256": record.lock_sha256}},
        *(
            {
                "name": f"patch {patch.id}",
                "uri": f"patches/{files.get(patch.id, patch.id)}",
                "digest": {"sha256": patch.sha256},
            }
            for patch in record.patches
        ),
        *(_base(stage, base) for stage, base in lock.bases.items()),
        *({"name": f"wheel {one.name}", "uri": one.url, "digest": {"sha256": one.sha256}} for one in lock.wheels),
    ]


def _base(stage: str, base: LockedBase) -> dict[str, Any]:
    """Return a base image: by its digest, or by the hash of the recipe that made it from packages."""
    if base.digest is None:
        return {"name": f"base {stage}", "uri": base.image, "digest": {"gfx1100Recipe": base.recipe_sha256 or ""}}
    return {"name": f"base {stage}", "uri": base.image, "digest": {"sha256": base.digest.removeprefix("sha256:")}}


def _run(record: Record, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return who built it: the workflow that is running, or somebody's own machine."""
    server, workflow = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_WORKFLOW_REF")
    hosted = server and workflow
    run = f"{server}/{environ.get('GITHUB_REPOSITORY', '')}/actions/runs/{environ.get('GITHUB_RUN_ID', '')}"
    return {
        "builder": {
            "id": f"{server}/{workflow}" if hosted else BUILDER,
            "version": {"gfx1100-images": record.tool},
        },
        "metadata": {**({"invocationId": run} if hosted else {}), "finishedOn": record.created},
    }
