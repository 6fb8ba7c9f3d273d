"""One HTML file that tells what the journals hold, without a network."""
