"""Every error the lab raises on purpose.

LabError                 exit status 1: the work could not be done
├── InputError           exit status 2: what the user gave is wrong
├── FetchError           something could not be downloaded or unpacked
├── ServerError          Triton could not start, did not answer, or died
│   └── ModelError       one model could not be loaded; the others still serve
├── FolderError          a run folder is missing, damaged or of another schema
└── RunError             a run could not start or go on

Each message is one line: what was wrong, its value, what is allowed or what to do. The command line prints it
without a traceback (unless LAB_DEBUG=1) and exits with `exit_status`. A failed *request* is data, not an error.
"""

import errno
import resource


class LabError(Exception):
    exit_status = 1


class InputError(LabError):
    exit_status = 2


class FetchError(LabError):
    pass


class ServerError(LabError):
    pass


class ModelError(ServerError):
    pass


class FolderError(LabError):
    pass


class RunError(LabError):
    pass


def reason(error: OSError) -> str:
    """What the system says against a file, and of a limit on its size whose that is."""
    said = error.strerror or str(error)
    if error.errno != errno.EFBIG:
        return said
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    whose = "the disk's file system" if most == resource.RLIM_INFINITY else f"ulimit -f, here {most:,} bytes,"
    return f"{said}: {whose} allows no more"


def remedy(error: OSError) -> str:
    """What to do where a file could not be written because there is no room for it."""
    return "raise that limit" if error.errno == errno.EFBIG else "make room"
