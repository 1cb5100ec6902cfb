"""Decide, append, apply: the command scripts, their loader, and the connection that runs them.

Imports nothing of ours.
"""
