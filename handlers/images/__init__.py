"""Images of strangers, made into JPEGs that can be handed on."""
