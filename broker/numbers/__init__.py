"""What every number and every reason means that this system tells."""
