"""Mirrored routes: which of two addresses is the principal, as one prober knows it. Pure."""
