"""Lets `python -m evenprune` do what the command `evenprune` does."""

from evenprune.cli import main

main()
