"""Pages of the documentation that are made of the code, in whole or between two markers."""
