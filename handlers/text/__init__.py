"""The pure rules of a text request and its jobs (text_path_reference.md)."""
