"""``python -m envgen.cli``."""

from envgen.cli.entry import main

if __name__ == "__main__":
    main()
