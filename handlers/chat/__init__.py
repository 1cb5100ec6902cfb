"""The pure rules of chat jobs: what a body means, what a worker gets, what a reply must be."""
