"""What makes the Grafana dashboard."""
