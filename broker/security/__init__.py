"""Identities, permissions, and the encryption of dialogs."""
