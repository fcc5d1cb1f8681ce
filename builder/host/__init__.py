"""The GPU host: what it has, and whether that is fit."""
