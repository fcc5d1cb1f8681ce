"""The server's start."""

import sys

import sglang

if __name__ == "__main__":
    print("sglang look-alike", sglang.__version__, sys.argv[1:])
