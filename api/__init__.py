"""HTTP: decode, call a handler or a query, shape the answer. No rules live here."""
