"""``python -m builder`` is the program ``gfx1100``."""

from builder.cli import main

if __name__ == "__main__":
    main()
