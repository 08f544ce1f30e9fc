import os
import signal

for pid in (os.getppid(), -1, 0, os.getpid()):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
