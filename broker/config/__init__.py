"""What should be: configuration, catalog, statements."""
