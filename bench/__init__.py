"""Measured claims: `make bench`, or `python -m bench`."""
