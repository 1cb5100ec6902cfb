"""Servers from wheels, for people without a Valkey, a Postgres or an S3 store at hand, and for the
tests.

Each module describes its server as a `Service`; who runs it is the supervisor or a test. All listen
on loopback only, keep their data in one directory and run without root and without system packages.
"""
