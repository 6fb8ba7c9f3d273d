"""Several processes that forward as one gateway: `endpoint.workers`. Holds no logic."""
