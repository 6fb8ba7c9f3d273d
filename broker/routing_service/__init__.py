"""The dynamic routing service in the box: it answers requests for routes from a file and from DNS."""
