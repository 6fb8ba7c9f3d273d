"""Conversations that survive a restart."""
