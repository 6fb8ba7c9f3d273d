"""What is: logs, metrics, views."""
