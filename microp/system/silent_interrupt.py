"""Imported first by the process that starts ranks: until it is ready, Ctrl-C ends it without a traceback."""

import signal

if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
