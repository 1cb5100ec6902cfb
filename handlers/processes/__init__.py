"""Processes that may be killed at any time: what strangers send is worked on there."""
