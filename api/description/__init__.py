"""What the API tells about itself: an OpenAPI document, made from what the routes really use."""
