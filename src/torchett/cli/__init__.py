"""The commands. Thin: parse, call, print."""

import signal


def ett() -> None:
    """The command `ett`; Ctrl-C ends it without a word while it imports what it is made of."""
    found = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from torchett.cli.main import main

    signal.signal(signal.SIGINT, found)
    main()
