"""Fetching from URLs of strangers."""
