"""``python -m lmrc`` is the command ``lmrc``."""

from lmrc.cli import main

if __name__ == "__main__":
    main()
