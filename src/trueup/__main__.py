"""`python -m trueup` is the command `trueup`."""

from __future__ import annotations

from trueup.cli.main import main

if __name__ == "__main__":
    main()
