"""Composition root: settings, wiring, embedded services, the process supervisor and the command
line.
"""
