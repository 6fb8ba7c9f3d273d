"""The wanted state of an instance: configuration, catalog, statements."""
