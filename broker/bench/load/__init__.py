"""What the broker does under load: where its knee is, above it, and with many connections, dialogs and hours."""
