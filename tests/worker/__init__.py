"""Tests of the reference worker."""
