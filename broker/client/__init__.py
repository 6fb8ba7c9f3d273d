"""What applications hold: dialogs and messages on their own connection, in their own transaction."""
