"""What happened: event structs, their codec, positions and key names.

Imports nothing of ours.
"""
