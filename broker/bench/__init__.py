"""What this installation takes for its work, measured: codec, forwarding, dialogs. `broker bench`."""
