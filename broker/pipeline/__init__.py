"""The jobs on Spark that answer questions about the journals of many instances."""
