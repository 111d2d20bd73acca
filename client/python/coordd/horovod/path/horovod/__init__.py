"""Found through PYTHONPATH: gives its place to coordd.horovod."""

_is_coordd = True

import coordd.horovod  # noqa: E402

coordd.horovod.install()
