"""Checkpoints: does the MTP layer load, and the rewrite of its rules when it does not.

Needs nothing beyond the standard library, ``builder.errors`` and ``builder.files``, so that ``python -m
builder.checkpoint`` runs inside an engine image.
"""

from builder.checkpoint.rewrite import Fix, fix, undo
from builder.checkpoint.verdict import Inspection, inspect

__all__ = ["Fix", "Inspection", "fix", "inspect", "undo"]
