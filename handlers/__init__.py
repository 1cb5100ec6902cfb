"""Commands: build the event, run the script, return a receipt; and the loops that settle and clean
up."""
