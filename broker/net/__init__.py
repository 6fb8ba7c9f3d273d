"""The only home of sockets that carry frames."""
