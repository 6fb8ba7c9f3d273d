"""What became of each frame, written to files that a pipeline reads."""
