"""What an image must prove: small functions, each with an id, a title, what it proves and what a failure means."""

from builder.verify.checks import chain, image, imports, native, packages  # noqa: F401 - each registers its checks
from builder.verify.checks.spec import CHAIN, CHECKS, FILES, LABEL, Evidence, run_checks

__all__ = ["CHAIN", "CHECKS", "FILES", "LABEL", "Evidence", "run_checks"]
