"""The defaults of dialogs are those of the configuration."""

from broker.control import config
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogSettings


def test_the_default_window_is_that_of_the_configuration() -> None:
    configured = config.DialogSettings()

    settings = DialogSettings(Backoff(1.0, 8.0), Travel(), configured.window, configured.fragment_size)

    assert configured.window_size == settings.window_bytes
