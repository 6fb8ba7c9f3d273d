"""The library for applications: dialogs and messages on the application's connection, in its transaction."""
