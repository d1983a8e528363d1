"""`python -m headprune` is the command line."""

from headprune.cli import main

if __name__ == "__main__":
    main()
