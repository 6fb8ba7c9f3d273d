"""Text to statements and back: the T-SQL of routes, queues and services. Pure."""
