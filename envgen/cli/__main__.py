"""``python -m envgen.cli``."""

from envgen.cli.app import main

if __name__ == "__main__":
    main()
