"""The report: one HTML file that shows the contents of the journals, without a network."""
