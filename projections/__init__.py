"""Read models: one module a projection (fold and its queries), SQL migrations, the runner."""
